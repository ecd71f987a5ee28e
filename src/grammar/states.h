/* states.h - the states of a matcher (matcher.h): made when a step first leads to them.
 *
 * The frame of a REPEAT counts how often its body has come. Take two texts that differ only in such
 * counts. If all these counts are too far from their bounds to reach them within `margin` bytes,
 * the texts go on alike for `margin` bytes: they have one *normal* state. A mask looks no further
 * than the longest token, so a string of at most 1,000 characters has one mask nearly everywhere.
 */
#ifndef QN_GRAMMAR_STATES_H
#define QN_GRAMMAR_STATES_H

#include "grammar/code.h"

enum {
    STATE_UNKNOWN = 0, /* of a step: not taken yet */
    STATE_DEAD = 1,    /* no text goes on like this */
    STATE_FIRST = 2,

    STATES_MAX = 1 << 14,
    STATES_STEPS_MAX = 1 << 21,   /* states times classes of bytes, at most */
    STATES_THREADS_MAX = 1 << 18, /* of all states */
    STATES_FRAMES_MAX = 1 << 16,
    STATES_VISITS_MAX = 1 << 13, /* instructions visited between two bytes */
};

struct state {
    uint32_t first, n; /* threads */
    uint64_t hash;
    bool accepts;
    uint32_t normal; /* STATE_UNKNOWN: not looked for yet */
    uint32_t after;  /* the state after any plain character; matcher.c's */
    uint8_t plain;   /* enum state_plain, or characters; matcher.c's */
    uint16_t mask;   /* slot of its mask + 1; 0: none; matcher.c's */
};

#define FRAME_CALL UINT32_MAX

struct frame {
    uint32_t pc;    /* the instruction after a call, or a REPEAT */
    uint32_t count; /* FRAME_CALL, or how often the body has come before */
    uint32_t under;
};

/* A hash table of numbers. It begins small: memory pages that are never touched cost nothing. */
struct table {
    uint32_t *slots; /* [mask + 1] 0: free */
    uint32_t mask;
};

struct states {
    const struct code *code;
    uint32_t margin; /* bytes */
    void *map;       /* the memory of all arrays below */
    size_t bytes;
    struct state *items; /* [n_max] */
    uint32_t n, n_max;
    uint32_t *steps;   /* [n_max][n_classes] */
    uint64_t *threads; /* [STATES_THREADS_MAX] pc << 32 | frame */
    uint32_t n_threads;
    struct frame *frames; /* [STATES_FRAMES_MAX], frame 0 is under the first rule */
    uint32_t n_frames;
    uint32_t *normal_frames; /* [STATES_FRAMES_MAX] of the first n_normal frames */
    uint32_t n_normal;
    struct table state_table, frame_table;
    struct table visit_table;        /* of `visits`, whose numbers begin at 1 here */
    uint64_t *visits, *todo, *found; /* [STATES_VISITS_MAX] of one closure */
    uint32_t n_visited, n_todo, n_found;
    bool found_end;
    uint64_t n_visits; /* since the caller set it to 0: the cost of a call */
};

/* Errors: QN_ENOMEM. */
int states_init(struct diag *d, const struct code *code, uint32_t margin, struct states *s);
void states_fini(struct states *s);

/* The state of the empty text. Errors: QN_ELIMIT. */
int states_start(struct diag *d, struct states *s, uint32_t *state);
/* Takes a step that is not known yet. Errors: QN_ELIMIT. */
int states_step(struct diag *d, struct states *s, uint32_t from, uint32_t byte_class, uint32_t *to);
/* The normal state of `state`. Errors: QN_ELIMIT. */
int states_normal(struct diag *d, struct states *s, uint32_t state, uint32_t *normal);

static inline uint32_t states_known(const struct states *s, uint32_t from, uint32_t byte_class) {
    return s->steps[(size_t)from * s->code->n_classes + byte_class];
}

/* Whether more than half of the states, threads or frames are used. */
bool states_crowded(const struct states *s);
/* Copies states[0, n) of `from` to `to`, which has none yet, and replaces each by its number there.
 * Errors: QN_ELIMIT, QN_ENOMEM. */
int states_copy(struct diag *d, const struct states *from, struct states *to, uint32_t *states,
                uint32_t n);

#endif

/* states.h - the states of a matcher (matcher.h): made when a step first leads to them.
 *
 * A repetition's frame says how often what is repeated has come. Texts that differ only in such
 * numbers, and are so far from all bounds that `margin` bytes do not come there, go on alike for so
 * long: they have one *normal* state. A mask looks no further than the longest token, so that a
 * string of at most 1,000 characters has one mask nearly everywhere.
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
    STATES_VISITS_MAX = 1 << 13, /* instructions at once between two bytes */
};

struct state {
    uint32_t first, n; /* threads */
    uint64_t hash;
    bool accepts;
    uint32_t normal; /* STATE_UNKNOWN: not looked for yet */
    uint32_t after;  /* where all plain characters lead; matcher.c's */
    uint8_t plain;   /* enum state_plain, or characters; matcher.c's */
    uint16_t mask;   /* slot of its mask + 1; 0: none; matcher.c's */
};

#define FRAME_CALL UINT32_MAX

struct frame {
    uint32_t pc;    /* the instruction after a call, or a REPEAT */
    uint32_t count; /* FRAME_CALL, or how often what is repeated has come before */
    uint32_t under;
};

/* Numbers of things by their hashes. It begins small: pages that are never touched cost nothing. */
struct table {
    uint32_t *slots; /* [mask + 1] 0: free */
    uint32_t mask;
};

struct states {
    const struct code *code;
    uint32_t margin; /* bytes */
    void *map;       /* of all that follows */
    size_t bytes;
    struct state *items; /* [n_max] */
    uint32_t n, n_max;
    uint32_t *steps;   /* [n_max][n_classes] */
    uint64_t *threads; /* [STATES_THREADS_MAX] pc << 32 | frame */
    uint32_t n_threads;
    struct frame *frames; /* [STATES_FRAMES_MAX], 0: under the first rule */
    uint32_t n_frames;
    uint32_t *normal_frames; /* [STATES_FRAMES_MAX] of the first n_normal frames */
    uint32_t n_normal;
    struct table state_table, frame_table;
    struct table visit_table;        /* of `visits`, whose numbers begin at 1 here */
    uint64_t *visits, *todo, *found; /* [STATES_VISITS_MAX] of one closure */
    uint32_t n_visited, n_todo, n_found;
    bool found_end;
    uint64_t n_visits; /* since the caller set it to 0: what a call has cost */
};

/* Errors: QN_ENOMEM. */
int states_init(struct diag *d, const struct code *code, uint32_t margin, struct states *s);
void states_fini(struct states *s);

/* The state of the empty text. Errors: QN_ELIMIT. */
int states_start(struct diag *d, struct states *s, uint32_t *state);
/* The step that is not known yet. Errors: QN_ELIMIT. */
int states_step(struct diag *d, struct states *s, uint32_t from, uint32_t byte_class, uint32_t *to);
/* The normal state of one. Errors: QN_ELIMIT. */
int states_normal(struct diag *d, struct states *s, uint32_t state, uint32_t *normal);

static inline uint32_t states_known(const struct states *s, uint32_t from, uint32_t byte_class) {
    return s->steps[(size_t)from * s->code->n_classes + byte_class];
}

/* Whether much of the memory is taken. */
bool states_crowded(const struct states *s);
/* Makes states[n] of `from` in `to`, which has none yet; they become their numbers there. Errors:
 * QN_ELIMIT, QN_ENOMEM. */
int states_copy(struct diag *d, const struct states *from, struct states *to, uint32_t *states,
                uint32_t n);

#endif

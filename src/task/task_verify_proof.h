/* task_verify_proof.h - what the parts of task_verify share; only they and their tests include it.
 *
 *   task_verify.c        the driver; tables: shapes, weights, counts, lists, cover
 *   task_verify_map.c    reads op.def's rows for the program's operators: shapes, access maps
 *   task_verify_touch.c  fills `accesses`: what each task reads and writes
 *   task_verify_gang.c   gangs are whole and stand on consecutive workers
 *   task_verify_order.c  no deadlock; fills `reach` and `acquire`: the order of events
 *   task_verify_rect.c   rectangles: whether they overlap
 *   task_verify_race.c   checks `accesses` against that order
 *   task_verify_clock.c  what each worker knows of the others where events ride on data
 *   task_verify_transport.c  events without a counter; flagged bytes belong to one tensor alone
 *
 * A proof lives as long as one call of task_verify. Every check returns QN_EVERIFY with a message
 * that names what is wrong, or the error of an allocation. Indices count over the whole program,
 * not over a variant, unless a comment says otherwise.
 */
#ifndef QN_TASK_TASK_VERIFY_PROOF_H
#define QN_TASK_TASK_VERIFY_PROOF_H

#include "base/arena.h"
#include "base/array.h"
#include "task/task_verify.h"

/* A rectangle of bytes: `n_rows` runs of `run` bytes, `stride` apart, the first at `at`. Space 0 is
 * the workspace; space 1 + layer is that layer's KV cache, where "bytes" are (row, head unit) cells
 * of this iteration's rows. */
struct rect {
    uint32_t space;
    bool write;
    uint64_t at, run, stride, n_rows;
    uint32_t slice, n_slices; /* shares nothing with another slice of the same operator */
    uint32_t op;
};

struct access {
    uint32_t object; /* tensor */
    uint32_t task;
    struct rect rect;
};

/* The bytes of a tensor, for finding those that share memory. */
struct extent {
    uint32_t space, object;
    uint32_t born; /* operator that writes it first */
    uint64_t start, end;
    uint32_t first_class, n_classes; /* of its accesses; see task_verify_race.c */
};

struct proof {
    struct diag *d;
    const struct prog_header *p;
    const struct prog_variant *v;
    struct arena arena;      /* of one variant */
    struct verify_map *maps; /* [n_ops] of the variant: task_verify_map.h */
    uint64_t words;          /* of one row of the closures below */
    uint64_t *reach;         /* [n_events][words] events that an event leads to */
    uint64_t *acquire;       /* the same through counters alone: what was written is visible, too */
    ARRAY(struct access) accesses; /* in the order of the tasks */
    uint32_t *first_access; /* [n_tasks + 1] of the variant's task i: first_access[i] .. [i + 1] */
    uint32_t *gang;         /* [n_tasks] of the variant: first task of its gang; itself, if alone */
    struct verify_report report;
};

static inline const struct prog_tensor *proof_tensor(const struct proof *f, uint32_t index) {
    return &PROG(f->p, TENSOR)[index];
}

/* ---- task_verify_touch.c ---- */

/* Adds to f->accesses what a task reads and writes. Wants: f->maps. */
int task_verify_touch(struct proof *f, uint32_t index);
/* All bytes of a tensor. */
struct rect task_verify_touch_whole(const struct proof *f, uint32_t index);

/* ---- task_verify_gang.c ---- */

/* Every gang is whole: its tasks are consecutive, tile by tile side by side, wait for one event,
 * trigger one, and stand on consecutive workers, the first of which is a multiple of their number.
 * Fills f->gang. */
int task_verify_gang(struct proof *f);

/* ---- task_verify_order.c ---- */

/* Every task can run. Wants: counts and lists are right. */
int task_verify_order_deadlock(struct proof *f);
/* Makes f->reach and f->acquire. Wants: no deadlock, so that events have an order. */
int task_verify_order_close(struct proof *f);
/* Every task lies between the start event and the end event. */
int task_verify_order_ending(struct proof *f);
/* Whether a task that triggers `from` is done before one that waits for `to` goes on. */
bool task_verify_order_leads(const struct proof *f, uint32_t from, uint32_t to);
/* Whether plain stores of a task that triggers `from` are visible to one that waits for `to`: only
 * counters release and acquire. An event that rides on data orders nothing but that data. */
bool task_verify_order_visible(const struct proof *f, uint32_t from, uint32_t to);

/* ---- task_verify_rect.c ---- */

/* A rectangle in rows and bytes of its tensor; of a slice, its number in place of the bytes. */
struct tile {
    uint64_t row0, row1, col0, col1;
};

/* Whether two rectangles may share a byte. */
bool task_verify_rect_overlap(const struct rect *a, const struct rect *b);
/* Whether a has all bytes of b. Both are of one tensor; a is no slice. */
bool task_verify_rect_has(const struct rect *a, const struct rect *b);
/* Fills *t from a rectangle of the tensor whose bytes are `whole`; false if it does not lie in that
 * tensor's rows. Tiles of slices and tiles of rectangles do not compare with each other. */
bool task_verify_rect_tile(const struct rect *whole, const struct rect *r, struct tile *t);
/* Whether no two of n tiles overlap. Changes their order. */
bool task_verify_rect_disjoint(struct tile *tiles, uint32_t n);

/* ---- task_verify_race.c ---- */

/* Fills f->accesses and f->first_access, and checks them against the order of events. */
int task_verify_race(struct proof *f);
/* For qsort: extents by space, start and tensor. */
int task_verify_race_by_start(const void *a, const void *b);

/* ---- task_verify_transport.c ---- */

/* Checks a variant's events that ride on data. Wants: f->accesses of that variant. */
int task_verify_transport(struct proof *f);
/* A flagged tensor shares bytes with no tensor of any variant. Once per program. */
int task_verify_transport_space(struct proof *f);

#endif

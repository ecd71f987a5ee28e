/* rt_state.h - the runtime's shared state: what the roles (worker, boundary, host) read and write
 * while a program runs. rt_memory.c plans, places and initialises it; see docs/runtime.md.
 *
 *   writer                   writes                               read by
 *   a task's worker          counters (add)                       all workers
 *   a worker without a task  the claim word (add)                 the same
 *   the worker that ends     control, blocks, slots, rows,        workers, tasks
 *     an iteration           mailbox, then `published`, the
 *                            claim word
 *   first to see a stall     stall, `stop`                        all workers, host
 */
#ifndef QN_RUNTIME_RT_STATE_H
#define QN_RUNTIME_RT_STATE_H

#include "runtime/rt_mail.h"
#include "runtime/rt_sync.h"
#include "task/program.h"

#define RT_NONE       0xffffffffu
#define RT_CLAIM_NONE 0x80000000u /* the claim word before the first iteration: all is claimed */

enum {
    RT_VARIANT_BITS = 5, /* the lowest bits of `published`; the bit RT_STEADY follows, then the
                          * iteration's number */
    RT_STEADY = 1 << RT_VARIANT_BITS, /* each token row is the previous iteration's, one position
                                       * further (rt_append.h) */
    RT_ITERATION_SHIFT = RT_VARIANT_BITS + 1,
    RT_STALL_LOOK = 256,  /* idle polls between two looks at the clock */
    RT_STALL_PARTS = 16,  /* looks at the heartbeats in a deadline */
    RT_AT_ONCE = 8,       /* requests whose state the boundary fetches together: on a GPU every
                           * fetch is a trip to L2 */
    RT_TASK_PATIENCE = 8, /* deadlines that pass before a task that is running counts as stuck */
};
#ifdef __cplusplus
static_assert(PROG_MAX_VARIANTS <= 1 << RT_VARIANT_BITS, "a variant fits into `published`");
static_assert(PROG_MAX_VARIANTS <= 32, "a bit of a word each");
#else
_Static_assert(PROG_MAX_VARIANTS <= 1 << RT_VARIANT_BITS, "a variant fits into `published`");
_Static_assert(PROG_MAX_VARIANTS <= 32, "a bit of a word each");
#endif

enum rt_stop {
    RT_GO = 0,
    RT_STOP_IDLE = 1,  /* no work is left, and the launch was told to return then */
    RT_STOP_HOST = 2,  /* the host said so */
    RT_STOP_STALL = 3, /* a deadline passed: see struct rt_stall */
};

/* `phase`: whether an iteration runs. Only a change from START or IDLE is contended. */
enum rt_phase {
    RT_PHASE_START = 0, /* launched: any worker may begin */
    RT_PHASE_RUN = 1,   /* an iteration runs, or a worker is at the boundary */
    RT_PHASE_IDLE = 2,  /* no work; the doorbell ends it */
};

/* Words that many threads poll, each alone on its line. */
struct rt_shared {
    uint32_t published; /* rt_published of the running iteration */
    uint32_t pad0[15];
    uint32_t phase; /* enum rt_phase */
    uint32_t pad1[15];
    uint32_t idle_bell; /* mail.tail as it was when the runtime went idle */
    uint32_t pad2[15];
    uint32_t stop; /* enum rt_stop */
    uint32_t pad3[15];
    uint32_t stall_claimed; /* the worker that sets it writes struct rt_stall */
    uint32_t pad4[15];
    uint32_t resume; /* `published` when the last launch ended; workers of the next launch begin
                      * there */
    uint32_t pad5[15];
    uint32_t posted; /* the iteration whose boundary has posted all its news */
    uint32_t pad6[15];
    uint32_t bell;    /* the doorbell's value as one worker read it for all ... */
    uint32_t bell_of; /* ... during that iteration */
    uint32_t pad8[14];
    uint64_t claim; /* published << 32 | index of the JIT task that is claimed next. While an
                     * iteration without JIT tasks runs, the word is an earlier iteration's
                     * (rt_claim.h) */
    uint64_t pad7[7];
};
ABI_SIZE(struct rt_shared, 576);

/* What one worker is doing, for deadlines and reports. Only its owner writes it. */
struct rt_beat {
    uint32_t beat; /* odd while it is inside a task */
    uint32_t task; /* the task that it began last */
    uint32_t head; /* the task that it waits for; RT_NONE: none */
    uint32_t pad0[13];
};
ABI_SIZE(struct rt_beat, 64);

/* The boundary's own memory. The worker that ends an iteration owns this memory until it publishes
 * the next iteration. While that iteration runs, its tasks may read variant and epoch. */
struct rt_control {
    uint32_t iteration;
    uint32_t variant, epoch; /* the running iteration's variant, and the number of this run of it */
    uint32_t taken;          /* commands taken */
    uint32_t n_running, n_waiting;
    uint32_t n_free;       /* blocks that no request holds */
    uint32_t progress;     /* a copy of mail.progress, which is never read back from the host's
                            * memory */
    uint64_t n_rows_run;   /* token rows computed, for statistics */
    uint64_t n_iterations; /* iterations begun; the number `iteration` wraps and skips */
    uint32_t context;      /* longest context of the running iteration's rows, in positions */
    uint32_t ended;        /* rt_rows.ended */
    uint32_t n_steady;     /* steady boundaries since the news were laid out; each request has that
                            * many more tokens */
    uint32_t room; /* n_steady at which the variant's contexts or some request's blocks end */

    /* The steady path of rt_boundary_prepare uses none of the following. */
    uint32_t supply; /* n_steady at which some request's blocks end; RT_NONE: never */
    uint32_t idle_first, idle_last; /* blocks that no request holds (rt_block.h); RT_NONE: none */
    uint32_t n_registered;          /* blocks whose tokens are known */
    uint32_t wait_first, wait_last; /* slots that wait, in their order (rt_waiting.h); RT_NONE */
    uint32_t n_arrived;             /* requests submitted so far */
    uint32_t n_dropped;             /* waiting requests that will never run */
    uint32_t n_preempted;           /* times that a request gave way */
    uint32_t n_idle_known;          /* of the n_free blocks, those whose tokens are known */
    uint64_t began_ns;    /* when the iteration that runs was prepared; 0: it is not measured */
    uint64_t n_cached;    /* positions that admitted requests found computed */
    uint32_t refused;     /* the waiting request that had too few blocks last; RT_NONE */
    int32_t refused_room; /* ... and how many idle blocks there were beyond those to grow into */
};
ABI_SIZE(struct rt_control, 128);

/* A block of the KV cache (rt_block.h). */
struct rt_block {
    uint32_t refs;   /* running requests that hold it */
    uint32_t writer; /* of a registered block: the slot that computes it */
    uint32_t parent; /* the block before it, or a root; RT_NONE: not registered */
    uint32_t key;    /* hash of its tokens and of all before */
    uint32_t chain_before, chain_after; /* registered: its neighbours in the bucket; RT_NONE */
    uint32_t before, after;             /* refs 0: its neighbours in the idle list; RT_NONE: none */
};
ABI_SIZE(struct rt_block, 32);

/* What the boundary knows of a request besides its rt_slot, which tasks read. */
struct rt_turn {
    int32_t priority;       /* the lower, the earlier */
    uint32_t arrival;       /* of two requests with equal priority the lower goes first */
    uint32_t before, after; /* while it waits: its neighbours; RT_NONE: none */
    uint32_t n_shared;      /* blocks of its table that it found registered when it was admitted */
    uint32_t n_ready;       /* blocks of its table that are registered and computed */
    uint32_t n_registered;  /* the first blocks of its table: those that are registered */
    uint32_t n_cached;      /* positions that it found computed when it was first admitted */
    uint32_t n_preempted;   /* times that it gave way */
    uint32_t n_admitted;    /* times that it was admitted */
    uint32_t fetched;       /* 1: its prompt lies in rt_batch.tokens */
    uint32_t pad0;
};
ABI_SIZE(struct rt_turn, 48);

/* What the boundary uses, and the linger time, which workers read. It lies apart from the
 * descriptor, because each block of a GPU keeps the descriptor in its shared memory. Parts are
 * found by their distance in bytes from this struct. */
struct rt_pool {
    uint64_t blocks_at;    /* struct rt_block [n_kv_blocks] */
    uint64_t tokens_at;    /* int32_t [n_kv_blocks][kv_block] of registered blocks */
    uint64_t buckets_at;   /* uint32_t [bucket_mask + 1] registered blocks by key */
    uint64_t turns_at;     /* struct rt_turn [n_slots] */
    uint64_t durations_at; /* uint32_t [n_variants][RT_QUARTERS] of rt_budget.h */
    uint64_t hash_seed;    /* of the blocks' keys */
    uint64_t max_step_ns;  /* while requests decode, prompts get the rows that keep an iteration
                            * below this; 0: as many as fit */
    uint64_t linger_ns;    /* until_idle: how long a launch waits for more work before it ends */
    uint32_t prefix_cache; /* 1: requests may share blocks */
    uint32_t bucket_mask;
    uint32_t rope_switch; /* prompts longer than this have other keys (spec_rope_switch) */
    uint32_t pad0;
};
ABI_SIZE(struct rt_pool, 80);

enum {
    RT_QUARTERS = 4, /* quarters of max_model_len: a variant's duration depends on the context */
};

/* What the host has to hear of one request. A boundary lays these out and posts them while the next
 * iteration runs, because the host's memory may be a bus away. */
struct rt_news {
    uint32_t slot;
    uint32_t n_known; /* known tokens, the newest one last; 0: there is no new token */
    uint32_t n_out;   /* output tokens with it; rt_boundary_post adds rt_control.n_steady to both */
    uint32_t finish;  /* enum rt_finish */
};
ABI_SIZE(struct rt_news, 16);

/* A wait whose deadline passed; written once, by the first worker to notice. */
struct rt_stall {
    uint32_t worker, task, event; /* task RT_NONE: it waited for the end of the iteration */
    uint32_t have, want;          /* triggers of this run of the event */
    uint32_t iteration, variant;
    uint32_t busy_worker, busy_task; /* a worker that is inside a task, RT_NONE: none */
    uint32_t claimed, n_jit;         /* the iteration's JIT tasks: claimed, and in all */
    uint64_t waited_ns;
};

/* The descriptor that every role gets. Constant while a program runs. Its pointers belong to the
 * backend's address space. */
struct rt {
    /* the program */
    const struct prog_variant *variants;
    const struct prog_task *tasks;
    const struct prog_event *events;
    const uint32_t *aot;
    const struct prog_list *lists; /* [variant][worker] */
    uint32_t n_variants, n_workers;
    uint32_t largest; /* variant with the most token rows: bounds what is admitted */

    /* choices */
    uint32_t until_idle;  /* 1: stop when there is no work; 0: wait for the doorbell */
    uint32_t spin_limit;  /* polls before rt_pause lets others run */
    uint32_t max_batched; /* token rows up to which prefill may fill an iteration */
    uint64_t deadline_ns;

    /* events and JIT tasks */
    uint32_t *counters; /* [n_events << counter_shift], never reset */
    uint32_t counter_shift;
    const uint32_t *jit;   /* [jit_first[n_variants]] the JIT tasks, in order of linearization */
    const uint32_t *ranks; /* one per entry of aot: the variant's JIT tasks that come before it */
    struct rt_beat *beats;
    struct rt_shared *shared;
    struct rt_stall *stall;

    /* the boundary */
    struct rt_control *control;
    uint32_t *epochs;  /* [n_variants] times started */
    uint32_t *running; /* [n_slots] slots in order of admission */
    struct rt_pool *pool;
    struct rt_news *news; /* [n_slots] of the last boundary, until it has posted them */
    struct rt_batch *batch;

    /* the mailbox */
    struct rt_mail *mail;
    const struct rt_request *mail_requests; /* [n_slots]; may be batch->requests itself */
    struct rt_command *commands;            /* [command_mask + 1] */
    uint32_t command_mask;
    struct rt_post *posts;  /* [n_slots]; the places for masks lie behind them (rt_mask.h) */
    const int32_t *prompts; /* [n_slots][max_model_len]; may be batch->tokens itself */
    int32_t *out_tokens;    /* [n_slots][max_model_len] copies for the host; NULL: not needed */
    float *out_logprobs;    /* likewise */

    struct rt_trace *trace; /* rt_trace.h; NULL: none, the usual case */

    /* Each variant's n_rows | n_logit_rows << 16, copied for the boundary. */
    uint32_t shapes[PROG_MAX_VARIANTS];
    uint32_t contexts[PROG_MAX_VARIANTS];      /* longest context that its rows may have */
    uint32_t decode_only;                      /* one bit per variant: whether it is decode only */
    uint32_t jit_first[PROG_MAX_VARIANTS + 1]; /* each variant's range of jit */
};

/* One worker's own memory. */
struct rt_worker {
    uint32_t id;
    uint32_t published;    /* the iteration that it is in, as published */
    uint32_t next, end;    /* its AOT tasks of that iteration that are left: range of rt.aot */
    uint32_t epoch;        /* of that iteration's variant; valid while it has a task of it */
    uint32_t list_variant; /* the variant that `list` is of; RT_NONE: none */
    struct prog_list list;
    uint32_t claimed;    /* index of the JIT task that it claimed and has not run; RT_NONE */
    uint32_t epoch_of;   /* without AOT tasks: `published` of the iteration that `epoch` is of */
    uint32_t boundary;   /* 1: it activated the end event and owes the boundary */
    uint32_t asked;      /* 1: rt_boundary_ask has returned 1 in this iteration */
    uint32_t bell;       /* the doorbell's value that its boundary uses */
    uint32_t owes_post;  /* 1: its boundary's news have not been posted */
    uint32_t n_news;     /* news to be posted */
    uint32_t context;    /* longest context of the rows that it has laid out */
    uint32_t supply;     /* steady boundaries until some request's blocks end */
    uint32_t hungry;     /* 1: some request lacks a block for its next rows */
    uint32_t owes_start; /* 1: the start event has not been triggered either */
    uint32_t task, task_epoch, task_end; /* running; its iteration's epoch and end event */
    uint32_t spins;                      /* polls since it last did something */
    uint32_t beats_seen;
    uint64_t idle_since;    /* rt_now_ns of the first look without progress; 0: none yet */
    uint64_t looked;        /* of the last look at the heartbeats */
    uint64_t lingers_since; /* when it began to wait for work before the launch ends; 0: not yet */
};

/* rt_shared.published. */
#define RT_VARIANT_MASK ((1u << RT_VARIANT_BITS) - 1)

RT_FN uint32_t rt_published(uint32_t iteration, int steady, uint32_t variant) {
    return iteration << RT_ITERATION_SHIFT | (steady ? RT_STEADY : 0) | variant;
}

RT_FN uint32_t rt_variant_of(uint32_t published) {
    return published & RT_VARIANT_MASK;
}

RT_FN uint32_t rt_iteration_of(uint32_t published) {
    return published >> RT_ITERATION_SHIFT;
}

RT_FN void *rt_pool_at(const struct rt *rt, uint64_t distance) {
    return (char *)rt->pool + distance;
}

RT_FN struct rt_block *rt_block_of(const struct rt *rt, uint32_t block) {
    return (struct rt_block *)rt_pool_at(rt, rt->pool->blocks_at) + block;
}

RT_FN struct rt_turn *rt_turn_of(const struct rt *rt, uint32_t slot) {
    return (struct rt_turn *)rt_pool_at(rt, rt->pool->turns_at) + slot;
}

RT_FN uint32_t *rt_counter(const struct rt *rt, uint32_t event) {
    return &rt->counters[(uint64_t)event << rt->counter_shift];
}

#endif

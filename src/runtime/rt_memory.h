/* rt_memory.h - plans and places the runtime's state: how many bytes, where each part lies, what it
 * holds before the first launch. Used by every backend; all of it is fixed before the first token.
 *
 * Two blocks, because beside a GPU they lie in different memories:
 *
 *   state   shared | stall | control | counters | beats | JIT tasks | ranks | epochs | running |
 *           news | pool | turns | blocks | block tokens | buckets | durations | batch | slots |
 *           requests | rows | block table | tokens | logprobs | lists | tops | biases
 *   mail    mail | commands | posts | masks | routes [| requests | prompts | out tokens |
 *           out logprobs]
 *
 * Every part begins on a multiple of 64. The bracketed parts exist when the mailbox is `separate`
 * (host memory beside a device); otherwise both sides use the ones in `state`.
 *
 * A backend with memory of its own plans, makes both images in host memory with rt_memory_init,
 * copies them over, and binds the descriptor to the addresses that its kernel sees.
 */
#ifndef QN_RUNTIME_RT_MEMORY_H
#define QN_RUNTIME_RT_MEMORY_H

#include "base/status.h"
#include "runtime/rt_state.h"

#include <stdbool.h>

/* What an engine chooses. A backend hands it on as it is. */
struct rt_choices {
    uint32_t n_top;    /* rt_lists.n_top; 0 where there are no lists */
    bool routes;       /* keep the experts of each position (rt_batch.routes) */
    bool prefix_cache; /* this and the next three: as in struct rt_pool */
    uint64_t hash_seed, max_step_ns, linger_ns;
};

struct rt_options {
    struct rt_choices choices;
    uint32_t n_kv_blocks; /* at least 1 */
    uint32_t max_batched; /* token rows that prefill fills an iteration up to; 0: no limit */
    uint32_t spin_limit;  /* polls before a waiting worker lets other threads run */
    bool until_idle;      /* a launch ends when there is no work left */
    bool separate;        /* the mailbox is in other memory than the state, which has no lists */
    uint64_t deadline_ns; /* 0: none */
};

enum rt_part {
    /* state */
    RT_PART_SHARED,
    RT_PART_STALL,
    RT_PART_CONTROL,
    RT_PART_COUNTERS,
    RT_PART_BEATS,
    RT_PART_JIT,
    RT_PART_RANKS,
    RT_PART_EPOCHS,
    RT_PART_RUNNING,
    RT_PART_NEWS,
    RT_PART_POOL,
    RT_PART_TURNS,
    RT_PART_BLOCKS,
    RT_PART_BLOCK_TOKENS,
    RT_PART_BUCKETS,
    RT_PART_DURATIONS,
    RT_PART_BATCH,
    RT_PART_SLOTS,
    RT_PART_REQUESTS,
    RT_PART_ROW_TOKEN,
    RT_PART_ROW_SLOT,
    RT_PART_ROW_POSITION,
    RT_PART_LOGIT_ROW,
    RT_PART_BLOCK_TABLE,
    RT_PART_TOKENS,
    RT_PART_LOGPROBS,
    RT_PART_READS,
    RT_PART_LISTS,
    RT_PART_TOPS,
    RT_PART_BIASES,
    /* mail */
    RT_PART_MAIL,
    RT_PART_COMMANDS,
    RT_PART_POSTS,
    RT_PART_MASKS,
    RT_PART_ROUTES,
    RT_PART_MAIL_REQUESTS,
    RT_PART_PROMPTS,
    RT_PART_OUT_TOKENS,
    RT_PART_OUT_LOGPROBS,
    N_RT_PARTS,
    RT_FIRST_MAIL_PART = RT_PART_MAIL,
};

struct rt_memory {
    struct rt_options options; /* with everything chosen */
    uint64_t offset[N_RT_PARTS], bytes[N_RT_PARTS];
    uint64_t state_bytes, mail_bytes;
    uint32_t n_commands, n_jit, n_buckets;
    uint32_t counter_shift, max_rows, max_logit_rows, max_blocks;
};

/* Plans for a program that program_check has passed. Errors: QN_EINVAL, QN_ELIMIT. */
int rt_memory_plan(struct diag *d, const struct prog_header *program,
                   const struct rt_options *options, struct rt_memory *m);

/* Sets every field of *rt and *batch for blocks at `state` and `mail` and a program at `program`.
 * These are the addresses that the runtime will see; nothing is read or written there. */
void rt_memory_bind(const struct rt_memory *m, const struct prog_header *layout,
                    const void *program, void *state, void *mail, struct rt *rt,
                    struct rt_batch *batch);

/* Fills zeroed images of both blocks with the state before the first launch. `batch` is the one
 * from rt_memory_bind. */
void rt_memory_init(const struct rt_memory *m, const struct prog_header *program, void *state,
                    void *mail, const struct rt_batch *batch);

/* Makes a runtime that has stopped idle ready for another launch (host view of the state). */
void rt_memory_relaunch(struct rt_shared *shared);

#endif

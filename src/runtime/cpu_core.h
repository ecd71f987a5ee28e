/* cpu_core.h - a program with all the memory that it runs in on the CPU: what the threaded backend
 * (cpu_backend.h) and the single-threaded interpreter (task_sim.h) have in common.
 *
 * It is one anonymous mapping, planned before it is taken. Untouched pages cost nothing.
 *
 *   state | mail | workspace | KV cache, layer by layer | rope | scratch, worker by worker
 */
#ifndef QN_RUNTIME_CPU_CORE_H
#define QN_RUNTIME_CPU_CORE_H

#include "kernels/cpu/cpu_kernel.h"
#include "runtime/mailbox.h"
#include "runtime/rt_memory.h"
#include "task/program_map.h"

/* Runs the body of program task `task` as worker `worker`; `user` from the config. For tests: it
 * replaces the kernels, SAMPLE included. */
typedef void cpu_run_task(void *user, const struct rt_batch *batch, uint32_t worker, uint32_t task);

struct cpu_config {
    const struct prog_header *program; /* borrowed; program_check has passed it */
    /* Borrowed; base addresses, by index in SECTION_WEIGHT. A stack (graph/kernel_graph.h) has the
     * address of the list of its tensors' addresses. */
    const void *const *weights;
    uint32_t n_kv_blocks;        /* 0: enough for n_slots requests of max_model_len */
    const char *isa;             /* cpu_isa_select's name; NULL: the best */
    double deadline_s;           /* a wait longer than this is a stall; 0: 10, < 0: none */
    uint32_t max_batched_tokens; /* 0: no limit besides the largest variant */
    struct rt_choices choices;
    bool serve; /* threads wait for requests; otherwise cpu_backend_run runs until idle */
    struct rt_trace *trace; /* borrowed; rt_trace.h; NULL: no trace */
    /* For tests: replaces the system's run delay of a worker's thread, in ns, in all (cpu_crowd.h).
     */
    uint64_t (*run_delay)(void *user, uint32_t worker);
    uint32_t crowd_hurry;   /* ... and the times there are divided by this; 0: 1 */
    cpu_run_task *run_task; /* NULL: the kernels. If set, weights and kernels are not touched */
    void *user;
};

/* Bytes that an engine will take. */
struct cpu_plan {
    uint64_t workspace; /* activations */
    uint64_t kv;        /* n_kv_blocks * kv_block */
    uint64_t kv_block;  /* one block of kv_block positions, in all layers */
    uint32_t n_kv_blocks;
    uint64_t requests; /* tokens, log-probabilities, block tables, mailbox */
    uint64_t runtime;  /* counters, the JIT order and the like */
    uint64_t rope, scratch;
    uint64_t total;
};

struct cpu_core {
    struct cpu_config config;
    struct cpu_plan plan;
    struct rt_memory memory;
    struct rt rt;
    struct rt_batch *batch; /* = rt.batch */
    struct mailbox mailbox;
    char *map;                /* plan.total bytes */
    void **tensors;           /* [program tensors] base addresses */
    struct program_maps maps; /* empty where config.run_task is set */
    struct cpu_rope rope;
    const struct cpu_isa *isa;
    char *scratch;
    uint64_t scratch_stride;
};

/* Says what cpu_core_open would take. Errors: QN_EINVAL, QN_ELIMIT. */
int cpu_core_plan(struct diag *d, const struct cpu_config *config, struct cpu_plan *plan);

/* Takes the memory and makes everything ready for the first launch. until_idle as rt_options has
 * it; n_cpus: how many may be used. Errors: as plan; QN_ENOMEM; QN_EUNSUPPORTED for an isa. */
int cpu_core_open(struct diag *d, const struct cpu_config *config, bool until_idle, uint32_t n_cpus,
                  struct cpu_core *core);
void cpu_core_close(struct cpu_core *core);

/* Runs the body of a task. */
void cpu_core_run(const struct cpu_core *core, uint32_t worker, uint32_t task);

/* Between iterations: checks that every counter is exactly what the runs of its variant make it.
 * Errors: QN_EVERIFY naming the event. */
int cpu_core_check(struct diag *d, const struct cpu_core *core);

#endif

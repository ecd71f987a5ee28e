/* task_sim.h - the oracle: one thread that runs a program's tasks one after the other, in the order
 * of linearization, with the same boundary and the same kernels as the CPU backend. It checks
 * before every task that its event is activated, and after every iteration that all counters are
 * exact. Its results have the same bits as the backend's, whatever the backend's workers do. */
#ifndef QN_RUNTIME_TASK_SIM_H
#define QN_RUNTIME_TASK_SIM_H

#include "runtime/cpu_core.h"

struct task_sim {
    struct cpu_core core; /* requests go through core.mailbox */
    uint64_t n_iterations, n_tasks;
};

/* The config's choices about threads and deadlines have no effect. */
int task_sim_open(struct diag *d, const struct cpu_config *config, struct task_sim *sim);
void task_sim_close(struct task_sim *sim);

/* Runs until no request is left. Errors: QN_EVERIFY naming task and event. */
int task_sim_run(struct diag *d, struct task_sim *sim);

#endif

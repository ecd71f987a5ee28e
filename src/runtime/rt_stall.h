/* rt_stall.h - says in words which worker waited for which event when a deadline passed. */
#ifndef QN_RUNTIME_RT_STALL_H
#define QN_RUNTIME_RT_STALL_H

#include "base/status.h"
#include "runtime/rt_state.h"

/* Reports the stall that rt->stall describes; everything in *rt must be readable by the host and
 * the runtime stopped. Looks for the cause as well: the first event, in the order of linearization,
 * that lacks triggers; the tasks that should have triggered it had all they needed. Returns
 * QN_ESTALL. */
int rt_stall_fail(struct diag *d, const struct prog_header *program, const struct rt *rt);

#endif

/* cuda_group.h - n GPUs that run one program together, seen from the engine as one.
 *
 *                    ┌ mailbox ┐ ──► rank 0 (leads): context, memory, kernel, watcher
 *   submit, cancel ─►│  one    │ ──► rank 1
 *   poll, wait     ◄─│         │ ──► ...
 *                    └─────────┘
 *
 * The group owns what exists once: driver, plan, mailbox, the pace of waiting. A rank (cuda_rank.h)
 * owns what exists per GPU. Requests go to every rank, in one order. Tokens are read from rank 0,
 * and a request has ended when it has ended on every rank. Today's programs have one rank. In a
 * program of several ranks each rank has all of the model. The ranks do not talk to each other, so
 * their iterations may differ, but their tokens do not.
 *
 * A rank that breaks breaks the group: calls then say which rank broke, and why.
 */
#ifndef QN_ENGINE_CUDA_GROUP_H
#define QN_ENGINE_CUDA_GROUP_H

#include "engine/cuda_rank.h"
#include "engine/expect.h"

struct cuda_group {
    struct backend_cuda_options options;
    struct cuda_api own; /* the driver, when options brought none */
    struct cuda_plan plan;
    struct cuda_shared shared;
    struct mailbox mailbox;
    struct expect expect;
    struct backend_cuda_stats stats; /* as far as opening knows them */
    struct cuda_rank ranks[PROG_MAX_RANKS];
};

/* Takes the driver of the options, or else opens the machine's into *own; *api points at it. */
int cuda_group_driver(struct diag *d, const struct backend_cuda_options *options,
                      struct cuda_api *own, const struct cuda_api **api);
/* The GPU that rank 0 has: $QN_CUDA_DEVICE, else 0. Rank r has the r-th after it. */
int cuda_group_ordinal(void);

/* g->options are set. To be closed also after an error. Errors: QN_EDEVICE, QN_ELIMIT, QN_ENOMEM,
 * QN_EUNSUPPORTED. */
int cuda_group_open(struct diag *d, const struct prog_header *program,
                    const struct weights *weights, const struct backend_config *config,
                    struct cuda_group *g);
void cuda_group_close(struct cuda_group *g);

/* As backend.h says. */
int cuda_group_submit(struct diag *d, struct cuda_group *g, const struct rt_request *request,
                      const struct rt_extras *extras, const int32_t *prompt, uint32_t *slot);
int cuda_group_cancel(struct diag *d, struct cuda_group *g, uint32_t slot);
int cuda_group_poll(struct diag *d, struct cuda_group *g, uint32_t slot, struct mailbox_view *view);
int cuda_group_release(struct diag *d, struct cuda_group *g, uint32_t slot);
int cuda_group_wait(struct diag *d, struct cuda_group *g, uint32_t *seen, double timeout_s);
int cuda_group_wait_idle(struct diag *d, struct cuda_group *g);

/* The options of the protocol that a program runs with. */
struct rt_options cuda_group_protocol(const struct backend_cuda_options *o,
                                      const struct backend_config *config);

#endif

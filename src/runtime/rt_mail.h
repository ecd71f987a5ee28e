/* rt_mail.h - the mailbox: everything that the host and a running engine tell each other.
 *
 * It lies in memory that both see (plain memory on the CPU, mapped host memory beside a GPU). Every
 * word has one writer at a time; the arrow says which side.
 *
 *   host -> runtime   commands   a ring of {kind, slot}; `tail` counts them and is the doorbell
 *                     requests   [n_slots], prompts [n_slots][max_model_len]: written before the
 *                                command that names the slot
 *                     masks      [n_slots]: which tokens a request may have next (rt_mask.h)
 *   runtime -> host   head       commands taken, for flow control
 *                     posts      [n_slots] {n_out, finish ...}: output tokens that may be read
 *                     progress   changes at every iteration boundary; the host sleeps on it
 *                     counts     KV blocks, requests
 *
 * A slot belongs to the runtime from the SUBMIT command until `finish` is not RT_RUNNING, then to
 * the host again. Commands are taken in order, so a CANCEL never hits the slot's next request.
 */
#ifndef QN_RUNTIME_RT_MAIL_H
#define QN_RUNTIME_RT_MAIL_H

#include "runtime/rt_batch.h"

enum rt_command_kind { RT_COMMAND_SUBMIT = 1, RT_COMMAND_CANCEL = 2 };

struct rt_command {
    uint32_t kind; /* enum rt_command_kind */
    uint32_t slot;
};

/* How full the engine is. A boundary that changes these numbers writes them before it posts
 * finished requests. Each number is whole; all are of one boundary once nothing runs. */
struct rt_counts {
    uint32_t n_free;      /* KV blocks that no request holds ... */
    uint32_t n_cached;    /* ... and of these, those whose tokens are known */
    uint32_t n_running;   /* requests that hold blocks */
    uint32_t n_waiting;   /* requests in slots that hold none */
    uint32_t n_preempted; /* times that a request gave way */
};

/* Each of the first five words is alone on its cache line. */
struct rt_mail {
    uint32_t tail; /* host: commands posted; the doorbell */
    uint32_t pad0[15];
    uint32_t head; /* runtime: commands taken */
    uint32_t pad1[15];
    uint32_t progress; /* runtime: grows at every boundary; also when it stops */
    uint32_t pad2[15];
    uint32_t host_sleepers; /* host: threads that may be sleeping on progress */
    uint32_t pad3[15];
    uint32_t heartbeat; /* runtime: iterations begun */
    uint32_t pad4[15];
    struct rt_counts counts; /* runtime */
    uint32_t pad5[11];
};
ABI_SIZE(struct rt_mail, 384);

struct rt_post {
    uint32_t n_out;       /* output tokens that the host may read */
    uint32_t finish;      /* enum rt_finish; stored after n_out */
    uint32_t n_cached;    /* positions of the prompt that were computed already; before n_out */
    uint32_t n_preempted; /* times that its blocks were taken away; before n_out */
};
ABI_SIZE(struct rt_post, 16);

#endif

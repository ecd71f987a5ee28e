/* backend.h - where a program runs: one row of a table per backend.
 *
 * The engine knows nothing else about a device. A backend describes its device, plans its memory,
 * and serves requests once it is open. Requests and tokens go through runtime/mailbox.h in every
 * backend.
 *
 *   available ─ device ─ [compile] ─ plan ─ [weights] ─ open ═ submit, wait, poll, release ═ close
 *
 * Adding a backend: backend_<name>.c with its row, and one line in backend.c.
 */
#ifndef QN_ENGINE_BACKEND_H
#define QN_ENGINE_BACKEND_H

#include "model/weights.h"
#include "plan/device.h"
#include "runtime/mailbox.h"
#include "runtime/rt_memory.h"
#include "task/program.h"

#include <stddef.h>
#include <stdint.h>

/* What the user asked for. */
struct backend_config {
    uint32_t n_workers;        /* 0: the device's choice */
    const char *isa;           /* CPU instruction set; NULL: the best */
    uint32_t n_kv_blocks;      /* from the engine's plan */
    uint32_t max_batched;      /* token rows that prefill fills an iteration up to */
    struct rt_choices choices; /* n_top: only where lists_top */
    struct rt_trace *trace;    /* rings to write (trace.h), NULL: none; only where `traces` */
    uint64_t trace_bytes;      /* for `plan`: the limit of trace_rings_new, 0: no trace */
    /* Called while an instance opens, as quern.h's qn_progress_fn; may be NULL. */
    void (*progress)(void *user, const char *stage, uint64_t done, uint64_t total);
    void *progress_user;
};

/* What the device offers. */
struct backend_device {
    struct device compute; /* what plans know of it */
    uint64_t memory_bytes; /* that may be used at all; the engine takes a share of it */
    char name[96];         /* "2 threads, avx512bf16" */
};

/* Bytes of everything but the weights. */
struct backend_plan {
    uint64_t kv_bytes, workspace_bytes, other_bytes;
};

struct rt_trace;
struct backend_instance; /* each backend's own */

struct backend {
    const char *name;
    enum prog_target target;
    bool traces;      /* fills config.trace */
    bool makes_dummy; /* open makes up weights that are NULL, or absent, where they are needed */
    bool lists_top;   /* supports rt_request.n_top and the biases of rt_extras */
    /* QN_OK, or QN_EUNSUPPORTED/QN_EDEVICE with what is missing. */
    int (*available)(struct diag *d);
    /* Errors: QN_EUNSUPPORTED (the isa). */
    int (*device)(struct diag *d, const struct backend_config *config, struct backend_device *out);
    int (*plan)(struct diag *d, const struct prog_header *program,
                const struct backend_config *config, struct backend_plan *out);
    /* Takes the memory and starts serving. program and weights (recipe_load's) stay the
     * caller's and must outlive the instance. */
    int (*open)(struct diag *d, const struct prog_header *program, const struct weights *weights,
                const struct backend_config *config, struct backend_instance **out);
    /* As in mailbox.h, on an open instance; all may be called from any thread. After a stall submit
     * and wait return QN_ESTALL; the message names the worker that waited and its event. */
    int (*submit)(struct diag *d, struct backend_instance *i, const struct rt_request *request,
                  const struct rt_extras *extras, const int32_t *prompt, uint32_t *slot);
    int (*cancel)(struct diag *d, struct backend_instance *i, uint32_t slot);
    int (*poll)(struct diag *d, struct backend_instance *i, uint32_t slot,
                struct mailbox_view *view);
    int (*release)(struct diag *d, struct backend_instance *i, uint32_t slot);
    /* For mailbox_counts, and for the mask thread: mailbox_given, mailbox_mask, mailbox_wait. */
    struct mailbox *(*mailbox)(struct backend_instance *i);
    /* Sleeps until the number that *seen holds from an earlier call (0 at first) is no longer the
     * current one, at most timeout_s; updates *seen. */
    int (*wait)(struct diag *d, struct backend_instance *i, uint32_t *seen, double timeout_s);
    /* Copies rt_reads; may be called at any time. NULL: the backend has no experts. */
    void (*reads)(struct backend_instance *i, struct rt_reads *reads);
    /* Measures for about `seconds` how many bytes of weights per second can be read with nothing
     * else to do. */
    int (*measure_read)(struct diag *d, struct backend_instance *i, double seconds, double *rate);
    /* Waits until config.trace has all that was recorded; NULL: it always has. Errors: QN_EBUSY
     * (requests are running). */
    int (*trace_wait)(struct diag *d, struct backend_instance *i);
    void (*close)(struct backend_instance *i); /* NULL is fine */
};

extern const struct backend backend_cpu;
extern const struct backend backend_cuda;

/* The backend for --backend: "auto" (or NULL) is the first of the table that is available.
 * Errors: QN_EINVAL (no such name), else what available() says. */
int backend_find(struct diag *d, const char *name, const struct backend **out);

size_t backend_count(void);
/* Row i: its name, and whether it can be used (QN_OK, or the reason in *d). */
const char *backend_name(size_t i);
int backend_available(struct diag *d, size_t i);

#endif

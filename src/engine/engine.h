/* engine.h - an open engine and its requests, as the files of this folder see them.
 *
 *   engine.c   open: model ─ plan ─ compile ─ weights ─ backend; close
 *   plan.c     numbers that the user left open, and whether it all fits
 *   sampling_params.c  what a request may ask for, as the runtime is told
 *   session.c  requests: queue ─ slot ─ tokens ─ text, stop strings, finish
 *   notifier.c a file descriptor for event loops
 */
#ifndef QN_ENGINE_ENGINE_H
#define QN_ENGINE_ENGINE_H

#include "engine/api.h" /* first: error codes */

#include "base/arena.h"
#include "base/array.h"
#include "engine/backend.h"
#include "engine/compile.h"
#include "engine/fair_queue.h"
#include "engine/mask_thread.h"
#include "engine/notifier.h"
#include "engine/stop.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "model/weights.h"

#include <pthread.h>
#include <sys/types.h>

/* One request. It belongs to the user; while it is queued or in a slot the engine points to it.
 *
 *   QUEUED ─ a slot is free ─► ACTIVE ─ the runtime finished it ─► DONE
 *
 * ids, logprobs and times are filled (by any thread, under the engine's mutex) up to n_seen, and
 * never change below it; the rest belongs to the thread that calls qn_request_next. */
enum request_state { REQUEST_QUEUED, REQUEST_ACTIVE, REQUEST_DONE };

/* Lists of the engine that a request may be in, besides its queue. */
enum request_list {
    LIST_READY, /* qn_request_next would return at once; first the one not asked for longest */
    N_REQUEST_LISTS
};
struct request_link {
    struct qn_request *before, *after;
    bool listed;
};
struct request_ends {
    struct qn_request *first, *last;
    size_t n;
};

struct qn_request {
    struct qn_engine *engine;
    enum request_state state;
    struct request_link links[N_REQUEST_LISTS];
    struct fair_place place; /* in the queue, while QUEUED */
    uint32_t slot;           /* while ACTIVE */
    uint32_t wait_seen;      /* *seen of the backend's wait for this request */
    bool canceled;
    struct rt_request runtime;      /* as it is handed over */
    int32_t *prompt;                /* [runtime.n_prompt] */
    int32_t *ids;                   /* [runtime.max_tokens]; allocated when the request gets a slot,
                                     * as are the following arrays of output */
    float *logprobs;                /* [runtime.max_tokens] */
    uint64_t *times;                /* [runtime.max_tokens] */
    uint32_t n_eos;                 /* the model's own ids in runtime.stop, which come first */
    uint32_t n_top, n_prompt_top;   /* most likely tokens wanted beside each token */
    bool scores;                    /* log-probabilities of the prompt are wanted */
    qn_token_logprob *tops;         /* [runtime.max_tokens][n_top] */
    float *prompt_logprobs;         /* [runtime.n_prompt]; NULL unless `scores`, as the next */
    qn_token_logprob *prompt_tops;  /* [runtime.n_prompt][n_prompt_top] */
    uint16_t *routes;               /* [n_prompt + max_tokens][engine->route_stride]; may be NULL */
    struct rt_token_value *biases;  /* [runtime.n_biases] */
    struct guide *guide;            /* while QUEUED; NULL: the output is free */
    uint32_t n_seen;                /* tokens that the runtime has given */
    uint32_t n_cached, n_preempted; /* as mailbox_view has them */
    struct diag refusal; /* why the runtime did not take it or its logits are no numbers */
    uint64_t seen_ns;    /* when the last token was seen; at first the time of submission */

    uint32_t n_given;  /* tokens that the user has got */
    int finish_reason; /* as the user knows it */
    struct token_stream stream;
    struct stop_matcher stop;
    struct strbuf decoded; /* one token's text, before stop strings */
    struct strbuf piece;   /* what qn_output.text points to */
};

/* A slot in use. The request is NULL when it is over, when the user freed it before the runtime was
 * done, and when it was refused a next token: then the slot only waits to be released. */
struct place {
    uint32_t slot;
    struct qn_request *request;
    struct guide *guide; /* NULL: the output is free; else the mask thread holds it, too */
};

struct qn_engine {
    struct arena arena; /* strings */
    struct model *model;
    struct prog_header *program;
    struct weights *weights;
    const struct backend *backend;
    struct backend_instance *instance;
    struct qn_tokenizer *tokenizer; /* NULL: the directory has none */
    struct guide_texts texts;       /* of structured outputs */
    struct mask_thread masks;       /* likewise */
    struct rt_trace *trace;         /* NULL: none; outlives the instance, which writes it */
    struct qn_engine_info info;
    uint64_t seed;
    uint32_t max_logprobs; /* most likely tokens that a request may list */
    uint32_t route_stride; /* rt_batch.route_stride; 0: no routes are kept */
    pid_t process;         /* the process that opened it; no other one may use it */

    pthread_mutex_t mutex;      /* over everything below, and the shared part of requests */
    ARRAY(struct place) active; /* slots in use, at most max_num_seqs */
    struct request_ends lists[N_REQUEST_LISTS];
    struct fair_queue queue; /* requests that are QUEUED */
    uint32_t max_queue;
    uint64_t n_submitted;           /* seeds the requests that bring no seed */
    uint64_t n_looked_for, n_found; /* prompt tokens in the prefix cache (qn_engine_stats) */
    struct notifier notifier;
};

/* ---- plan.c ---- */

/* Parameters with every default chosen. */
struct engine_plan {
    struct backend_config config;
    struct backend_device device;
    struct compile_options compile;
    uint64_t memory_limit;   /* bytes that may be used in all */
    uint64_t kv_block_bytes; /* of all layers */
    bool kv_fixed;           /* the user said how large the cache is */
    uint64_t kv_token_bytes;
    uint64_t weight_bytes; /* as the kernels want them */
};

/* Chooses what must be known before compiling. Errors: QN_EINVAL naming the parameter, QN_ELIMIT
 * with the figures when the weights and one request do not fit. */
int plan_before(struct diag *d, const qn_engine_params *params, const struct model *model,
                const struct backend *backend, struct engine_plan *plan);
/* Writes the memory plan of a compiled program into info's fields. Errors: QN_ELIMIT. */
int plan_memory(struct diag *d, const struct backend *backend, const struct prog_header *program,
                struct engine_plan *plan, struct qn_engine_info *info);
/* The compile options of a program that was read from a file, and whether it fits model and device.
 */
int plan_from_program(struct diag *d, const qn_engine_params *params, const struct model *model,
                      const struct prog_header *program, struct engine_plan *plan);

/* ---- engine.c ---- */

/* The parameters as this library knows them; strings that were NULL get their defaults. */
int engine_params(struct diag *d, const qn_engine_params *given, qn_engine_params *full);
/* Waits until e->trace has all that was recorded. Errors: QN_EINVAL (the engine was opened without
 * a trace), QN_EBUSY (requests are running). */
int engine_trace_wait(struct diag *d, qn_engine *e);
/* Opens the model that params name. */
int engine_model(struct diag *d, const qn_engine_params *params, struct model **out);
/* Opens the tokenizer of a directory, NULL where there is none. */
int engine_tokenizer(struct diag *d, const char *dir, struct qn_tokenizer **out);
/* The program of params: read from params->program, else compiled. hook and report may be NULL;
 * after reading a file *report is untouched. */
int engine_program(struct diag *d, const qn_engine_params *params, struct model *model,
                   const struct backend *backend, const struct compile_hook *hook,
                   struct compile_report *report, struct engine_plan *plan,
                   struct prog_header **out);

/* ---- session.c ---- */
/* With the mutex held: moves tokens out of the slots, and queued requests into free slots. */
int session_pump(struct diag *d, struct qn_engine *e);
/* Sets *n to the requests that are queued or in slots. */
int session_busy(struct diag *d, struct qn_engine *e, size_t *n);
void session_end(struct qn_engine *e); /* after the backend is closed */

#endif

/* compile.h - from a model to a verified program: the table of contents of the compiler.
 *
 * compile.c calls the stages in order, one call each; every stage is a file of src/task/. The
 * result is deterministic: the same model and options give the same bytes.
 */
#ifndef QN_ENGINE_COMPILE_H
#define QN_ENGINE_COMPILE_H

#include "model/model.h"
#include "plan/variant.h"
#include "task/program.h"
#include "task/task_graph.h"

/* Positions of a request unless the user says how many, or the model has fewer. Longer contexts
 * must be requested, since they cost memory from the start. */
enum { COMPILE_LEN_MOST = 32768 };

/* What the compiled program is for. compile_options_init sets the defaults. */
struct compile_options {
    enum prog_target target;
    uint32_t n_ranks;            /* GPUs, each with all of the model; 1 on the CPU */
    struct device device;        /* each of them */
    uint32_t n_slots;            /* --max-num-seqs: requests in flight, 1..PROG_MAX_SEQS */
    uint32_t max_model_len;      /* positions per request */
    uint32_t max_batched_tokens; /* rows of the largest variant: a prefill chunk, a power of two */
    uint32_t kv_block;           /* positions per KV block, divides ATTENTION_PIECE */
    enum dtype kv_dtype;
    uint32_t logit_rows; /* logit rows that an iteration has room for, per request */
    bool cut_qkv;        /* splits QKV into projections and heads, for more workers than heads;
                          * CUDA */
    bool join_heads;     /* ... and joins the heads with attention, where there are few rows */
    uint32_t whole_from; /* ... from how many rows on one task attends to a whole short context (0:
                          * none; 1, 2: with or without single rows) */
    bool group_experts;  /* experts of many rows as a grouped GEMM; Hopper */
    bool static_experts; /* ablation: an expert's work has fixed workers, whichever experts are
                          * chosen */
    bool cut_linear; /* LINEAR as split-K, for 17 to SPLITK_ROWS rows where weights do not stream
                      * (device_streams()); Hopper */
    struct task_options task; /* decomposition, launch policy, ablations */
};

void compile_options_init(struct compile_options *o);

/* ... for a GPU, the fastest known. */
void compile_options_cuda(struct compile_options *o, const struct device *device);

/* What each stage left behind, for one variant. */
struct compile_variant_report {
    uint32_t n_rows, context;
    bool decode_only;         /* only for rows of different requests */
    struct plan_variant plan; /* the plan, with its choices */
    struct kgraph_stats kernel;
    struct task_stats after[N_TASK_STAGES]; /* by enum task_stage */
};

/* Filled by compile_model when asked for; the dump hook sees every stage's text. */
struct compile_report {
    struct compile_variant_report variants[PROG_MAX_VARIANTS];
    uint32_t n_variants;
    double seconds_total, seconds_verify;
    uint64_t peak_bytes; /* of compiler memory */
};

/* What a stage's text describes: a variant; all zeros: the program. */
struct compile_shown {
    uint32_t n_rows;
    uint32_t context; /* of a variant for short contexts only; 0: it takes all */
    bool decode_only; /* it is for rows of different requests only */
};

/* Called after each stage of each variant, and at the end with the program; each may be NULL. Their
 * arguments are valid for the call; an error that they return ends the compile. */
struct compile_hook {
    void (*stage)(void *user, struct compile_shown of, const char *stage, const char *text);
    int (*kernel)(void *user, struct diag *d, const struct kgraph *k);
    int (*tasks)(void *user, struct diag *d, const struct tgraph *g, enum task_stage stage);
    void *user;
};

/* Compiles all variants (1, 2, 4 ... max_batched_tokens rows; on CUDA 1, 8, 16 ..., where some
 * numbers of rows have another variant for short contexts, or a decode-only one) and verifies the
 * program. report and hook may be NULL. The program is the caller's (free()). Errors: any of the
 * stages'. */
int compile_model(struct diag *d, struct model *m, const struct compile_options *o,
                  const struct compile_hook *hook, struct compile_report *report,
                  struct prog_header **program);

#endif

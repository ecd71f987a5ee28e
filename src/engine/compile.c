#include "engine/compile.h"
#include "base/checked.h"
#include "codegen/cuda_abi.h"
#include "task/program_make.h"
#include "task/task_verify.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

void compile_options_init(struct compile_options *o) {
    *o = (struct compile_options){.target = TARGET_CPU,
                                  .n_ranks = 1,
                                  .n_workers = 1,
                                  .n_slots = 8,
                                  .max_model_len = 4096,
                                  .max_batched_tokens = 128,
                                  .kv_block = 64,
                                  .kv_dtype = DTYPE_BF16,
                                  .logit_rows = 1,
                                  .task = {.tasks_per_worker = 1, .launch = LAUNCH_HYBRID}};
}

/* H100: 5.55 to 5.51 ms on Qwen3-8B, 0.99 to 0.92 on Qwen3-0.6B; with twice as much neither is
 * faster (docs/measurements.md, "Data as flag"). */
static const uint64_t CUDA_CARRY_BYTES = 64 << 10;

/* Most bytes of a graph's activations that are empty words: 42 MB gain 2 % on Qwen3-8B, 61 MB cost
 * 1 % (docs/measurements.md, "Data as flag"). */
static const uint64_t FILLED_BYTES = 48 << 20;

/* Contexts of more pieces are cut in any case: those of an iteration may differ. */
enum { WHOLE_PIECES = 8 };

void compile_options_cuda(struct compile_options *o, bool cuts_linear, bool short_ring) {
    o->target = TARGET_CUDA;
    /* JIT tasks cost more than balance brings: docs/performance.md, "Ablations". */
    o->task.launch = LAUNCH_ALL_AOT;
    /* Measured on one H100, Qwen3-8B at batch 1: 6.08 ms fused, 5.62 ms so. A head's projections
     * come from several workers; finer events would need a chain of empty tasks for each. */
    o->cut_qkv = true;
    o->join_heads = true;
    o->whole_from = 1;
    o->cut_linear = cuts_linear;
    o->task.apart = short_ring;
    o->task.carry_bytes = CUDA_CARRY_BYTES;
    o->task.coarse_events = true;
    o->task.alternate = true;
    /* Every chunk reads all weights, and its operators wait for each other. One H100, Qwen3-8B: a
     * prompt of 2,048 68.4 ms in chunks of 1,024, 66.5 of 2,048; of 8,000 345, 338, 330 of 4,096,
     * during which decoding requests wait twice as long each time. */
    o->max_batched_tokens = 2048;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int check_options(struct diag *d, const struct compile_options *o) {
    const struct {
        const char *field;
        uint64_t value, low, high;
    } bounds[] = {
        {"ranks", o->n_ranks, 1, o->target == TARGET_CUDA ? PROG_MAX_RANKS : 1},
        {"workers", o->n_workers, 1, PROG_MAX_WORKERS},
        {"max-num-seqs", o->n_slots, 1, PROG_MAX_SEQS},
        {"max-model-len", o->max_model_len, 1, SPEC_MAX_MODEL_LEN},
        {"max-num-batched-tokens", o->max_batched_tokens, 1, PROG_MAX_ROWS},
        {"logit-rows", o->logit_rows, 1, PROG_MAX_ROWS},
        {"kv-block", o->kv_block, 1, ATTENTION_PIECE},
        {"tasks-per-worker", o->task.tasks_per_worker, 1, 64},
    };
    for (size_t i = 0; i < COUNT_OF(bounds); i++)
        if (bounds[i].value < bounds[i].low || bounds[i].value > bounds[i].high)
            return fail(d, QN_EINVAL, "%s: want a number from %llu to %llu, have %llu",
                        bounds[i].field, (unsigned long long)bounds[i].low,
                        (unsigned long long)bounds[i].high, (unsigned long long)bounds[i].value);
    if (o->task.alternate && o->target != TARGET_CUDA)
        return fail(d, QN_EUNSUPPORTED, "workers: want all: only on CUDA do they alternate");
    if (o->task.carry_bytes > 0 && o->target != TARGET_CUDA)
        return fail(d, QN_EUNSUPPORTED,
                    "carry-bytes: want 0: only CUDA's kernels can poll flagged activations");
    if (o->target == TARGET_CUDA && !o->cut_qkv)
        return fail(d, QN_EUNSUPPORTED, "qkv: want split or joined: CUDA has no kernel of both");
    if (ATTENTION_PIECE % o->kv_block != 0)
        return fail(d, QN_EINVAL, "kv-block: want a divisor of %d, have %u", ATTENTION_PIECE,
                    o->kv_block);
    return QN_OK;
}

/* One variant on its way through the stages. */
struct variant {
    struct kgraph kernel;
    struct tgraph tasks;
};

struct compile {
    struct diag *d;
    struct model *model;
    const struct compile_options *options;
    const struct compile_hook *hook;
    struct compile_report *report;
    struct arena arena;
    struct variant variants[PROG_MAX_VARIANTS];
    uint32_t n_variants;
};

/* k: whose stage; NULL: the program. */
static int show(struct compile *c, const struct kgraph *k, const char *stage,
                const struct strbuf *text) {
    struct compile_shown of = {0};
    if (k != NULL) {
        const bool takes_all = k->context == c->options->max_model_len;
        of = (struct compile_shown){k->n_rows, takes_all ? 0 : k->context, k->alone};
    }
    TRY(strbuf_status(c->d, text));
    c->hook->stage(c->hook->user, of, stage, strbuf_text(text));
    return QN_OK;
}

/* After each stage: the IR's verify, its stats into the report, its dump to the hook. */
static int after(struct compile *c, uint32_t index, enum task_stage stage) {
    const struct tgraph *g = &c->variants[index].tasks;
    TRY(tgraph_verify(c->d, g, stage));
    if (c->report != NULL) tgraph_stats(g, stage, &c->report->variants[index].after[stage]);
    if (c->hook != NULL && c->hook->tasks != NULL)
        TRY(c->hook->tasks(c->hook->user, c->d, g, stage));
    if (c->hook == NULL || c->hook->stage == NULL) return QN_OK;
    struct strbuf text = {0};
    tgraph_dump(g, stage, &text);
    int rc = show(c, g->kernel, task_stage_name(stage), &text);
    strbuf_fini(&text);
    return rc;
}

static int after_kernel_graph(struct compile *c, uint32_t index) {
    const struct kgraph *k = &c->variants[index].kernel;
    TRY(kgraph_verify(c->d, k));
    if (c->report != NULL) {
        c->report->variants[index].n_rows = k->n_rows;
        c->report->variants[index].context = k->context;
        c->report->variants[index].alone = k->alone;
        kgraph_stats(k, &c->report->variants[index].kernel);
    }
    if (c->hook != NULL && c->hook->kernel != NULL) TRY(c->hook->kernel(c->hook->user, c->d, k));
    if (c->hook == NULL || c->hook->stage == NULL) return QN_OK;
    struct strbuf text = {0};
    kgraph_dump(k, &text);
    int rc = show(c, k, "kernel", &text);
    strbuf_fini(&text);
    return rc;
}

/* Whether rows of k activations are packed: all but a single row that a worker's scratch holds. */
static bool packs(const struct compile *c, uint32_t n_rows, uint64_t k) {
    return c->options->target == TARGET_CUDA && (n_rows > 1 || k > STAGED_COLUMNS);
}

/* The packed residual stream is normed by its writer. */
static uint32_t choose_packs(const struct compile *c, uint32_t n_rows) {
    const struct model_spec *s = &c->model->spec;
    const bool cut =
        c->options->cut_linear && n_rows <= PACK_NARROW && s->hidden % SQUARES_COLUMNS == 0;
    const uint32_t sum = rows_stream(n_rows, s->hidden, c->options->cut_linear) ? 0
                         : cut ? KGRAPH_SUM_SQUARES | KGRAPH_CUT_LINEAR
                               : KGRAPH_SUM_SQUARES;
    if (packs(c, n_rows, s->hidden)) return KGRAPH_PACK_X | KGRAPH_PACK_O | KGRAPH_PACK_H | sum;
    return (packs(c, n_rows, (uint64_t)s->n_heads * s->head_dim) ? KGRAPH_PACK_O : 0) |
           (packs(c, n_rows, s->intermediate) ? KGRAPH_PACK_H : 0);
}

/* Whether attention makes the heads, too. CUDA's does for several rows. */
static bool joins(const struct compile *c, uint32_t n_rows) {
    const struct compile_options *o = c->options;
    const uint32_t most = o->target == TARGET_CUDA ? STEP_ROWS : 1;
    return o->join_heads && o->cut_qkv && n_rows <= most;
}

/* With few rows there are fewer (row, KV head) items than workers: then the context is cut, too. On
 * a CPU not if one piece is all of it, on CUDA by attention that makes the heads. */
static bool cuts_context(const struct compile *c, uint32_t n_rows) {
    const struct compile_options *o = c->options;
    return (o->target == TARGET_CUDA ? joins(c, n_rows) : o->max_model_len > ATTENTION_PIECE) &&
           (uint64_t)n_rows * c->model->spec.n_kv_heads < o->n_workers;
}

/* Most bytes of a layer's weights that a worker holds ahead: a ring and the pages in registers on
 * Hopper. A model with such small layers waits for hand-overs alone, not for the memory. */
enum { HELD_BYTES = 256 << 10 };

static bool holds_layer(const struct model_spec *s, uint32_t n_workers) {
    const uint64_t heads = 2ull * (s->n_heads + s->n_kv_heads) * s->head_dim;
    return (heads + 3ull * s->intermediate) * s->hidden * dtype_bytes(DTYPE_BF16) / n_workers <=
           HELD_BYTES;
}

/* Longest context that one task attends to alone; 0: every context is cut into pieces. Merging
 * costs about as much as three pieces more in one task. A single row is cut from one piece on, or
 * from two where a model waits for hand-overs alone (docs/measurements.md, "Contexts"). */
static uint32_t whole_context(const struct compile *c, uint32_t n_rows) {
    const struct compile_options *o = c->options;
    const struct model_spec *s = &c->model->spec;
    const uint32_t items = n_rows * s->n_kv_heads;
    if (o->target != TARGET_CUDA || o->whole_from == 0 || n_rows < o->whole_from) return 0;
    if (!cuts_context(c, n_rows)) return 0;
    const uint32_t pieces = n_rows > 1 ? 3 * o->n_workers / (o->n_workers - items)
                            : holds_layer(s, o->n_workers) ? 2
                                                           : 1;
    return MIN(o->max_model_len, MIN(pieces, (uint32_t)WHOLE_PIECES) * ATTENTION_PIECE);
}

/* Longest context whose pieces occupy one in `part` workers; 0: there is no such variant. The other
 * workers go on from the projections to their next multiplication, and get more of it
 * (task/place.c). */
static uint32_t few_context(const struct compile *c, uint32_t n_rows, uint32_t part) {
    const uint32_t items = n_rows * c->model->spec.n_kv_heads;
    if (whole_context(c, n_rows) == 0) return 0;
    return MIN(c->options->max_model_len, c->options->n_workers / part / items * ATTENTION_PIECE);
}

/* Bytes that a layer writes for a row, each at a place of its own: the residual stream twice,
 * packed, the heads, attention's output, what GATED_MLP gives. */
static uint64_t filled_row_bytes(const struct model_spec *s) {
    const uint64_t heads = (s->n_heads + 2ull * s->n_kv_heads) * s->head_dim;
    return 2ull * s->hidden * 2 + heads * 4 + (uint64_t)s->n_heads * s->head_dim * 2 +
           (uint64_t)s->intermediate * 2;
}

/* Whether activations may ride on words that are empty before (task/carry.c). No two of them share
 * bytes then, and what L2 cannot keep until the next iteration costs more than it saves: it pays up
 * to FILLED_BYTES, and while the pieces of a cut context are not among them
 * (docs/measurements.md, "Data as flag"). PACK's output does not ride: nothing would behind it. */
static bool fills(const struct compile *c, uint32_t n_rows, bool whole) {
    const struct task_options *o = &c->options->task;
    const struct model_spec *s = &c->model->spec;
    return c->options->target == TARGET_CUDA && o->carry_bytes > 0 && o->launch == LAUNCH_ALL_AOT &&
           whole && n_rows > 1 && n_rows <= FILLED_ROWS && s->hidden % PACK_K == 0 &&
           s->n_heads * s->head_dim % PACK_K == 0 && s->intermediate % PACK_K == 0 &&
           filled_row_bytes(s) <= FILLED_BYTES / n_rows / s->n_layers;
}

/* Whether more rows than ATTENTION_STEP can have a variant of their own for when each of them is
 * another request's, so that ATTENTION_WHOLE can. Of all contexts: with 32 requests of 3,900
 * positions a token of Qwen3-8B takes 12.5 ms instead of 16.9, of 100 positions 5.97 instead of
 * 6.23 (H100; docs/measurements.md, "17 to 64 rows"). */
static bool has_alone(const struct compile *c, uint32_t n_rows) {
    const struct compile_options *o = c->options;
    return o->target == TARGET_CUDA && o->whole_from > 0 && o->join_heads && o->cut_qkv &&
           n_rows > STEP_ROWS && n_rows <= CUDA_PLACES &&
           o->n_slots > n_rows / 2; /* fewer have a smaller one */
}

static uint32_t choose_cuts(const struct compile *c, uint32_t n_rows, uint32_t context,
                            bool alone) {
    const uint32_t images = c->options->target == TARGET_CUDA ? KGRAPH_IMAGES : 0;
    const uint32_t cuts =
        images | (c->options->cut_qkv ? KGRAPH_CUT_QKV : 0) | choose_packs(c, n_rows);
    if (alone) return cuts | KGRAPH_JOIN_HEADS | KGRAPH_ALONE;
    if (!cuts_context(c, n_rows)) return cuts;
    const bool whole = context <= whole_context(c, n_rows);
    return cuts | (joins(c, n_rows) ? KGRAPH_JOIN_HEADS : 0) | (whole ? 0 : KGRAPH_CUT_ATTENTION) |
           (fills(c, n_rows, whole) ? KGRAPH_CLEAR : 0);
}

/* For contexts of so many positions; alone: for rows of different requests. */
static int compile_variant(struct compile *c, uint32_t n_rows, uint32_t context, bool alone) {
    const uint32_t i = c->n_variants++;
    struct variant *v = &c->variants[i];
    struct task_options options = c->options->task;
    options.kv_dtype = c->options->kv_dtype;
    options.n_workers = c->options->n_workers;
    options.wide = c->options->cut_linear;
    options.alternate &= holds_layer(&c->model->spec, options.n_workers);

    /* The model as operators over tensors. */
    const uint32_t logit_rows = MIN(n_rows, c->options->n_slots * c->options->logit_rows);
    TRY(model_build_graph(c->d, c->model, &c->arena, n_rows, logit_rows, context,
                          choose_cuts(c, n_rows, context, alone), &v->kernel));
    TRY(after_kernel_graph(c, i));
    struct tgraph *g = &v->tasks;
    tgraph_init(g, &c->arena, &v->kernel, &options);

    /* Operators become tasks. From here on no computing task is added. */
    TRY(decompose(c->d, g));
    TRY(after(c, i, STAGE_DECOMPOSE));
    /* Activations get their bytes. From here on aliasing is known. */
    TRY(memory_plan(c->d, g));
    TRY(after(c, i, STAGE_MEMORY_PLAN));
    /* Overlapping regions order tasks: RAW, WAR, WAW. */
    TRY(depend(c->d, g));
    TRY(after(c, i, STAGE_DEPEND));
    /* Dependencies become events; no two have equal in-sets or out-sets. */
    TRY(event_fuse(c->d, g));
    TRY(after(c, i, STAGE_EVENT_FUSE));
    /* One event before and one after every task. From here on no task and no event is added. */
    TRY(normalize(c->d, g));
    TRY(after(c, i, STAGE_NORMALIZE));
    /* An event's dependents become a range. From here on indices are final. */
    TRY(linearize(c->d, g));
    TRY(after(c, i, STAGE_LINEARIZE));
    /* Every task is JIT or has a worker. */
    TRY(place(c->d, g));
    TRY(after(c, i, STAGE_PLACE));
    /* Events with little data behind them need no counter: the data says when it is there. */
    TRY(carry(c->d, g));
    return after(c, i, STAGE_CARRY);
}

/* Variants by context: one for contexts that a task attends to alone, one each for contexts whose
 * pieces occupy a quarter and half of the workers, one for all. */
static int compile_rows(struct compile *c, uint32_t n_rows) {
    const uint32_t all = c->options->max_model_len;
    const uint32_t contexts[] = {whole_context(c, n_rows), few_context(c, n_rows, 4),
                                 few_context(c, n_rows, 2), all};
    if (has_alone(c, n_rows)) TRY(compile_variant(c, n_rows, all, true));
    for (size_t i = 0, before = 0; i < COUNT_OF(contexts); i++) {
        if (contexts[i] <= before) continue;
        TRY(compile_variant(c, n_rows, contexts[i], false));
        before = contexts[i];
    }
    return QN_OK;
}

/* Packed rows come in eights: two cost what eight do. */
static int compile_variants(struct compile *c) {
    const uint32_t most = c->options->max_batched_tokens;
    for (uint32_t rows = 1; rows < most; rows *= 2)
        if (rows == 1 || rows >= PACK_ROWS || !packs(c, rows, c->model->spec.hidden))
            TRY(compile_rows(c, rows));
    return compile_rows(c, most);
}

static int make_program(struct compile *c, struct prog_header **program) {
    const struct compile_options *o = c->options;
    const struct program_config config = {.target = o->target,
                                          .n_ranks = o->n_ranks,
                                          .n_workers = o->n_workers,
                                          .n_slots = o->n_slots,
                                          .max_model_len = o->max_model_len,
                                          .kv_block = o->kv_block,
                                          .kv_dtype = o->kv_dtype,
                                          .model_path = c->model->dir};
    struct tgraph *graphs;
    TRY(ARENA_NEW(c->d, &c->arena, &graphs, c->n_variants));
    for (uint32_t i = 0; i < c->n_variants; i++) graphs[i] = c->variants[i].tasks;
    return program_make(c->d, &config, graphs, c->n_variants, program);
}

/* The proof, on the final bytes and with none of the code above. */
static int prove(struct compile *c, const struct prog_header *program) {
    const double start = now();
    TRY(program_check(c->d, "the compiled program", program, program->total_bytes));
    TRY(task_verify(c->d, program, NULL));
    if (c->report != NULL) c->report->seconds_verify = now() - start;
    if (c->hook == NULL || c->hook->stage == NULL) return QN_OK;
    struct strbuf text = {0};
    program_dump(program, &text);
    int rc = show(c, NULL, "program", &text);
    strbuf_fini(&text);
    return rc;
}

int compile_model(struct diag *d, struct model *m, const struct compile_options *o,
                  const struct compile_hook *hook, struct compile_report *report,
                  struct prog_header **program) {
    const double start = now();
    *program = NULL;
    if (report != NULL) memset(report, 0, sizeof *report);
    TRY(check_options(d, o));
    struct compile *c = calloc(1, sizeof *c);
    if (c == NULL) return fail_nomem(d, sizeof *c, "the compiler");
    *c = (struct compile){.d = d, .model = m, .options = o, .hook = hook, .report = report};
    int rc = compile_variants(c);
    if (rc == QN_OK) rc = make_program(c, program);
    if (rc == QN_OK) rc = prove(c, *program);
    if (report != NULL) {
        report->n_variants = c->n_variants;
        report->peak_bytes = c->arena.total_bytes;
        report->seconds_total = now() - start;
    }
    for (uint32_t i = 0; i < c->n_variants; i++) {
        tgraph_fini(&c->variants[i].tasks);
        kgraph_fini(&c->variants[i].kernel);
    }
    arena_fini(&c->arena);
    free(c);
    if (rc != QN_OK) {
        free(*program);
        *program = NULL;
    }
    return rc;
}

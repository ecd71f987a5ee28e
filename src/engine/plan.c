/* plan.c - the numbers that the user left open, and whether everything fits.
 *
 *   memory limit = share of the device's memory
 *   ┌─────────┬──────────────────────────────┬──────────────────────┐
 *   │ weights │ KV cache                     │ workspace, the rest  │  <= limit
 *   └─────────┴──────────────────────────────┴──────────────────────┘
 *              as the user says, else all that is left; on a CPU max_num_seqs requests of
 *              max_model_len, at most CPU_KV_MOST; at least one such request
 */
#include "engine/engine.h"
#include "engine/compile_option.h"

#include "base/checked.h"
#include "base/map.h"

#include <stdlib.h>
#include <sys/random.h>

/* Most bytes of a CPU's KV cache whose size is left open: a CPU's memory is not the engine's alone,
 * as a GPU's is. */
static const uint64_t CPU_KV_MOST = (uint64_t)4 << 30;
/* Bytes beside each KV block: its record, its tokens, its bucket. Only for a first guess. */
enum { BLOCK_RECORD_BYTES = 512 };
static const double DEFAULT_SHARE = 0.9, DEFAULT_LINGER_MS = 5;

static int dtype_of(struct diag *d, const char *name, enum dtype automatic, enum dtype *out) {
    *out = automatic;
    if (strcmp(name, "auto") == 0) return QN_OK;
    if (dtype_from_hf(name, out)) return QN_OK;
    return fail(d, QN_EINVAL, "kv_cache_dtype: want auto, float32, bfloat16 or float16, have '%s'",
                name);
}

/* Bytes of the matrices; vectors are too small to matter before the program is there. */
static uint64_t weight_estimate(const struct model_spec *s) {
    uint64_t sum = (uint64_t)s->vocab * s->hidden * (s->tied ? 1 : 2);
    for (uint32_t i = 0; i < s->n_layers; i++)
        sum += spec_attention_elements(s) + spec_mlp_elements(s, i);
    return sum * dtype_bytes(s->weight_dtype);
}

static uint32_t round_up_power(uint32_t n) {
    uint32_t p = 1;
    while (p < n) p *= 2;
    return p;
}

/* Bytes that the KV cache may take: what the user says, else what the limit leaves, less a
 * sixteenth for the workspace, whose size is known after compiling only. */
static uint64_t kv_budget(const qn_engine_params *p, const struct engine_plan *plan) {
    if (p->kv_cache_memory_bytes) return p->kv_cache_memory_bytes;
    if (plan->memory_limit <= plan->weight_bytes) return 0;
    uint64_t left = plan->memory_limit - plan->weight_bytes;
    return left - left / 16;
}

static bool takes_all(const struct engine_plan *plan) {
    return !plan->kv_fixed && plan->compile.target == TARGET_CUDA;
}

static int choose_length(struct diag *d, const qn_engine_params *p, const struct model_spec *spec,
                         struct engine_plan *plan) {
    struct compile_options *c = &plan->compile;
    uint64_t budget = kv_budget(p, plan), fits = budget / plan->kv_block_bytes * c->kv_block;
    if (p->max_model_len > spec->max_position)
        return fail(d, QN_EINVAL, "max_model_len: %u is more than the model was made for, %u",
                    p->max_model_len, spec->max_position);
    c->max_model_len = p->max_model_len;
    if (c->max_model_len == 0) {
        if (!p->kv_cache_memory_bytes && c->target != TARGET_CUDA)
            fits = MIN(fits, CPU_KV_MOST / plan->kv_token_bytes);
        uint64_t most = MIN(spec->max_position, COMPILE_LEN_MOST + 0u);
        c->max_model_len = (uint32_t)MIN(most, fits / c->kv_block * c->kv_block);
    }
    if (plan->weight_bytes > plan->memory_limit)
        return fail(d, QN_ELIMIT,
                    "memory: the weights take %.1f MB, gpu_memory_utilization allows %.1f of %.1f; "
                    "raise it, or take a smaller model",
                    1e-6 * (double)plan->weight_bytes, 1e-6 * (double)plan->memory_limit,
                    1e-6 * (double)plan->device.memory_bytes);
    if (c->max_model_len == 0 || c->max_model_len > fits) {
        const uint32_t len = MAX(c->max_model_len, c->kv_block);
        const uint64_t need = CEIL_DIV(len, c->kv_block) * plan->kv_block_bytes;
        return fail(d, QN_ELIMIT,
                    "memory: a request of %u positions takes %.1f MB of KV cache, have room for "
                    "%.1f; %sraise %s",
                    len, 1e-6 * (double)need, 1e-6 * (double)budget,
                    len > c->kv_block ? "lower max_model_len or " : "",
                    p->kv_cache_memory_bytes ? "kv_cache_memory_bytes" : "gpu_memory_utilization");
    }
    return QN_OK;
}

static void choose_blocks(const qn_engine_params *p, struct engine_plan *plan) {
    const struct compile_options *c = &plan->compile;
    uint64_t one = CEIL_DIV(c->max_model_len, c->kv_block), all = one * c->n_slots;
    uint64_t fits = kv_budget(p, plan) / plan->kv_block_bytes;
    plan->kv_fixed = p->kv_cache_memory_bytes != 0;
    if (!plan->kv_fixed && !takes_all(plan))
        fits = MIN(MIN(all, fits), CPU_KV_MOST / plan->kv_block_bytes);
    plan->config.n_kv_blocks = (uint32_t)MIN(MAX(fits, one), (uint64_t)INT32_MAX);
}

/* Chooses the memory limit and estimates the weights. */
static int choose_memory(struct diag *d, const qn_engine_params *p, const struct model *model,
                         struct engine_plan *plan) {
    double share = p->gpu_memory_utilization;
    if (share == 0) share = DEFAULT_SHARE;
    if (!(share > 0 && share <= 1))
        return fail(d, QN_EINVAL, "gpu_memory_utilization: want a share above 0 and up to 1");
    plan->memory_limit = (uint64_t)(share * (double)plan->device.memory_bytes);
    plan->weight_bytes = weight_estimate(&model->spec);
    return QN_OK;
}

/* Chooses what the boundary uses besides the program. */
static int choose_scheduling(struct diag *d, const qn_engine_params *p, struct engine_plan *plan) {
    struct rt_choices *c = &plan->config.choices;
    const double bound = p->max_inter_token_latency_ms, linger = p->linger_ms;
    if (!(bound >= 0 && bound <= 60000))
        return fail(d, QN_EINVAL, "max_inter_token_latency_ms: want 0 to 60000");
    if (!(linger <= 1000)) return fail(d, QN_EINVAL, "linger_ms: want at most 1000");
    c->max_step_ns = (uint64_t)(bound * 1e6);
    c->linger_ns = linger < 0 ? 0 : (uint64_t)((linger == 0 ? DEFAULT_LINGER_MS : linger) * 1e6);
    c->routes = p->enable_return_routed_experts != 0;
    /* A position that a request finds computed has no route of that request. */
    c->prefix_cache = p->no_prefix_caching == 0 && !c->routes;
    if (getrandom(&c->hash_seed, sizeof c->hash_seed, 0) != (ssize_t)sizeof c->hash_seed)
        return fail(d, QN_EIO, "getrandom: no random numbers for the prefix cache");
    return QN_OK;
}

static int choose_device(struct diag *d, const qn_engine_params *p, const struct backend *backend,
                         struct engine_plan *plan) {
    plan->config.n_workers = p->threads;
    if (p->max_logprobs > QN_MAX_LOGPROBS)
        return fail(d, QN_EINVAL, "max_logprobs: want at most %d, have %u", QN_MAX_LOGPROBS,
                    p->max_logprobs);
    if (p->max_logprobs > 0 && !backend->lists_top)
        return fail(d, QN_EUNSUPPORTED,
                    "max_logprobs: the %s backend has no kernels for it; use cpu", backend->name);
    plan->config.choices.n_top = p->max_logprobs;
    plan->config.isa = strcmp(p->isa, "auto") == 0 ? NULL : p->isa;
    if (p->threads > PROG_MAX_WORKERS)
        return fail(d, QN_EINVAL, "threads: want at most %d, have %u", PROG_MAX_WORKERS,
                    p->threads);
    return backend->device(d, &plan->config, &plan->device);
}

int plan_before(struct diag *d, const qn_engine_params *p, const struct model *model,
                const struct backend *backend, struct engine_plan *plan) {
    *plan = (struct engine_plan){0};
    struct compile_options *c = &plan->compile;
    if (p->enable_return_routed_experts != 0 && model->spec.experts.n == 0)
        return fail(d, QN_EINVAL, "enable_return_routed_experts: %s has no experts", p->model);
    TRY(choose_device(d, p, backend, plan));
    TRY(choose_scheduling(d, p, plan));
    compile_options_init(c);
    if (backend->target == TARGET_CUDA)
        compile_options_cuda(c, &plan->device.compute);
    else
        c->target = backend->target;
    c->device = plan->device.compute;
    TRY(compile_option_apply(d, p->compile_options, c));
    if (c->cut_linear && !plan->device.compute.has.wgmma)
        return fail(d, QN_EUNSUPPORTED,
                    "linear: want whole: only Hopper GPUs have kernels of parts");
    if (c->group_experts && !plan->device.compute.has.wgmma)
        return fail(d, QN_EUNSUPPORTED,
                    "moe: want slices or static: only Hopper GPUs have tiles of experts");
    enum dtype kv = (enum dtype)model->spec.weight_dtype;
    if (c->target == TARGET_CUDA && kv == DTYPE_F32) kv = DTYPE_BF16; /* its kernels have no F32 */
    TRY(dtype_of(d, p->kv_cache_dtype, kv, &c->kv_dtype));
    if (p->max_num_seqs) c->n_slots = p->max_num_seqs;
    if (p->max_num_seqs > PROG_MAX_SEQS)
        return fail(d, QN_EINVAL, "max_num_seqs: want at most %d, have %u", PROG_MAX_SEQS,
                    p->max_num_seqs);
    if (p->max_num_batched_tokens > PROG_MAX_ROWS)
        return fail(d, QN_EINVAL, "max_num_batched_tokens: want at most %d, have %u", PROG_MAX_ROWS,
                    p->max_num_batched_tokens);
    if (p->max_num_batched_tokens)
        c->max_batched_tokens = round_up_power(p->max_num_batched_tokens);
    else /* all requests in flight can advance in each iteration */
        c->max_batched_tokens = MAX(c->max_batched_tokens, round_up_power(c->n_slots));
    TRY(choose_memory(d, p, model, plan));
    const struct kv_row row = spec_kv_row(&model->spec, c->kv_dtype);
    plan->kv_token_bytes = model->spec.n_layers * kv_position_bytes(&row);
    plan->kv_block_bytes = plan->kv_token_bytes * c->kv_block;
    TRY(choose_length(d, p, &model->spec, plan));
    choose_blocks(p, plan);
    return QN_OK;
}

/* Checks a parameter that the program has fixed already. */
static int agree(struct diag *d, const char *name, uint32_t asked, uint32_t has) {
    if (asked == 0 || asked == has) return QN_OK;
    return fail(d, QN_EINVAL, "%s: %u, but the program was compiled for %u", name, asked, has);
}

int plan_from_program(struct diag *d, const qn_engine_params *p, const struct model *model,
                      const struct prog_header *program, struct engine_plan *plan) {
    struct compile_options *c = &plan->compile;
    const struct prog_variant *last =
        PROG(program, VARIANT) + program->section[SECTION_VARIANT].count - 1;
    if (program->spec_hash != hash_bytes(&model->spec, sizeof model->spec, 0))
        return fail(d, QN_EINVAL, "%s: compiled for another model than %s (or another dtype)",
                    p->program, p->model);
    if (program->target != c->target)
        return fail(d, QN_EINVAL, "%s: compiled for another backend", p->program);
    TRY(agree(d, "threads", p->threads, program->n_workers));
    TRY(agree(d, "max_num_seqs", p->max_num_seqs, program->n_slots));
    TRY(agree(d, "max_model_len", p->max_model_len, program->max_model_len));
    TRY(agree(d, "max_num_batched_tokens",
              p->max_num_batched_tokens ? round_up_power(p->max_num_batched_tokens) : 0,
              last->n_rows));
    if (p->compile_options)
        return fail(d, QN_EINVAL, "compile_options: %s, but the program is compiled already",
                    p->compile_options);
    if (strcmp(p->kv_cache_dtype, "auto") != 0 &&
        c->kv_dtype != (enum dtype)PROG(program, KV)->dtype)
        return fail(d, QN_EINVAL, "kv_cache_dtype: %s, but the program was compiled for %s",
                    p->kv_cache_dtype, dtype_row(PROG(program, KV)->dtype)->hf);
    c->device.n_workers = plan->config.n_workers = program->n_workers;
    c->n_slots = program->n_slots;
    c->max_model_len = program->max_model_len;
    c->max_batched_tokens = last->n_rows;
    c->kv_block = program->kv_block;
    c->kv_dtype = (enum dtype)PROG(program, KV)->dtype;
    TRY(choose_memory(d, p, model, plan));
    TRY(program_kv_bytes(d, program, 1, &plan->kv_block_bytes));
    plan->kv_token_bytes = plan->kv_block_bytes / c->kv_block;
    choose_blocks(p, plan);
    return QN_OK;
}

/* Bytes of the weights of the first variant's operators. An embedding table counts as the one row
 * that is read, a stack of experts as the experts of one token. */
static uint64_t bytes_per_token(const struct prog_header *program, bool *used) {
    const struct prog_variant *v = PROG(program, VARIANT);
    const struct prog_weight *weights = PROG(program, WEIGHT);
    const struct prog_tensor *tensors = PROG(program, TENSOR);
    uint64_t total = 0;
    for (uint32_t o = v->first_op; o < v->first_op + v->n_ops; o++) {
        const struct prog_op *op = PROG(program, OP) + o;
        for (int k = 0; k < OP_MAX_IN; k++) {
            if (op->in[k] == PROG_NONE || tensors[op->in[k]].role != PROG_WEIGHT) continue;
            uint64_t w = tensors[op->in[k]].where, row;
            row = (uint64_t)MAX(weights[w].cols, 1u) * dtype_bytes(weights[w].dtype);
            if (op->kind == OP_EMBED)
                total += row;
            else if (tensors[op->in[k]].n_dims == 3)
                total += row * tensors[op->in[k]].shape[1] * op->attrs.top_k;
            else if (!used[w])
                total += row * weights[w].rows;
            if (op->kind != OP_EMBED) used[w] = true;
        }
    }
    return total;
}

static int count_weights(struct diag *d, const struct prog_header *program,
                         struct qn_engine_info *info) {
    const struct prog_weight *weights = PROG(program, WEIGHT);
    uint64_t n = program->section[SECTION_WEIGHT].count;
    bool *used = calloc(n + 1, sizeof *used);
    if (!used) return fail_nomem(d, n, "weights");
    info->bytes_per_token = bytes_per_token(program, used);
    free(used);
    info->weight_bytes = 0;
    for (uint64_t i = 0; i < n; i++)
        info->weight_bytes +=
            (uint64_t)weights[i].rows * MAX(weights[i].cols, 1u) * dtype_bytes(weights[i].dtype);
    return QN_OK;
}

static uint64_t sum_of(const struct backend_plan *b) {
    return b->kv_bytes + b->workspace_bytes + b->other_bytes;
}

/* Gives up blocks of a cache whose size the user left open; one request must still fit. */
static bool shrink_cache(struct engine_plan *plan, uint64_t excess) {
    uint64_t one = CEIL_DIV(plan->compile.max_model_len, plan->compile.kv_block);
    uint64_t less = CEIL_DIV(excess, plan->kv_block_bytes);
    if (plan->kv_fixed || plan->config.n_kv_blocks < one + less) return false;
    plan->config.n_kv_blocks -= (uint32_t)less;
    return true;
}

/* Lets the cache take the memory that is left. */
static bool grow_cache(struct engine_plan *plan, uint64_t left) {
    const uint64_t more = left / (plan->kv_block_bytes + BLOCK_RECORD_BYTES);
    if (!takes_all(plan) || more == 0) return false;
    plan->config.n_kv_blocks = (uint32_t)MIN(plan->config.n_kv_blocks + more, (uint64_t)INT32_MAX);
    return true;
}

int plan_memory(struct diag *d, const struct backend *backend, const struct prog_header *program,
                struct engine_plan *plan, struct qn_engine_info *info) {
    struct backend_plan bytes;
    plan->config.max_batched = plan->compile.max_batched_tokens;
    TRY(count_weights(d, program, info));
    TRY(backend->plan(d, program, &plan->config, &bytes));
    uint64_t total = info->weight_bytes + sum_of(&bytes);
    if (total > plan->memory_limit ? shrink_cache(plan, total - plan->memory_limit)
                                   : grow_cache(plan, plan->memory_limit - total))
        TRY(backend->plan(d, program, &plan->config, &bytes));
    info->kv_cache_bytes = bytes.kv_bytes;
    info->workspace_bytes = bytes.workspace_bytes;
    info->other_bytes = bytes.other_bytes;
    info->kv_bytes_per_token = plan->kv_token_bytes;
    info->kv_blocks = plan->config.n_kv_blocks;
    info->kv_block = plan->compile.kv_block;
    info->total_bytes = info->weight_bytes + sum_of(&bytes);
    if (info->total_bytes > plan->memory_limit)
        return fail(d, QN_ELIMIT,
                    "memory: the weights take %.1f MB, the KV cache %.1f, the workspace %.1f, the "
                    "rest%s %.1f, gpu_memory_utilization allows %.1f of %.1f; raise it, or lower "
                    "%smax_model_len, max_num_seqs or max_num_batched_tokens",
                    1e-6 * (double)info->weight_bytes, 1e-6 * (double)info->kv_cache_bytes,
                    1e-6 * (double)info->workspace_bytes,
                    plan->config.trace_bytes > 0 ? " with the trace" : "",
                    1e-6 * (double)info->other_bytes, 1e-6 * (double)plan->memory_limit,
                    1e-6 * (double)plan->device.memory_bytes,
                    plan->kv_fixed ? "kv_cache_memory_bytes, " : "");
    return QN_OK;
}

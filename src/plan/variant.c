/* variant.c - see variant.h.
 *
 * Variants have 1, 8, 16, 32 ... rows: packed rows come in eights, and two rows cost what eight do.
 * For each number of rows there is a variant for all contexts. In front of it are variants for
 * shorter contexts, where another way is cheaper for them, or where fewer workers have pieces.
 */
#include "plan/variant.h"
#include "base/checked.h"
#include "codegen/cuda_abi.h"
#include "graph/kernel_graph.h"
#include "plan/cost.h"
#include "plan/split.h"

/* Most pieces of a context that one task attends to alone, unless every row is another request's.
 * Contexts of an iteration may differ, and all tasks wait for the longest. */
enum { WHOLE_PIECES = 8 };

/* A variant while its ways are chosen. */
struct planner {
    const struct plan_request *r;
    uint32_t n_rows, context;
    bool decode_only;
};

/* ---- attention ---- */

enum { BY_HEADS, BY_SPLIT, BY_STEP, BY_WHOLE };

static uint32_t pieces_of(const struct planner *p) {
    return CEIL_DIV(p->context, (uint32_t)ATTENTION_PIECE);
}

/* Items of attention: one for each row and KV head; of latents on CUDA, one for each row and 16
 * heads. */
static uint32_t items_of(const struct plan_request *r, uint32_t n_rows) {
    const bool latent = spec_is_latent(r->spec) && r->device->kind == DEVICE_CUDA;
    return n_rows * (latent ? CEIL_DIV(r->spec->n_heads, 16u) : r->spec->n_kv_heads);
}

/* Whether every worker has a (row, KV head) item, or, on a CPU, the context is a single piece: then
 * no context is cut. */
static bool fills_workers(const struct planner *p) {
    const struct plan_request *r = p->r;
    const uint64_t items = items_of(r, p->n_rows);
    return items >= r->device->n_workers ||
           (r->device->kind == DEVICE_CPU && r->max_model_len <= ATTENTION_PIECE);
}

/* Why attention cannot make the heads itself; NULL: it can. */
static const char *not_joined(const struct planner *p) {
    const struct plan_request *r = p->r;
    if (spec_is_latent(r->spec)) return "latents have no heads to make";
    if (!r->join_heads || !r->cut_qkv) return "qkv=joined is not asked for";
    if (p->n_rows == 1) return NULL;
    if (r->device->kind != DEVICE_CUDA) return "on a CPU with a single row only";
    return p->decode_only || p->n_rows <= STEP_ROWS ? NULL : "too many rows, of any requests";
}

static const char *not_whole(const struct planner *p) {
    const struct plan_request *r = p->r;
    const char *why = not_joined(p);
    if (why != NULL) return why;
    if (r->device->kind != DEVICE_CUDA) return "CUDA only";
    if (r->whole_from == 0 || p->n_rows < r->whole_from) return "attention=whole is not asked for";
    if (p->decode_only) return NULL;
    if (fills_workers(p)) return "rows of one request would read its pieces one by one";
    return pieces_of(p) > WHOLE_PIECES ? "contexts may differ: the longest is waited for" : NULL;
}

/* Why a context cannot be cut where heads and attention are separate operators; NULL: it can be. On
 * CUDA only contexts of latents can, with as many rows as STEP has: parts are many bytes. */
static const char *not_split(const struct planner *p) {
    const struct plan_request *r = p->r;
    if (r->device->kind != DEVICE_CUDA) return NULL;
    if (!spec_is_latent(r->spec)) return "CUDA has pieces only with their heads";
    return p->n_rows <= STEP_ROWS ? NULL : "too many rows: their parts are many bytes";
}

static void choose_cheapest(struct plan_choice *c) {
    c->taken = 0;
    for (uint32_t i = 1; i < c->n; i++) {
        const struct plan_way *best = &c->ways[c->taken], *w = &c->ways[i];
        if (w->why_not == NULL && (best->why_not != NULL || w->ns <= best->ns)) c->taken = i;
    }
}

static void choose_attention(const struct planner *p, struct plan_choice *c) {
    const struct cost_attention a = {p->r->device, p->r->spec, p->n_rows, pieces_of(p)};
    const double whole = cost_attention_whole(&a), heads = cost_attention_heads(&a),
                 pieces = cost_attention_pieces(&a);
    const bool fills = fills_workers(p);
    const char *why_cut = p->decode_only ? "every row is another request's"
                          : fills        ? "every worker has a row and KV head already"
                                         : NULL;
    const char *why_joined = not_joined(p);
    const char *why_split = not_split(p);
    const bool cut_qkv = p->r->cut_qkv;
    const bool cuts = !fills && !p->decode_only && !(why_split != NULL && why_joined != NULL);
    *c = (struct plan_choice){
        .what = "attention",
        .why = "takes least of those that are possible",
        .n = 4,
        .ways = {
            [BY_HEADS] = {cut_qkv ? "qkv_heads attention" : "attention",
                          cuts ? "workers would have nothing" : NULL, whole + heads},
            [BY_SPLIT] = {cut_qkv ? "qkv_heads attention_split attention_merge"
                                  : "attention_split attention_merge",
                          why_cut != NULL ? why_cut : why_split, pieces + heads},
            [BY_STEP] = {"attention_step attention_merge", why_cut != NULL ? why_cut : why_joined,
                         pieces},
            [BY_WHOLE] = {"attention_whole", not_whole(p), whole},
        }};
    choose_cheapest(c);
}

/* Whether pieces of latents are merged by the tasks that need the result. This saves a hand-over,
 * but each of these tasks reads all pieces of a head. */
static bool merges_values(const struct planner *p) {
    return spec_is_latent(p->r->spec) && p->r->device->kind == DEVICE_CUDA &&
           p->n_rows <= PACK_ROWS;
}

static uint32_t attention_cuts(const struct planner *p, const struct plan_choice *c) {
    switch (c->taken) {
    case BY_SPLIT: return KGRAPH_CUT_ATTENTION | (merges_values(p) ? KGRAPH_JOIN_VALUES : 0);
    case BY_STEP: return KGRAPH_CUT_ATTENTION | KGRAPH_JOIN_HEADS;
    case BY_WHOLE: return KGRAPH_JOIN_HEADS | (p->decode_only ? KGRAPH_DECODE_ONLY : 0);
    default: return 0;
    }
}

/* ---- products ---- */

enum { BY_MATVEC, BY_STREAM, BY_PARTS, BY_TILE };

static uint64_t layer_weight_bytes(const struct model_spec *s) {
    const uint64_t heads = 2ull * (s->n_heads + s->n_kv_heads) * s->head_dim;
    return (heads + 3ull * s->intermediate) * s->hidden * dtype_bytes(DTYPE_BF16);
}

/* The ways stand in order of preference, not of cost. Bytes through L2 and shared memory decide
 * between them, and the rates of these are unknown. Streaming reads activations once; parts read an
 * eighth of them in each task; tiles read all of them in each. Parts were measured up to
 * SPLITK_ROWS rows. */
static void choose_linear(const struct planner *p, struct plan_choice *c) {
    const struct plan_request *r = p->r;
    const double weights = cost_weights(r->device, layer_weight_bytes(r->spec));
    const double after = r->device->hand_over_ns;
    /* Four products, and two operators that add up parts, if there are any. */
    const double four = weights < 0 ? weights : weights + 4 * after;
    const double six = weights < 0 ? weights : weights + 6 * after;
    const bool packs = device_packs(r->device, p->n_rows, r->spec->hidden);
    const char *plain = packs ? NULL : "activations are rows, not packed";
    const bool streams = device_streams(p->n_rows);
    const char *no_parts = !r->cut_linear            ? "linear=parts is not asked for"
                           : p->n_rows > SPLITK_ROWS ? "too many rows for parts"
                           : r->spec->hidden % SQUARES_COLUMNS != 0 ? "hidden is no multiple of 16"
                                                                    : NULL;
    *c = (struct plan_choice){
        .what = "linear",
        .why = "the first that is possible: what passes through L2 decides, whose rate is unknown",
        .n = 4,
        .ways = {
            [BY_MATVEC] = {"linear: rows", packs ? "activations are packed" : NULL, four},
            [BY_STREAM] = {"linear: weights stream",
                           plain != NULL ? plain
                           : streams     ? NULL
                                         : "too many rows for registers",
                           four},
            [BY_PARTS] = {"linear_splitk splitk_sum: tiles",
                          plain != NULL ? plain
                          : streams     ? "weights stream"
                                        : no_parts,
                          six},
            [BY_TILE] = {"linear sum_squares: tiles", plain, six},
        }};
    for (c->taken = 0; c->ways[c->taken].why_not != NULL;) c->taken++;
}

static uint32_t linear_cuts(const struct planner *p, const struct plan_choice *c) {
    const struct model_spec *s = p->r->spec;
    const struct device *d = p->r->device;
    const uint32_t packed = KGRAPH_PACK_X | KGRAPH_PACK_O | KGRAPH_PACK_H;
    switch (c->taken) {
    case BY_STREAM: return packed;
    case BY_PARTS: return packed | KGRAPH_SUM_SQUARES | KGRAPH_CUT_LINEAR;
    case BY_TILE: return packed | KGRAPH_SUM_SQUARES;
    default:
        return (device_packs(d, p->n_rows, (uint64_t)s->n_heads * s->head_dim) ? KGRAPH_PACK_O
                                                                               : 0) |
               (device_packs(d, p->n_rows, s->intermediate) ? KGRAPH_PACK_H : 0);
    }
}

/* ---- heads ---- */

enum { BY_COLUMNS, BY_WHOLE_HEADS };

/* Why projections cannot be cut into tiles of whole heads; NULL: they can. */
static const char *not_fused(const struct planner *p, const struct plan_choice *attention) {
    const struct plan_request *r = p->r;
    if (spec_is_latent(r->spec)) return "latents have no heads to make";
    if (!r->join_heads || !r->cut_qkv) return "qkv=joined is not asked for";
    if (attention->taken != BY_HEADS) return "attention makes the heads";
    if (!r->device->has.wgmma) return "only sm_90 has tiles of so many tokens";
    if (p->n_rows <= PACK_TILE) return "too few rows for tiles of 128 tokens";
    return cuda_head_tiles(r->spec->head_dim) ? NULL : "heads are no part of 128 columns";
}

/* Tiles of whole heads are coarser to share out. Columns are read again by the operator that makes
 * heads of them. */
static void choose_qkv(const struct planner *p, const struct plan_choice *attention,
                       struct plan_choice *c) {
    const struct plan_request *r = p->r;
    const struct cost_attention a = {r->device, r->spec, p->n_rows, pieces_of(p)};
    const struct split_product heads = split_fused(r->spec, p->n_rows, r->device->n_workers),
                               columns =
                                   split_projections(r->spec, p->n_rows, r->device->n_workers);
    const bool apart = r->cut_qkv && attention->taken <= BY_SPLIT && !spec_is_latent(r->spec);
    const char *why_not = not_fused(p, attention);
    uint64_t of_heads, of_columns;
    split_product(&heads, &of_heads);
    split_product(&columns, &of_columns);
    const double by_heads = cost_tile_ns(of_heads, r->spec->hidden),
                 by_columns = cost_tile_ns(of_columns, r->spec->hidden) + cost_heads_ns(&a);
    *c = (struct plan_choice){
        .what = "qkv",
        .why = "takes least of those that are possible",
        .n = 2,
        .ways = {
            [BY_COLUMNS] = {!r->cut_qkv ? "qkv"
                            : apart     ? "qkv_linear qkv_heads"
                                        : "qkv_linear",
                            NULL, why_not == NULL ? by_columns : -1},
            [BY_WHOLE_HEADS] = {"qkv_fused", why_not, why_not == NULL ? by_heads : -1},
        }};
    choose_cheapest(c);
}

/* ---- experts ---- */

enum { BY_GATHER, BY_GROUPED };

/* Slots of an expert on average from which its products are tiles of many rows. */
enum { GROUPED_SLOTS = 16 };

static void choose_experts(const struct planner *p, const struct plan_choice *linear,
                           struct plan_choice *c) {
    const struct plan_request *r = p->r;
    const struct experts_spec *e = &r->spec->experts;
    const uint64_t slots = (uint64_t)p->n_rows * e->top_k;
    const char *why_not = !r->device->has.wgmma ? "only sm_90 has tiles of so many rows"
                          : !r->group_experts   ? "moe=grouped is not asked for"
                          : linear->taken != BY_TILE || r->spec->hidden % SQUARES_COLUMNS != 0
                              ? "activations are not packed for tiles"
                          : slots < (uint64_t)GROUPED_SLOTS * e->n ? "too few rows of an expert"
                                                                   : NULL;
    *c = (struct plan_choice){
        .what = "experts",
        .why = "tiles where they are possible: many rows of an expert are bound by products",
        .n = e->n != 0 ? 2 : 0,
        .ways = {
            [BY_GATHER] = {"route expert_gate_up expert_down", NULL, -1},
            [BY_GROUPED] = {"route_top_k route_list expert_gather grouped_gate_up grouped_down "
                            "expert_sum",
                            why_not, -1},
        }};
    c->taken = c->n != 0 && why_not == NULL ? BY_GROUPED : BY_GATHER;
}

/* ---- sentinels ---- */

/* Bytes that a layer writes for a row, each at a place of its own: the residual stream twice,
 * packed; the heads; the outputs of attention and GATED_MLP. A layer with experts has, in place of
 * the latter, the residual stream that its experts read, the logits, and what its shared GATED_MLP
 * makes. */
static uint64_t sentinel_row_bytes(const struct model_spec *s) {
    const struct experts_spec *e = &s->experts;
    const uint64_t heads = (s->n_heads + 2ull * s->n_kv_heads) * s->head_dim;
    const uint64_t dense = (uint64_t)s->intermediate * 2;
    const uint64_t sparse = 4ull * s->hidden + 4ull * e->n + 2ull * e->shared_width;
    return 2ull * s->hidden * 2 + heads * 4 + (uint64_t)s->n_heads * s->head_dim * 2 +
           (e->n != 0 ? sparse : dense);
}

/* Whether activations may travel by sentinels (task/transport.c). No two of them share bytes then.
 * So sentinels pay while L2 keeps all activations until the next iteration, and while the pieces of
 * a cut context are not among them. PACK's input is not carried by data, so nothing behind a PACK
 * would be. */
static bool uses_sentinels(const struct planner *p, const struct plan_choice *attention) {
    const struct plan_request *r = p->r;
    const struct model_spec *s = r->spec;
    return attention->taken == BY_WHOLE && !p->decode_only && r->device->kind == DEVICE_CUDA &&
           r->rides && r->places_all && p->n_rows > 1 && p->n_rows <= SENTINEL_ROWS &&
           s->hidden % PACK_K == 0 && s->n_heads * s->head_dim % PACK_K == 0 &&
           s->intermediate % PACK_K == 0 &&
           sentinel_row_bytes(s) <= r->device->kept_bytes / p->n_rows / s->n_layers;
}

/* ---- the list ---- */

static struct plan_variant variant_of(const struct planner *p, const char *why) {
    struct plan_variant v = {
        .n_rows = p->n_rows, .context = p->context, .decode_only = p->decode_only, .why = why};
    choose_attention(p, &v.attention);
    choose_qkv(p, &v.attention, &v.qkv);
    choose_linear(p, &v.linear);
    choose_experts(p, &v.linear, &v.experts);
    v.cuts = (p->r->device->kind == DEVICE_CUDA ? KGRAPH_IMAGES : 0) |
             (p->r->cut_qkv ? KGRAPH_CUT_QKV : 0) | attention_cuts(p, &v.attention) |
             linear_cuts(p, &v.linear) | (v.qkv.taken == BY_WHOLE_HEADS ? KGRAPH_FUSE_QKV : 0) |
             (v.experts.taken == BY_GROUPED ? KGRAPH_GROUP : 0) |
             (uses_sentinels(p, &v.attention) ? KGRAPH_RESET_SENTINELS : 0);
    return v;
}

/* The longest context that one task attends to alone; 0: none. */
static uint32_t whole_context(const struct plan_request *r, uint32_t n_rows) {
    uint32_t most = 0;
    for (uint32_t pieces = 1; pieces <= WHOLE_PIECES; pieces++) {
        struct planner p = {r, n_rows, MIN(r->max_model_len, pieces * ATTENTION_PIECE), false};
        struct plan_choice c;
        choose_attention(&p, &c);
        if (c.taken != BY_WHOLE) break;
        most = p.context;
    }
    return most;
}

/* The longest cut context whose pieces occupy one in `part` workers; 0: none. The other workers go
 * on from the projections to the next product, and get more of it (task/place.c). Also 0 where no
 * context may be whole, except with latents, whose contexts are cut whatever their length. */
static uint32_t few_context(const struct plan_request *r, uint32_t n_rows, uint32_t part) {
    const uint32_t items = items_of(r, n_rows);
    const bool cut = spec_is_latent(r->spec) && r->device->kind == DEVICE_CUDA &&
                     n_rows <= STEP_ROWS && items < r->device->n_workers;
    if (items == 0 || (!cut && whole_context(r, n_rows) == 0)) return 0;
    return MIN(r->max_model_len, r->device->n_workers / part / items * ATTENTION_PIECE);
}

/* Whether n_rows rows, more than ATTENTION_STEP can have, get a variant for rows of different
 * requests. This variant is for all contexts: with 32 requests of 3,900 positions a token of
 * Qwen3-8B takes 12.5 ms instead of 16.9, of 100 positions 5.97 instead of 6.23 (H100,
 * bench/measurements.md, "17 to 128 rows"). With fewer requests than half of its rows a smaller
 * variant runs. Of 96 rows it is the only one: other iterations take the next variant, because each
 * takes 5 MB. */
static bool has_decode_only(const struct plan_request *r, uint32_t n_rows) {
    const struct planner p = {r, n_rows, r->max_model_len, true};
    struct plan_choice c;
    if (n_rows <= STEP_ROWS || n_rows > CUDA_PLACES || r->n_slots <= n_rows / 2) return false;
    choose_attention(&p, &c);
    return c.taken == BY_WHOLE;
}

static int push(struct diag *d, struct plan_variant *variants, uint32_t *n,
                const struct plan_variant *v) {
    if (*n == PLAN_MAX_VARIANTS)
        return fail(d, QN_ELIMIT, "a program has %d variants at most", PLAN_MAX_VARIANTS);
    variants[(*n)++] = *v;
    return QN_OK;
}

static int plan_rows(struct diag *d, const struct plan_request *r, uint32_t n_rows,
                     struct plan_variant *variants, uint32_t *n) {
    const struct {
        uint32_t context;
        const char *why;
    } contexts[] = {
        {whole_context(r, n_rows), "contexts that one task attends to sooner than many"},
        {few_context(r, n_rows, 4), "contexts with pieces for a quarter of the workers"},
        {few_context(r, n_rows, 2), "contexts with pieces for half of the workers"},
        {r->max_model_len, "all contexts"},
    };
    if (has_decode_only(r, n_rows)) {
        const struct planner p = {r, n_rows, r->max_model_len, true};
        const struct plan_variant v = variant_of(&p, "every row is another request's");
        TRY(push(d, variants, n, &v));
        if (n_rows > PACK_NARROW && n_rows < r->max_batched_tokens) return QN_OK;
    }
    for (uint32_t i = 0, before = 0; i < COUNT_OF(contexts); i++) {
        if (contexts[i].context <= before) continue;
        const struct planner p = {r, n_rows, contexts[i].context, false};
        const struct plan_variant v = variant_of(&p, contexts[i].why);
        TRY(push(d, variants, n, &v));
        before = contexts[i].context;
    }
    return QN_OK;
}

/* Rows of the variant after the one of n_rows. From two tiles of tokens on, a task has one of them
 * (split_packed), and a worker whose tile the iteration does not have waits. So there is a variant
 * for each number of tiles up to six, then for every second one, from 16 on two for each doubling;
 * and for every number from ten to 16 where no longer ones follow. (Those of seven and nine tiles
 * would bring 2 %: bench/measurements.md, "Prompts". A variant takes 5 MB.) */
static uint32_t rows_after(const struct plan_request *r, uint32_t n_rows) {
    if (r->device->kind != DEVICE_CUDA || n_rows < PACK_TILE / 2) return 2 * n_rows;
    if (n_rows < PACK_TILE) return n_rows + PACK_TILE / 4;
    if (n_rows >= 16 * PACK_TILE) return n_rows + (1u << (31 - __builtin_clz(n_rows))) / 2;
    const bool all = r->max_batched_tokens <= 16 * PACK_TILE && n_rows >= 10 * PACK_TILE;
    return n_rows + (n_rows < 6 * PACK_TILE || all ? 1 : 2) * PACK_TILE;
}

int plan_variants(struct diag *d, const struct plan_request *r,
                  struct plan_variant variants[PLAN_MAX_VARIANTS], uint32_t *n) {
    *n = 0;
    for (uint32_t rows = 1; rows < r->max_batched_tokens; rows = rows_after(r, rows))
        if (rows == 1 || rows >= PACK_ROWS || !device_packs(r->device, rows, r->spec->hidden))
            TRY(plan_rows(d, r, rows, variants, n));
    return plan_rows(d, r, r->max_batched_tokens, variants, n);
}

/* What op.def says of each operator, evaluated in double, is what the plain interpreter of
 * tests/reference computes: graphs of one layer in every cut, operator by operator. */
#include "base/checked.h"
#include "block/op_expr.h"
#include "block/real.h"
#include "graph/expert_list.h"
#include "graph/kv_row.h"
#include "kernels/sampling_rng.h"
#include "model/family.h"
#include "reference/experts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* base/status.h has one */

#define FAIL(...) (print_error(__VA_ARGS__), print_error("\n"), assert_true(false))

enum { ROWS = 4, CONTEXT = 300, SLOTS = 2, LOGIT_ROWS = 2 };

/* Two requests: one draws its tokens, one is greedy. One at its last position alone, one with a
 * chunk of three. */
static const int32_t tokens[ROWS] = {7, 11, 3, 90}, slots[ROWS] = {1, 0, 0, 0},
                     positions[ROWS] = {270, 140, 141, 142}, logit_rows[LOGIT_ROWS] = {0, 3};
static const uint64_t first_rows[SLOTS + 1] = {0, 143, 143 + 271};

/* What both requests have: a prompt of two tokens, and an output. */
enum { N_PROMPT = 2, N_KNOWN = 6 };
static const int32_t known_tokens[N_KNOWN] = {5, 120, 7, 64, 7, 120};
static const struct rt_sampling sampling[SLOTS] = {
    {.temperature = 0.7f,
     .top_p = 0.9f,
     .min_p = 1e-3f,
     .top_k = 60,
     .repetition_penalty = 1.3f,
     .presence_penalty = 0.25f,
     .frequency_penalty = 0.5f,
     .seed = 12345},
    {.top_p = 1, .repetition_penalty = 0.5f, .presence_penalty = -2, .frequency_penalty = -1}};

static double noise(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (double)((x ^ x >> 31) >> 11) * 0x1p-52 - 1;
}

/* ---- the graph's values in the plain interpreter ---- */

struct run {
    struct arena arena;
    struct kgraph g;
    struct reference r;
    double *old; /* the cache before the operator */
    uint64_t n_old;
};

static void fill_inputs(struct run *t) {
    uint64_t state = 1;
    for (size_t i = 0; i < t->g.tensors.n; i++) {
        const struct tensor *of = &t->g.tensors.items[i];
        if (of->role == TENSOR_ACTIVATION) continue;
        struct reference_tensor *v = reference_make(&t->r, (int32_t)i, 0, 0);
        for (uint64_t k = 0; k < v->rows * v->cols; k++) v->at[k] = noise(&state);
    }
}

static void start(struct run *t, const struct family *family, const struct model_spec *s,
                  uint32_t cuts) {
    struct diag d = {0};
    *t = (struct run){0};
    kgraph_init(&t->g, &t->arena, s, ROWS, LOGIT_ROWS, CONTEXT);
    if (family->build(&d, &t->g, family, cuts) != QN_OK ||
        reference_init(&d, &t->r, &t->g, SLOTS) != QN_OK)
        FAIL("cuts %x: %s", cuts, d.message);
    t->r.n_rows = ROWS;
    t->r.n_logit_rows = LOGIT_ROWS;
    t->r.token = tokens;
    t->r.slot = slots;
    t->r.position = positions;
    t->r.logit_row = logit_rows;
    t->r.first_row = first_rows;
    for (int i = 0; i < SLOTS; i++)
        t->r.requests[i] = (struct reference_request){.tokens = known_tokens,
                                                      .n_prompt = N_PROMPT,
                                                      .n_known = N_KNOWN,
                                                      .sampling = sampling[i]};
    fill_inputs(t);
}

static void finish(struct run *t) {
    reference_fini(&t->r);
    kgraph_fini(&t->g);
    arena_fini(&t->arena);
    free(t->old);
}

/* ---- the same as arguments of an expression ---- */

struct step {
    struct run *t;
    const struct kop *op;
    const struct op_info *info;
    struct expr x;
    struct algebra g;
    struct arena arena;
};

static int slot_of(const struct op_slot *slot, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(slot[i].name, name) == 0) return i;
    return -1;
}

/* Sums of squares of a row: SUM_SQUARES makes them one. */
static uint32_t n_squares(const struct step *s) {
    const int slot = slot_of(s->info->in, s->info->n_in, "squares");
    if (slot >= 0 && s->op->in[slot] != NO_TENSOR)
        return (uint32_t)s->t->r.tensors[s->op->in[slot]].cols;
    return CEIL_DIV(s->t->g.spec.hidden, (uint32_t)SQUARES_COLUMNS);
}

static uint32_t size_of(const struct step *s, const char *name) {
    const struct model_spec *m = &s->t->g.spec;
    const int32_t last = s->op->out[0];
    switch (name[0]) {
    case 't': return ROWS;
    case 'l': return LOGIT_ROWS;
    case 'h': return m->hidden;
    case 'i': return m->experts.n != 0 ? m->experts.shared_width : m->intermediate;
    case 'v': return m->vocab;
    case 'g': return m->n_kv_heads;
    case 'r': return m->n_heads / m->n_kv_heads;
    case 'e': return spec_rope_dim(m);
    case 'd': return s->op->attrs.DV;
    case 'm': return m->latent.kv_rank;
    case 'y': return m->latent.v_dim;
    case 'o': return m->head_dim - m->latent.rope;
    case 'x': return m->latent.q_rank;
    case 'j': return m->experts.n;
    case 'z': return m->experts.top_k;
    case 'f': return ROWS * m->experts.top_k;
    case 'a': return m->experts.width;
    case 'p': return (uint32_t)first_rows[SLOTS];
    case 's': return s->t->g.n_pieces;
    case 'b': return n_squares(s);
    case 'c': return CEIL_DIV(m->vocab, (uint32_t)LM_BLOCK);
    case 'k': return (uint32_t)s->t->r.tensors[s->op->in[0]].cols;
    case 'n': {
        const bool own = s->op->kind == OP_QKV_LINEAR || s->op->kind == OP_LINEAR;
        return own ? (uint32_t)s->t->r.tensors[last].cols : m->hidden;
    }
    case 'q': {
        const bool sums = s->op->kind == OP_SPLITK_SUM;
        return (uint32_t)s->t->r.tensors[sums ? s->op->in[0] : last].cols / m->hidden;
    }
    case 'u': return (uint32_t)s->t->g.tensors.items[last].shape[0];
    default: return (uint32_t)s->t->g.tensors.items[last].shape[1]; /* w */
    }
}

/* Where elements of an argument or output lie in its tensor, of which it may be a part. */
struct place {
    const struct reference_tensor *v;
    uint64_t offset, lead_stride; /* elements */
    uint64_t part;                /* of the part's innermost run */
    uint64_t per_row, row_stride; /* innermost runs of a row; elements */
};

static uint64_t dims_product(const struct step *s, const uint8_t *dims, uint32_t n) {
    uint64_t product = 1;
    for (uint32_t i = 0; i < n; i++) product *= s->g.sizes[dims[i]];
    return product;
}

static void base_name(const char *name, char *out) {
    const size_t n = strcspn(name, ".");
    memcpy(out, name, n);
    out[n] = '\0';
}

static bool same_base(const char *a, const char *b) {
    char x[EXPR_NAME], y[EXPR_NAME];
    base_name(a, x);
    base_name(b, y);
    return strcmp(x, y) == 0;
}

/* Parts of one tensor. */
struct part_dims {
    const char *name;
    const uint8_t *dims;
    uint32_t n;
};

/* Whether they differ in their last dim alone: then they lie side by side along it. */
static bool beside(const struct part_dims *a, const struct part_dims *b) {
    return a->n > 0 && a->n == b->n && same_base(a->name, b->name) && strchr(a->name, '.') &&
           memcmp(a->dims, b->dims, a->n - 1) == 0 && a->dims[a->n - 1] != b->dims[a->n - 1];
}

/* Part `which` of all n of an activation, if parts lie beside it. */
static bool place_beside(const struct step *s, int32_t tensor, const struct part_dims *all,
                         uint32_t n, uint32_t which, struct place *p) {
    if (all[which].n < 2) return false;
    const uint64_t mine = s->g.sizes[all[which].dims[all[which].n - 1]];
    *p = (struct place){.v = &s->t->r.tensors[tensor], .lead_stride = mine, .part = mine};
    if (s->t->g.tensors.items[tensor].role != TENSOR_ACTIVATION) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (!beside(&all[i], &all[which])) continue;
        const uint64_t other = s->g.sizes[all[i].dims[all[i].n - 1]];
        p->lead_stride += other;
        p->offset += i < which ? other : 0;
    }
    p->per_row = dims_product(s, all[which].dims + 1, all[which].n - 2u);
    p->row_stride = p->v->cols;
    if (strncmp(all[which].name, "c.", 2) == 0) /* the last columns */
        p->offset += p->v->cols - p->per_row * p->lead_stride;
    return p->lead_stride > mine;
}

/* before: elements of the parts before it, for each index of what the parts share. */
static struct place place_of(const struct step *s, int32_t tensor, const uint8_t *dims, uint32_t n,
                             uint64_t before, bool by_rows) {
    const struct tensor *t = &s->t->g.tensors.items[tensor];
    const struct reference_tensor *v = &s->t->r.tensors[tensor];
    const uint64_t last = t->n_dims > 2 ? t->shape[t->n_dims - 1] : v->cols;
    const uint64_t mine = dims_product(s, dims, n), lead = v->rows * v->cols / last;
    if (by_rows) return (struct place){v, before, mine, mine, 1, mine}; /* one run of rows */
    return (struct place){v, before, last, MAX(mine / lead, (uint64_t)1), 1, last};
}

/* The output of a part is the part's last columns (PART_HEAD). */
static void place_last(const char *name, struct place *p) {
    if (strcmp(name, "part.out") == 0) p->offset = p->lead_stride - p->part;
}

static double *element(const struct place *p, uint64_t flat) {
    const uint64_t run = flat / p->part;
    return &p->v->at[p->offset + run / p->per_row * p->row_stride +
                     run % p->per_row * p->lead_stride + flat % p->part];
}

/* Elements of parts with the same name before this one, for one index of what they share. */
static uint64_t part_elements(const struct step *s, int32_t tensor, const uint8_t *dims, uint32_t n,
                              bool by_rows) {
    const struct place p = place_of(s, tensor, dims, n, 0, by_rows);
    return p.part;
}

/* Calls for each element of a value in the order of `dims`: its place among the cells. */
static uint32_t cell_at(const struct step *s, const struct cells *v, const uint8_t *dims,
                        uint32_t n, uint64_t flat) {
    uint32_t index[BLOCK_MAX_DIMS] = {0}, at = 0;
    for (uint32_t i = n; i-- > 0;) {
        index[dims[i]] = (uint32_t)(flat % s->g.sizes[dims[i]]);
        flat /= s->g.sizes[dims[i]];
    }
    for (uint32_t d = 0; d < BLOCK_MAX_DIMS; d++)
        if (v->dims >> d & 1) at = at * s->g.sizes[d] + index[d];
    return at;
}

/* What a piece that a row does not see adds: nothing. */
static double neutral(const char *name, double v) {
    if (!isnan(v)) return v;
    return strcmp(name, "part.max") == 0 ? -INFINITY : 0;
}

/* Element [t,z] of slots, or [f] of the list: what it says, by ROUTE's tensor of that name. */
static double listed(const struct step *s, const char *name, int32_t tensor, uint64_t flat) {
    const struct reference_tensor *v = &s->t->r.tensors[tensor];
    for (uint64_t i = 0; i < v->rows; i++) {
        const double *row = v->at + i * v->cols;
        if (strcmp(name, "slots") == 0 && row[0] == (double)flat) return (double)i;
        if (strcmp(name, "list") == 0 && row[EXPERT_FIRST] <= (double)flat &&
            (double)flat < row[EXPERT_END])
            return row[EXPERT_ID];
    }
    FAIL("%s: %s has no element %llu", s->x.name, name, (unsigned long long)flat);
    return 0;
}

static bool is_listed(const char *name) {
    return strcmp(name, "slots") == 0 || strcmp(name, "list") == 0;
}

/* *out stays empty if the part has no elements. */
static void operand_cells(struct step *s, uint32_t arg, int32_t tensor, struct cells *out) {
    const struct expr_arg *a = &s->x.args[arg];
    const struct tensor *t = &s->t->g.tensors.items[tensor];
    const bool weight = t->role == TENSOR_WEIGHT;
    struct part_dims all[EXPR_MAX_ARGS];
    uint64_t before = 0;
    for (uint32_t i = 0; i < s->x.n_args; i++)
        all[i] = (struct part_dims){s->x.args[i].name, s->x.args[i].dims, s->x.args[i].n_dims};
    for (uint32_t i = 0; i < arg; i++)
        if (strchr(a->name, '.') != NULL && strcmp(strchr(a->name, '.'), ".packed") != 0 &&
            same_base(s->x.args[i].name, a->name))
            before += part_elements(s, tensor, s->x.args[i].dims, s->x.args[i].n_dims, weight);
    struct place p;
    if (!place_beside(s, tensor, all, s->x.n_args, arg, &p))
        p = place_of(s, tensor, a->dims, a->n_dims, before, weight);
    place_last(a->name, &p);
    if (before == (weight ? p.v->rows * p.v->cols : p.lead_stride)) return;
    assert_int_equal(cells_make(NULL, &s->arena, &s->g, s->x.nodes[a->node].dims, out), QN_OK);
    for (uint64_t i = 0; i < out->n; i++)
        out->at[cell_at(s, out, a->dims, a->n_dims, i)].real =
            is_listed(a->name) ? listed(s, a->name, tensor, i) : neutral(a->name, *element(&p, i));
}

static double angle(const struct step *s, uint32_t t, uint32_t e) {
    const struct model_spec *m = &s->t->g.spec;
    const uint32_t turned = spec_rope_dim(m);
    return positions[t] * pow((double)m->rope_theta, -2.0 * (e % (turned / 2)) / turned);
}

static uint32_t slot_at(uint64_t p) {
    return p < first_rows[1] ? 0 : 1;
}

/* The row of the iteration that writes a position; ROWS: none. */
static uint32_t writer_of(uint64_t p) {
    uint32_t t = 0;
    while (t < ROWS && first_rows[slots[t]] + (uint64_t)positions[t] != p) t++;
    return t;
}

static double sees(const struct step *s, uint32_t t, uint64_t p) {
    const uint32_t window = s->op->attrs.window;
    const int64_t at = (int64_t)(p - first_rows[slot_at(p)]), hi = positions[t] + 1;
    const int64_t lo = window > 0 && hi > window ? hi - window : 0;
    return slot_at(p) == (uint32_t)slots[t] && at >= lo && at < hi;
}

static double eighth(const struct step *s, uint32_t q, uint32_t k) {
    const uint32_t n = partial_tiles(size_of(s, "k"));
    return partial_nth(n, q) == partial_of(n, k / PARTIAL_TILE);
}

/* ---- experts ---- */

static uint32_t chosen(const struct step *s, uint32_t t, uint32_t z) {
    const struct reference_tensor *logits = &s->t->r.tensors[s->op->in[ROUTE_LOGITS]];
    const struct op_attrs *a = &s->op->attrs;
    uint64_t ids[SPEC_MAX_EXPERTS];
    const uint64_t n = experts_of(a, logits->at + t * logits->cols, ids);
    assert_in_range(z + 1, 1, n);
    return (uint32_t)ids[z];
}

/* Slots of experts before it, and of rows before it of the same one. */
static uint32_t place_of_slot(const struct step *s, uint32_t t, uint32_t z) {
    const uint32_t mine = chosen(s, t, z);
    uint32_t before = 0;
    for (uint32_t i = 0; i < ROWS * s->op->attrs.top_k; i++) {
        const uint32_t row = i / s->op->attrs.top_k;
        const uint32_t expert = chosen(s, row, i % s->op->attrs.top_k);
        before += expert < mine || (expert == mine && row < t);
    }
    return before;
}

/* ---- requests ---- */

static const struct rt_sampling *sampling_of(uint32_t l) {
    return &sampling[slots[logit_rows[l]]];
}

static double n_known(uint32_t v, uint32_t from) {
    uint32_t n = 0;
    for (uint32_t i = from; i < N_KNOWN; i++) n += known_tokens[i] == (int32_t)v;
    return n;
}

static double heat(uint32_t l) {
    const float temperature = sampling_of(l)->temperature;
    return temperature > 0 ? (double)temperature : 1;
}

/* What is added to a logit, so that the largest sum is a draw. */
static double gumbel(uint32_t l, uint32_t v) {
    uint32_t words[4];
    if (!(sampling_of(l)->temperature > 0)) return 0;
    rng_quad(sampling_of(l)->seed, N_KNOWN - N_PROMPT, v / 4, words);
    return -log(-log1p(-(double)rng_uniform(words[v % 4])));
}

/* The logit after penalties, over the temperature. */
static double scaled(const struct step *s, uint32_t l, uint32_t v) {
    const struct reference_tensor *logits = &s->t->r.tensors[s->op->in[SAMPLE_LOGITS]];
    const struct rt_sampling *p = sampling_of(l);
    double x = logits->at[l * logits->cols + v];
    const double by = (double)p->repetition_penalty;
    if (n_known(v, 0) > 0) x = x > 0 ? x / by : x * by;
    x -= (double)p->frequency_penalty * n_known(v, N_PROMPT);
    if (n_known(v, N_PROMPT) > 0) x -= (double)p->presence_penalty;
    return x / heat(l);
}

/* Whether u is a better token than v. */
static bool better(const struct step *s, uint32_t l, uint32_t u, uint32_t v) {
    const double x = scaled(s, l, u), y = scaled(s, l, v);
    return x > y || (x == y && u < v);
}

/* By the rule of each filter alone: what is better than v, of the tokens that the filters before it
 * leave. */
static bool kept(const struct step *s, uint32_t l, uint32_t v) {
    const struct rt_sampling *p = sampling_of(l);
    const uint32_t vocab = s->t->g.spec.vocab;
    double best = -INFINITY, total = 0, above = 0;
    uint32_t n_above = 0;
    if (!(p->temperature > 0)) return true;
    for (uint32_t u = 0; u < vocab; u++) best = fmax(best, scaled(s, l, u));
    for (uint32_t u = 0; u < vocab; u++) {
        const double weight = exp(scaled(s, l, u) - best);
        uint32_t rank = 0;
        for (uint32_t w = 0; w < vocab; w++) rank += better(s, l, w, u);
        if (weight < (double)p->min_p || rank >= (uint32_t)p->top_k) continue;
        total += weight;
        if (better(s, l, u, v)) above += weight;
    }
    for (uint32_t u = 0; u < vocab; u++) n_above += better(s, l, u, v);
    return exp(scaled(s, l, v) - best) >= (double)p->min_p && n_above < (uint32_t)p->top_k &&
           above < (double)p->top_p * total;
}

/* ---- what is no operand ---- */

static bool attribute(const struct op_attrs *a, const char *name, double *out) {
    const struct {
        const char *name;
        double value;
    } all[] = {
#define ATTR(kind, name, ...) {#name, (double)a->name},
#include "graph/attr.def"
    };
    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (strcmp(all[i].name, name) == 0) {
            *out = all[i].value;
            return true;
        }
    return false;
}

static double of_request(const struct step *s, const char *name, uint32_t l, uint32_t v) {
    const struct rt_sampling *p = sampling_of(l);
    if (strcmp(name, "bias") == 0) return 0;
    if (strcmp(name, "known") == 0) return n_known(v, 0) > 0;
    if (strcmp(name, "said") == 0) return n_known(v, N_PROMPT) > 0;
    if (strcmp(name, "count") == 0) return n_known(v, N_PROMPT);
    if (strcmp(name, "repetition") == 0) return (double)p->repetition_penalty;
    if (strcmp(name, "frequency") == 0) return (double)p->frequency_penalty;
    if (strcmp(name, "presence") == 0) return (double)p->presence_penalty;
    if (strcmp(name, "heat") == 0) return heat(l);
    if (strcmp(name, "noise") == 0) return gumbel(l, v);
    if (strcmp(name, "kept") == 0) return kept(s, l, v);
    FAIL("op.def: %s: what is '%s'?", s->x.name, name);
    return 0;
}

/* An element [i,k] of an argument that is no operand: op.def lists them. */
static double other_element(const struct step *s, const char *name, uint32_t i, uint32_t k) {
    const struct kv_row row = spec_kv_row(&s->t->g.spec, DTYPE_F32);
    const uint64_t width = (uint64_t)kv_vectors(&row) * row.k_width;
    double value;
    if (attribute(&s->op->attrs, name, &value)) return value;
    if (strcmp(name, "token") == 0) return tokens[i];
    if (strcmp(name, "row") == 0) return logit_rows[i];
    if (strcmp(name, "cos") == 0) return cos(angle(s, i, k));
    if (strcmp(name, "sin") == 0)
        return sin(angle(s, i, k)) * (k < spec_rope_dim(&s->t->g.spec) / 2 ? -1 : 1);
    if (strcmp(name, "new") == 0) return writer_of(i) < ROWS;
    if (strcmp(name, "writer") == 0) return writer_of(i) % ROWS;
    if (strcmp(name, "sees") == 0) return sees(s, i, k);
    if (strcmp(name, "piece") == 0) return (k - first_rows[slot_at(k)]) / ATTENTION_PIECE == i;
    if (strcmp(name, "cols") == 0) return k / SQUARES_COLUMNS == i;
    if (strcmp(name, "block") == 0) return k / LM_BLOCK == i;
    if (strcmp(name, "eighths") == 0) return eighth(s, i, k);
    if (strcmp(name, "old.k") == 0 || strcmp(name, "old.m") == 0) return s->t->old[i * width + k];
    if (strcmp(name, "old.v") == 0) return s->t->old[i * width + width / 2 + k];
    if (strcmp(name, "old.e") == 0) return s->t->old[i * width + row.v_width + k];
    if (strcmp(name, "chosen") == 0) return chosen(s, i, k);
    if (strcmp(name, "places") == 0) return place_of_slot(s, i, k);
    return of_request(s, name, i, k);
}

static void other_cells(struct step *s, uint32_t arg, struct cells *out) {
    const struct expr_arg *a = &s->x.args[arg];
    const uint64_t inner = a->n_dims > 1 ? dims_product(s, a->dims + 1, a->n_dims - 1u) : 1;
    assert_int_equal(cells_make(NULL, &s->arena, &s->g, s->x.nodes[a->node].dims, out), QN_OK);
    for (uint64_t i = 0; i < out->n; i++)
        out->at[cell_at(s, out, a->dims, a->n_dims, i)].real =
            other_element(s, a->name, (uint32_t)(i / inner), (uint32_t)(i % inner));
}

static void argument(struct step *s, uint32_t arg, struct cells *out) {
    const char *name = s->x.args[arg].name, *part = strchr(name, '.');
    char base[EXPR_NAME], packed[EXPR_NAME + 8];
    base_name(name, base);
    const int slot = slot_of(s->info->in, s->info->n_in, base);
    if (slot < 0) {
        other_cells(s, arg, out);
        return;
    }
    if (s->op->in[slot] == NO_TENSOR) return;
    const bool is = s->t->g.tensors.items[s->op->in[slot]].layout == LAYOUT_PACKED;
    snprintf(packed, sizeof packed, "%s.packed", base);
    const bool for_packed = part != NULL && strcmp(part, ".packed") == 0;
    if (for_packed ? !is : is && expr_find_arg(&s->x, packed) >= 0) return;
    operand_cells(s, arg, s->op->in[slot], out);
}

/* ---- one operator ---- */

static void check_output(struct step *s, uint32_t which, const struct cells *v) {
    const struct expr_out *o = &s->x.out[which];
    char base[EXPR_NAME];
    base_name(o->name, base);
    const int slot = slot_of(s->info->out, s->info->n_out, base);
    assert_true(slot >= 0);
    const int32_t tensor = s->op->out[slot];
    uint64_t before = 0, n = dims_product(s, o->dims, o->n_dims);
    double largest = 0;
    if (tensor == NO_TENSOR) return;
    for (uint32_t i = 0; i < which; i++)
        if (strchr(o->name, '.') != NULL && same_base(s->x.out[i].name, o->name))
            before += part_elements(s, tensor, s->x.out[i].dims, s->x.out[i].n_dims, false);
    struct part_dims all[EXPR_MAX_OUT];
    struct place p;
    for (uint32_t i = 0; i < s->x.n_out; i++)
        all[i] = (struct part_dims){s->x.out[i].name, s->x.out[i].dims, s->x.out[i].n_dims};
    if (is_listed(base)) {
        for (uint64_t i = 0; i < n; i++)
            assert_true(v->at[cell_at(s, v, o->dims, o->n_dims, i)].real ==
                        listed(s, base, tensor, i));
        return;
    }
    if (!place_beside(s, tensor, all, s->x.n_out, which, &p))
        p = place_of(s, tensor, o->dims, o->n_dims, before, false);
    place_last(o->name, &p);
    if (before == p.lead_stride) return; /* no elements */
    for (uint64_t i = 0; i < n; i++)
        if (!isnan(*element(&p, i))) largest = fmax(largest, fabs(*element(&p, i)));
    assert_true(largest > 0);
    for (uint64_t i = 0; i < n; i++) {
        const double want = *element(&p, i);
        const double have = v->at[cell_at(s, v, o->dims, o->n_dims, i)].real;
        if (!isnan(want) && !(fabs(have - want) <= 1e-11 * largest))
            FAIL("%s: %s, element %llu: %.17g by op.def, %.17g by the reference", s->x.name,
                 o->name, (unsigned long long)i, have, want);
    }
}

/* Values of the outputs that the operator has. */
static void check_values(struct step *s, const struct cells *args) {
    static struct cells nodes[EXPR_MAX_NODES];
    struct diag d = {0};
    uint32_t absent = 0;
    for (uint32_t i = 0; i < s->x.n_args; i++) absent |= args[i].at == NULL ? 1u << i : 0;
    for (uint32_t i = 0; i < s->x.n_out; i++) {
        bool needed[EXPR_MAX_NODES] = {false};
        char base[EXPR_NAME];
        base_name(s->x.out[i].name, base);
        if (s->op->out[slot_of(s->info->out, s->info->n_out, base)] == NO_TENSOR) continue;
        expr_needed(&s->x, s->x.out[i].node, absent, needed);
        if (expr_cells(&d, &s->arena, &s->g, &s->x, args, needed, nodes) != QN_OK)
            FAIL("%s: %s", s->x.name, d.message);
        check_output(s, i, &nodes[s->x.out[i].node]);
    }
}

static void keep_cache(struct run *t, const struct kop *op) {
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (op->out[i] == NO_TENSOR || t->g.tensors.items[op->out[i]].role != TENSOR_STATE)
            continue;
        const struct reference_tensor *v = &t->r.tensors[op->out[i]];
        free(t->old);
        t->old = malloc(v->rows * v->cols * sizeof *t->old);
        memcpy(t->old, v->at, v->rows * v->cols * sizeof *t->old);
    }
}

static void check_operator(struct run *t, uint32_t index, bool *seen) {
    struct step *s = calloc(1, sizeof *s);
    struct cells args[EXPR_MAX_ARGS] = {{0}};
    struct diag d = {0};
    s->t = t;
    s->op = &t->g.ops.items[index];
    s->info = op_info_of(s->op->kind);
    keep_cache(t, s->op);
    reference_op(&t->r, index);
    if (op_expr_parse(&d, s->op->kind, spec_is_latent(&t->g.spec), &s->x) != QN_OK)
        FAIL("%s", d.message);
    real_init(&s->g);
    for (uint32_t i = 0; i < s->x.n_dims; i++) s->g.sizes[i] = size_of(s, s->x.dims[i].name);
    for (uint32_t i = 0; i < s->x.n_args; i++) argument(s, i, &args[i]);
    check_values(s, args);
    seen[s->op->kind] = true;
    arena_fini(&s->arena);
    free(s);
}

static void check_graph(const struct family *family, const struct model_spec *s, uint32_t cuts,
                        bool *seen) {
    struct run t;
    start(&t, family, s, cuts);
    for (uint32_t i = 0; i < t.g.ops.n; i++) check_operator(&t, i, seen);
    finish(&t);
}

/* Experts with and without a gate of the shared ones, groups and weights that add up to 1; latents
 * of queries, too. */
static void check_experts_and_latents(struct model_spec s, bool *seen) {
    static const uint32_t cuts[] = {0, KGRAPH_CUT_ATTENTION, KGRAPH_CUT_ATTENTION | KGRAPH_STATIC,
                                    KGRAPH_CUT_ATTENTION | KGRAPH_JOIN_VALUES,
                                    KGRAPH_CUT_QKV | KGRAPH_PACK_X | KGRAPH_PACK_O | KGRAPH_PACK_H};
    const struct experts_spec experts[] = {
        {.n = 9, .top_k = 3, .width = 24, .shared_width = 40, .shared_gate = 1, .scale = 1},
        {.n = 8, .top_k = 4, .width = 20, .normed = 1, .scale = 1},
        {.n = 9,
         .top_k = 3,
         .width = 24,
         .shared_width = 40,
         .groups = 3,
         .top_groups = 2,
         .scale = 2.5f}};
    for (size_t i = 0; i < COUNT_OF(experts); i++) {
        s.experts = experts[i];
        s.qkv_bias = i % 2;
        check_graph(&family_qwen2_moe, &s, cuts[i], seen);
    }
    s.n_kv_heads = 1;
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        s.qkv_bias = i % 2;
        s.head_dim = 22;
        s.latent = (struct latent_spec){
            .kv_rank = 20, .q_rank = i < 2 ? 0 : 28, .rope = 8, .v_dim = 12, .scale = 0.3f};
        check_graph(&family_deepseek_v2, &s, cuts[i], seen);
    }
}

static void meanings_are_the_reference(void **state) {
    (void)state;
    enum { PACKED = KGRAPH_CUT_QKV | KGRAPH_PACK_X | KGRAPH_PACK_O | KGRAPH_PACK_H };
    static const uint32_t cuts[] = {
        0,
        KGRAPH_CUT_ATTENTION,
        KGRAPH_CUT_QKV,
        KGRAPH_CUT_QKV | KGRAPH_CUT_ATTENTION | KGRAPH_JOIN_HEADS,
        KGRAPH_CUT_QKV | KGRAPH_JOIN_HEADS | KGRAPH_IMAGES,
        PACKED | KGRAPH_JOIN_HEADS | KGRAPH_RESET_SENTINELS,
        PACKED | KGRAPH_SUM_SQUARES,
        PACKED | KGRAPH_SUM_SQUARES | KGRAPH_CUT_LINEAR | KGRAPH_IMAGES,
    };
    struct model_spec s = {.n_layers = 1,
                           .hidden = 64,
                           .intermediate = 600,
                           .vocab = 150,
                           .n_heads = 4,
                           .n_kv_heads = 2,
                           .head_dim = 16,
                           .max_position = 4096,
                           .rms_eps = 1e-3f,
                           .weight_dtype = DTYPE_F32,
                           .rope_theta = 1e4f,
                           .bos = -1};
    bool seen[N_OP_KINDS] = {false};
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        s.qk_norm = s.o_bias = i % 2;
        s.qkv_bias = s.mlp_bias = i / 2 % 2;
        s.sliding_window = i % 3 == 1 ? 100 : 0;
        check_graph(&family_qwen3, &s, cuts[i], seen);
    }
    s.qk_norm = s.o_bias = s.mlp_bias = s.sliding_window = 0;
    check_experts_and_latents(s, seen);
    uint32_t n = 0; /* op.def may have operators that no model has yet */
    for (int kind = OP_NONE + 1; kind < N_OP_KINDS; kind++) n += seen[kind];
    assert_true(n >= 25);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(meanings_are_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

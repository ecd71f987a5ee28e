/* What op.def says of each operator, evaluated in double, is what the plain interpreter of
 * tests/reference computes: graphs of one layer in every cut, operator by operator. SAMPLE alone
 * has no value: `choose` is a function of which nothing is known. */
#include "base/checked.h"
#include "block/op_expr.h"
#include "block/real.h"
#include "model/family.h"
#include "reference/reference.h"

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

/* Two requests: one at its last position alone, one with a chunk of three. */
static const int32_t tokens[ROWS] = {7, 11, 3, 90}, slots[ROWS] = {1, 0, 0, 0},
                     positions[ROWS] = {270, 140, 141, 142}, logit_rows[LOGIT_ROWS] = {0, 3};
static const uint64_t first_rows[SLOTS + 1] = {0, 143, 143 + 271};

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
    static const int32_t known[1] = {1};
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
        t->r.requests[i] = (struct reference_request){.tokens = known, .n_prompt = 1, .n_known = 1};
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
    struct op_info info;
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
    const int slot = slot_of(s->info.in, s->info.n_in, "squares");
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
    case 'i': return m->intermediate;
    case 'v': return m->vocab;
    case 'g': return m->n_kv_heads;
    case 'r': return m->n_heads / m->n_kv_heads;
    case 'e':
    case 'd': return m->head_dim;
    case 'p': return (uint32_t)first_rows[SLOTS];
    case 's': return s->t->g.n_pieces;
    case 'b': return n_squares(s);
    case 'c': return CEIL_DIV(m->vocab, (uint32_t)LM_BLOCK);
    case 'k': return (uint32_t)s->t->r.tensors[s->op->in[0]].cols;
    case 'n': return m->hidden;
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

/* before: elements of the parts before it, for each index of what the parts share. */
static struct place place_of(const struct step *s, int32_t tensor, const uint8_t *dims, uint32_t n,
                             uint64_t before, bool by_rows) {
    const struct tensor *t = &s->t->g.tensors.items[tensor];
    const struct reference_tensor *v = &s->t->r.tensors[tensor];
    const uint64_t last = t->n_dims > 2 ? t->shape[t->n_dims - 1] : v->cols;
    const uint64_t mine = dims_product(s, dims, n), lead = v->rows * v->cols / last;
    if (by_rows) return (struct place){v, before, mine, mine}; /* one run of rows */
    return (struct place){v, before, last, MAX(mine / lead, (uint64_t)1)};
}

static double *element(const struct place *p, uint64_t flat) {
    return &p->v->at[p->offset + flat / p->part * p->lead_stride + flat % p->part];
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

static bool same_base(const char *a, const char *b) {
    char x[EXPR_NAME], y[EXPR_NAME];
    base_name(a, x);
    base_name(b, y);
    return strcmp(x, y) == 0;
}

/* What a piece that a row does not see adds: nothing. */
static double neutral(const char *name, double v) {
    if (!isnan(v)) return v;
    return strcmp(name, "part.max") == 0 ? -INFINITY : 0;
}

static void operand_cells(struct step *s, uint32_t arg, int32_t tensor, struct cells *out) {
    const struct expr_arg *a = &s->x.args[arg];
    const bool weight = s->t->g.tensors.items[tensor].role == TENSOR_WEIGHT;
    uint64_t before = 0;
    for (uint32_t i = 0; i < arg; i++)
        if (strchr(a->name, '.') != NULL && strcmp(strchr(a->name, '.'), ".packed") != 0 &&
            same_base(s->x.args[i].name, a->name))
            before += part_elements(s, tensor, s->x.args[i].dims, s->x.args[i].n_dims, weight);
    const struct place p = place_of(s, tensor, a->dims, a->n_dims, before, weight);
    assert_int_equal(cells_make(NULL, &s->arena, &s->g, s->x.nodes[a->node].dims, out), QN_OK);
    for (uint64_t i = 0; i < out->n; i++)
        out->at[cell_at(s, out, a->dims, a->n_dims, i)].real = neutral(a->name, *element(&p, i));
}

static double angle(const struct step *s, uint32_t t, uint32_t e) {
    const struct model_spec *m = &s->t->g.spec;
    const uint32_t half = m->head_dim / 2;
    return positions[t] * pow((double)m->rope_theta, -2.0 * (e % half) / m->head_dim);
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

/* An element [i,k] of an argument that is no operand: op.def lists them. */
static double other_element(const struct step *s, const char *name, uint32_t i, uint32_t k) {
    const uint64_t kv = (uint64_t)s->t->g.spec.n_kv_heads * s->t->g.spec.head_dim;
    const struct op_attrs *attrs = &s->op->attrs;
    if (strcmp(name, "eps") == 0) return (double)attrs->eps;
    if (strcmp(name, "scale") == 0) return (double)attrs->scale;
    if (strcmp(name, "token") == 0) return tokens[i];
    if (strcmp(name, "row") == 0) return logit_rows[i];
    if (strcmp(name, "cos") == 0) return cos(angle(s, i, k));
    if (strcmp(name, "sin") == 0)
        return sin(angle(s, i, k)) * (k < s->t->g.spec.head_dim / 2 ? -1 : 1);
    if (strcmp(name, "new") == 0) return writer_of(i) < ROWS;
    if (strcmp(name, "writer") == 0) return writer_of(i) % ROWS;
    if (strcmp(name, "sees") == 0) return sees(s, i, k);
    if (strcmp(name, "piece") == 0) return (k - first_rows[slot_at(k)]) / ATTENTION_PIECE == i;
    if (strcmp(name, "cols") == 0) return k / SQUARES_COLUMNS == i;
    if (strcmp(name, "block") == 0) return k / LM_BLOCK == i;
    if (strcmp(name, "eighths") == 0) return eighth(s, i, k);
    if (strcmp(name, "old.k") == 0) return s->t->old[(uint64_t)i * 2 * kv + k];
    if (strcmp(name, "old.v") == 0) return s->t->old[(uint64_t)i * 2 * kv + kv + k];
    FAIL("op.def: %s: what is '%s'?", s->x.name, name);
    return 0;
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
    const int slot = slot_of(s->info.in, s->info.n_in, base);
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
    const int slot = slot_of(s->info.out, s->info.n_out, base);
    assert_true(slot >= 0);
    const int32_t tensor = s->op->out[slot];
    uint64_t before = 0, n = dims_product(s, o->dims, o->n_dims);
    double largest = 0;
    if (tensor == NO_TENSOR) return;
    for (uint32_t i = 0; i < which; i++)
        if (strchr(o->name, '.') != NULL && same_base(s->x.out[i].name, o->name))
            before += part_elements(s, tensor, s->x.out[i].dims, s->x.out[i].n_dims, false);
    const struct place p = place_of(s, tensor, o->dims, o->n_dims, before, false);
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
        if (s->op->out[slot_of(s->info.out, s->info.n_out, base)] == NO_TENSOR) continue;
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
    op_describe(s->op->kind, &s->info);
    keep_cache(t, s->op);
    reference_op(&t->r, index);
    if (op_expr_parse(&d, s->op->kind, spec_is_latent(&t->g.spec), &s->x) != QN_OK)
        FAIL("%s", d.message);
    real_init(&s->g);
    for (uint32_t i = 0; i < s->x.n_dims; i++) s->g.sizes[i] = size_of(s, s->x.dims[i].name);
    if (s->op->kind != OP_SAMPLE) {
        for (uint32_t i = 0; i < s->x.n_args; i++) argument(s, i, &args[i]);
        check_values(s, args);
        seen[s->op->kind] = true;
    }
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
    uint32_t n = 0; /* of op.def's operators all but SAMPLE, and such as no model has yet */
    for (int kind = OP_NONE + 1; kind < N_OP_KINDS; kind++) n += seen[kind];
    assert_true(n >= 18);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(meanings_are_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

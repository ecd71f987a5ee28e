/* kgraph_prove.c - see kgraph_prove.h. */
#include "block/kgraph_prove.h"
#include "base/checked.h"
#include "block/op_expr.h"
#include "graph/kv_row.h"

#include <stdio.h>
#include <string.h>

/* ---- dims that all operators share ---- */

/* op.def's dims of one letter except k, n and d, which stand for tuples of the others. After them
 * come *flat* dims: rows of a weight that have no known letter. Its size identifies a flat dim. */
static const char global_dims[] = "tlhivgrepsbqcuwmyoxjzfa";
enum { N_GLOBAL = sizeof global_dims - 1, MAX_FLAT = 4, MAX_TUPLE = FORM_INPUT_DIMS };
enum { MAX_PARTS = 4, MAX_NAMED = 5 };
_Static_assert(N_GLOBAL + MAX_FLAT <= BLOCK_MAX_DIMS, "dims of forms");

static int global_dim(const char *name) {
    const char *at = name[0] != '\0' && name[1] == '\0' ? strchr(global_dims, name[0]) : NULL;
    return at == NULL ? -1 : (int)(at - global_dims);
}

/* The width of a layer's gated MLP; with experts, of the shared MLP that all tokens use. */
static uint64_t mlp_width(const struct model_spec *s, int layer) {
    const bool sparse = layer >= 0 && spec_is_sparse(s, (uint32_t)layer);
    return sparse ? s->experts.shared_width : s->intermediate;
}

/* Elements along a letter in an operator; 0: not known, or nothing depends on it. */
static uint64_t letter_size(const struct kgraph *g, char letter, const struct kop *op) {
    const struct model_spec *s = &g->spec;
    switch (letter) {
    case 't': return g->n_rows;
    case 'l': return op->kind == OP_PACK_LOGITS ? g->n_logit_rows : op->attrs.band;
    case 'h': return s->hidden;
    case 'i': return mlp_width(s, op->layer);
    case 'v': return s->vocab;
    case 'g': return s->n_kv_heads;
    case 'r': return s->n_heads / s->n_kv_heads;
    case 'e': return spec_rope_dim(s);
    case 'm': return s->latent.kv_rank;
    case 'y': return s->latent.v_dim;
    case 'o': return s->head_dim - s->latent.rope;
    case 'x': return s->latent.q_rank;
    case 'j': return s->experts.n;
    case 'z': return s->experts.top_k;
    case 'f': return (uint64_t)g->n_rows * s->experts.top_k;
    case 'a': return s->experts.width;
    case 's': return g->n_pieces;
    case 'b': return CEIL_DIV(s->hidden, (uint32_t)SQUARES_COLUMNS);
    case 'c': return CEIL_DIV(s->vocab, (uint32_t)LM_BLOCK);
    default: return 0;
    }
}

/* A sequence of dims. */
struct tuple {
    uint8_t n, at[MAX_TUPLE];
};

/* ---- a graph's values ---- */

struct part {
    form_id form;
    struct tuple dims;
};

/* The columns of a value that an operator's argument stands for. */
struct named {
    const struct expr_arg *by;
    uint64_t columns;
};

struct tensor_value {
    uint32_t n, n_named;
    struct part parts[MAX_PARTS];
    struct named named[MAX_NAMED]; /* where its last dim is flat */
};

/* A value at which two graphs are compared. */
struct compared {
    const char *label; /* "kv.3.k", "stream 4" */
    form_id form;
    uint32_t op; /* the operator that has it as an output */
    const char *output;
    uint32_t first_op; /* operators since the last compared value */
    bool taken;        /* in the reference: a value of the compared graph has matched it */
};

/* One graph, whose operators become forms in turn. */
struct walk {
    struct diag *d;
    struct kgraph_meaning *m;
    const struct kgraph *g;
    struct tensor_value *values; /* [g->tensors.n] */
    ARRAY(struct compared) compared;
    uint32_t n_stream, first_op;
};

struct kgraph_meaning {
    struct arena arena;
    struct forms *f;
    struct expr *exprs[N_OP_KINDS];
    struct map numbers; /* name of an input -> its number in the forms */
    ARRAY(struct compared) reference;
    struct model_spec spec;
    uint64_t flat[MAX_FLAT]; /* sizes of flat dims; 0: not used */
};

/* One operator while it becomes forms. */
struct step {
    struct walk *w;
    uint32_t index;
    const struct kop *op;
    const struct expr *x;
    const struct op_info *info;
    form_id args[EXPR_MAX_ARGS];
    struct tuple dims[BLOCK_MAX_DIMS]; /* of the expression's dims */
    bool bound[BLOCK_MAX_DIMS];
    uint32_t absent; /* bits */
};

static int fail_step(const struct step *s, const char *what, const char *name) {
    return fail(s->w->d, QN_EVERIFY, "kernel graph: operator %u, %s of layer %d: '%s' %s", s->index,
                op_name(s->op->kind), s->op->layer, name, what);
}

/* The number of an input with this name; equal names are the same input. */
static int input_number(struct walk *w, const char *name, uint32_t *out) {
    uint64_t number = w->m->numbers.n;
    char *kept;
    if (map_find(&w->m->numbers, name, strlen(name), &number)) {
        *out = (uint32_t)number;
        return QN_OK;
    }
    TRY(arena_strdup(w->d, &w->m->arena, name, &kept));
    TRY(map_put(w->d, &w->m->numbers, kept, strlen(kept), number, NULL));
    *out = (uint32_t)number;
    return QN_OK;
}

static int make_input(struct walk *w, const char *name, enum form_input_kind kind,
                      const struct tuple *dims, form_id *out) {
    uint32_t number;
    TRY(input_number(w, name, &number));
    *out = form_input(w->m->f, number, kind, dims->at, dims->n);
    return QN_OK;
}

/* ---- names of arguments ---- */

/* Splits "qkv.k" into the operand's name and the part after the point; *part: NULL without one. */
static void split_name(const char *name, char base[EXPR_NAME], const char **part) {
    const char *point = strchr(name, '.');
    const size_t n = point == NULL ? strlen(name) : (size_t)(point - name);
    memcpy(base, name, n);
    base[n] = '\0';
    *part = point == NULL ? NULL : point + 1;
}

static int find_slot(const struct op_slot *slots, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(slots[i].name, name) == 0) return i;
    return -1;
}

static bool same_operand(const char *a, const char *b) {
    char base_a[EXPR_NAME], base_b[EXPR_NAME];
    const char *part_a, *part_b;
    split_name(a, base_a, &part_a);
    split_name(b, base_b, &part_b);
    return strcmp(base_a, base_b) == 0 && part_a != NULL && part_b != NULL;
}

/* Which part of its operand an argument is, counted in order; *n: how many parts have that name. */
static uint32_t part_of_arg(const struct expr *x, uint32_t arg, uint32_t *n) {
    uint32_t which = 0;
    *n = 1;
    if (strchr(x->args[arg].name, '.') == NULL) return 0;
    *n = 0;
    for (uint32_t i = 0; i < x->n_args; i++) {
        if (!same_operand(x->args[i].name, x->args[arg].name)) continue;
        if (i == arg) which = *n;
        (*n)++;
    }
    return which;
}

static uint32_t part_of_out(const struct expr *x, uint32_t out) {
    uint32_t which = 0;
    if (strchr(x->out[out].name, '.') == NULL) return 0;
    for (uint32_t i = 0; i < out; i++) which += same_operand(x->out[i].name, x->out[out].name);
    return which;
}

/* ---- dims of an operator ---- */

static void bind_dim(struct step *s, uint8_t dim, const uint8_t *at, uint32_t n) {
    s->bound[dim] = true;
    s->dims[dim].n = (uint8_t)n;
    memcpy(s->dims[dim].at, at, n);
}

/* Matches the dims of an argument with those of its value. A letter matches itself, or nothing if
 * the value has a single element along it. k and n take the bound or all remaining dims. */
static int match_value(struct step *s, const struct expr_arg *a, const struct tuple *have) {
    uint32_t at = 0;
    for (int i = 0; i < a->n_dims; i++) {
        const uint8_t dim = a->dims[i];
        const int global = global_dim(s->x->dims[dim].name);
        uint32_t n = 0;
        if (global >= 0)
            n = at < have->n && have->at[at] == global;
        else if (s->bound[dim])
            n = s->dims[dim].n;
        else
            n = have->n - at;
        if (at + n > have->n) return fail_step(s, "has other dims than its value", a->name);
        if (s->bound[dim] &&
            (s->dims[dim].n != n || memcmp(s->dims[dim].at, have->at + at, n) != 0))
            return fail_step(s, "has other dims than the operands before it", a->name);
        bind_dim(s, dim, have->at + at, n);
        at += n;
    }
    return at == have->n ? QN_OK : fail_step(s, "has fewer dims than its value", a->name);
}

/* The dims of a tensor that does not take them from another operator's value. */
static int own_dims(struct step *s, const char *name, const uint8_t *dims, uint32_t n,
                    struct tuple *out) {
    out->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int global = global_dim(s->x->dims[dims[i]].name);
        const uint8_t letter = (uint8_t)global;
        if (!s->bound[dims[i]]) {
            if (global < 0) return fail_step(s, "has a dim that no operand gives", name);
            bind_dim(s, dims[i], &letter, 1);
        }
        const struct tuple *t = &s->dims[dims[i]];
        if (out->n + t->n > MAX_TUPLE) return fail_step(s, "has too many dims", name);
        memcpy(out->at + out->n, t->at, t->n);
        out->n = (uint8_t)(out->n + t->n);
    }
    return QN_OK;
}

static uint64_t tuple_size(const struct step *s, const struct tuple *t) {
    uint64_t n = 1;
    for (int i = 0; i < t->n; i++)
        n *= t->at[i] < N_GLOBAL ? letter_size(s->w->g, global_dims[t->at[i]], s->op)
                                 : s->w->m->flat[t->at[i] - N_GLOBAL];
    return n;
}

static bool is_flat(uint8_t dim) {
    return dim >= N_GLOBAL;
}

/* Whether a dim of the operator is bound to this dim. */
static bool is_used(const struct step *s, uint8_t dim) {
    for (uint32_t i = 0; i < s->x->n_dims; i++)
        for (int k = 0; s->bound[i] && k < s->dims[i].n; k++)
            if (s->dims[i].at[k] == dim) return true;
    return false;
}

/* Binds the rows of a weight that no operand has named. They are `h` if there are `hidden` rows,
 * except in QKV_LINEAR and where the operator uses h or the queries' latent. Else they are a flat
 * dim of that size that the operator does not use yet. */
static int bind_rows(struct step *s, uint8_t dim, uint64_t rows, const char *name) {
    const uint8_t hidden = (uint8_t)global_dim("h"), latent = (uint8_t)global_dim("x");
    uint64_t *flat = s->w->m->flat;
    if (rows == s->w->g->spec.hidden && s->op->kind != OP_QKV_LINEAR && !is_used(s, hidden) &&
        !is_used(s, latent)) {
        bind_dim(s, dim, &hidden, 1);
        return QN_OK;
    }
    for (uint32_t i = 0; i < MAX_FLAT; i++) {
        const uint8_t letter = (uint8_t)(N_GLOBAL + i);
        if ((flat[i] != 0 && flat[i] != rows) || is_used(s, letter)) continue;
        flat[i] = rows;
        bind_dim(s, dim, &letter, 1);
        return QN_OK;
    }
    return fail_step(s, "has rows of one more size than are told apart", name);
}

/* Describes a part of a weight: its tensor or stack of tensors, and the order of its elements. */
static void tell_part(const struct weight_part *p, struct strbuf *out) {
    strbuf_str(out, p->name);
    if (p->stack != 0) strbuf_printf(out, " x %u", p->stack);
    for (size_t i = 0; i < sizeof p->source; i++)
        if (((const unsigned char *)&p->source)[i] != 0)
            strbuf_printf(out, " %zu:%02x", i, ((const unsigned char *)&p->source)[i]);
}

/* ---- arguments ---- */

static int absent_arg(struct step *s, uint32_t arg) {
    if (s->x->args[arg].fallback == EXPR_NO_NODE)
        return fail_step(s, "is missing", s->x->args[arg].name);
    s->absent |= 1u << arg;
    return QN_OK;
}

/* Describes the n parts of a weight that an argument is. An argument without parts of its own is
 * all of them, one after the other. */
static int tell_parts(struct step *s, const struct weight_part *p, uint32_t n, struct strbuf *out) {
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0) strbuf_str(out, ", then ");
        tell_part(&p[i], out);
    }
    return strbuf_status(s->w->d, out);
}

/* A part's rows times its columns must be the product of the dims' sizes. */
static int weight_arg(struct step *s, uint32_t arg, const struct tensor *t) {
    const struct kgraph *g = s->w->g;
    const struct expr_arg *a = &s->x->args[arg];
    struct tuple dims;
    uint32_t n;
    const uint32_t which = part_of_arg(s->x, arg, &n);
    const bool whole = strchr(a->name, '.') == NULL || t->n_parts == 1;
    if (!whole && t->n_parts > n)
        return fail_step(s, "has another number of parts than its weight", a->name);
    if (which >= t->n_parts) return absent_arg(s, arg);
    const struct weight_part *p = &g->parts.items[t->first_part + which];
    if (a->n_dims > 0 && !s->bound[a->dims[0]] && global_dim(s->x->dims[a->dims[0]].name) < 0)
        TRY(bind_rows(s, a->dims[0], whole ? t->shape[0] : p->rows, a->name));
    TRY(own_dims(s, a->name, a->dims, a->n_dims, &dims));
    const uint64_t cols = t->n_dims > 1 ? t->shape[1] : 1;
    const uint64_t elements = whole ? tensor_elements(t) : p->rows * cols;
    if (tuple_size(s, &dims) != elements)
        return fail_step(s, "has another shape than its weight", a->name);
    struct strbuf name = {0};
    int rc = tell_parts(s, p, whole ? t->n_parts : 1, &name);
    if (rc == QN_OK) rc = make_input(s->w, strbuf_text(&name), FORM_REAL, &dims, &s->args[arg]);
    strbuf_fini(&name);
    return rc;
}

/* The dims of a part of a value whose last dim is flat: those after the value's other dims. */
static int dims_in_flat(struct step *s, const struct expr_arg *a, const struct tuple *have,
                        struct tuple *inner) {
    const uint32_t outer = have->n - 1u;
    for (uint32_t i = 0; i < outer; i++)
        if (i >= a->n_dims || global_dim(s->x->dims[a->dims[i]].name) != have->at[i])
            return fail_step(s, "has other dims than its value", a->name);
    for (uint32_t i = 0; i < outer; i++) bind_dim(s, a->dims[i], &have->at[i], 1);
    return own_dims(s, a->name, a->dims + outer, a->n_dims - outer, inner);
}

/* Records that an argument names columns of a value of n columns. The same argument names the same
 * columns in every operator of its kind. At most n columns are named. */
static int name_columns(struct step *s, const struct expr_arg *a, struct tensor_value *v,
                        uint64_t columns, uint64_t n) {
    uint64_t before = 0;
    for (uint32_t i = 0; i < v->n_named; i++) {
        if (v->named[i].by == a && v->named[i].columns == columns) return QN_OK;
        if (v->named[i].by == a) return fail_step(s, "has two sizes in one value", a->name);
        before += v->named[i].columns;
    }
    if (columns > n - before || v->n_named == MAX_NAMED)
        return fail_step(s, "and other parts are more than their value", a->name);
    v->named[v->n_named++] = (struct named){a, columns};
    return QN_OK;
}

/* Checks that operators together name all columns of each value. */
static int check_named(const struct walk *w) {
    for (size_t i = 0; i < w->g->tensors.n; i++) {
        const struct tensor_value *v = &w->values[i];
        const struct tuple *dims = &v->parts[0].dims;
        uint64_t columns = 0;
        for (uint32_t k = 0; k < v->n_named; k++) columns += v->named[k].columns;
        if (v->n_named > 0 && columns != w->m->flat[dims->at[dims->n - 1] - N_GLOBAL])
            return fail(w->d, QN_EVERIFY,
                        "kernel graph: '%s' and other parts are not all of their value",
                        v->named[0].by->name);
    }
    return QN_OK;
}

/* A part of a value whose last dim is flat: each of its elements is at some place along that dim.
 * The places depend on the part, its operator and the number of columns; nothing else is known of
 * them. */
static int flat_arg(struct step *s, uint32_t arg, struct tensor_value *v) {
    const struct expr_arg *a = &s->x->args[arg];
    const struct part *value = &v->parts[0];
    const uint8_t flat = value->dims.at[value->dims.n - 1];
    const uint64_t n = s->w->m->flat[flat - N_GLOBAL];
    const struct block_use use = {.dims = 1u << flat};
    struct tuple mine;
    char name[160];
    form_id places;
    TRY(dims_in_flat(s, a, &value->dims, &mine));
    TRY(name_columns(s, a, v, tuple_size(s, &mine), n));
    snprintf(name, sizeof name, "places of %s in %s of %llu", a->name, op_name(s->op->kind),
             (unsigned long long)n);
    TRY(make_input(s->w, name, FORM_INDEX, &mine, &places));
    s->args[arg] = form_apply(s->w->m->f, BLOCK_OP_PICK, &use,
                              (const form_id[BLOCK_MAX_ARITY]){value->form, places});
    return QN_OK;
}

static int value_arg(struct step *s, uint32_t arg, int32_t tensor) {
    const struct expr_arg *a = &s->x->args[arg];
    struct tensor_value *v = &s->w->values[tensor];
    const bool is_part = strchr(a->name, '.') != NULL;
    uint32_t n;
    const uint32_t which = part_of_arg(s->x, arg, &n);
    if (v->n == 0)
        return fail_step(s, "is read, and no operator before it has written it", a->name);
    const struct tuple *first = &v->parts[0].dims;
    if (v->n == 1 && is_part && first->n > 0 && is_flat(first->at[first->n - 1]))
        return flat_arg(s, arg, v);
    if (which >= v->n) return absent_arg(s, arg);
    s->args[arg] = v->parts[which].form;
    return match_value(s, a, &v->parts[which].dims);
}

/* Whether an operand binds to this argument: packed operands may have an argument of their own. */
static bool takes_layout(const struct step *s, const char *base, const char *part, bool packed) {
    char other[EXPR_NAME + 8];
    snprintf(other, sizeof other, "%s.packed", base);
    if (part != NULL && strcmp(part, "packed") == 0) return packed;
    return !packed || expr_find_arg(s->x, other) < 0;
}

/* An attribute: a whole number is itself, any other number is a symbol. */
static int attr_arg(struct step *s, uint32_t arg) {
    const struct expr_arg *a = &s->x->args[arg];
    const struct op_attrs *of = &s->op->attrs;
    const struct {
        const char *name;
        bool whole;
        double value;
    } all[] = {
#define WHOLE_COUNT           true
#define WHOLE_NUMBER          true
#define WHOLE_REAL            false
#define ATTR(kind, name, ...) {#name, WHOLE_##kind, (double)of->name},
#include "graph/attr.def"
    };
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        char name[64];
        if (strcmp(all[i].name, a->name) != 0) continue;
        if (all[i].whole) {
            s->args[arg] = form_number(s->w->m->f, (int64_t)all[i].value, 1);
            return QN_OK;
        }
        snprintf(name, sizeof name, "%s %a", a->name, all[i].value);
        return make_input(s->w, name, FORM_REAL, &(struct tuple){0}, &s->args[arg]);
    }
    return fail_step(s, "is no attribute of an operator", a->name);
}

/* The name of an argument that depends on the logits and on how many are chosen. */
static int tell_logits(struct step *s, const char *name, char *out, size_t room) {
    const struct op_attrs *a = &s->op->attrs;
    for (uint32_t i = 0; i < s->x->n_args; i++) {
        if (strncmp(s->x->args[i].name, "logits", 6) != 0) continue;
        snprintf(out, room, "%s of %u, %u of %u, %u of %u groups", name, s->args[i], a->top_k,
                 a->experts, a->top_groups, a->groups);
        return QN_OK;
    }
    return fail_step(s, "depends on logits, which the operator does not have", name);
}

/* An argument that is no operand; op.def lists these. */
static int other_arg(struct step *s, uint32_t arg, const char *base, const char *part) {
    const struct expr_arg *a = &s->x->args[arg];
    char name[160];
    struct tuple dims;
    if (a->kind == EXPR_CONST) return attr_arg(s, arg);
    TRY(own_dims(s, a->name, a->dims, a->n_dims, &dims));
    if (strcmp(base, "chosen") == 0 || strcmp(base, "places") == 0 || strcmp(base, "kept") == 0)
        TRY(tell_logits(s, a->name, name, sizeof name));
    else if (strcmp(base, "sees") == 0)
        snprintf(name, sizeof name, "sees %u", s->op->attrs.window);
    else if (strcmp(base, "old") == 0) {
        const int kv = find_slot(s->info->out, s->info->n_out, "kv");
        if (kv < 0 || s->op->out[kv] == NO_TENSOR) return fail_step(s, "has no cache", a->name);
        snprintf(name, sizeof name, "old %.100s %s", s->w->g->tensors.items[s->op->out[kv]].name,
                 part == NULL ? "" : part);
    } else {
        snprintf(name, sizeof name, "%s", a->name);
    }
    return make_input(s->w, name, expr_form_kind((enum expr_kind)a->kind), &dims, &s->args[arg]);
}

/* weights: false binds the operands that are values, which determine k and n; true, in a second
 * pass, all others. */
static int bind_arg(struct step *s, uint32_t arg, bool weights) {
    const struct expr_arg *a = &s->x->args[arg];
    char base[EXPR_NAME];
    const char *part;
    split_name(a->name, base, &part);
    if (a->kind == EXPR_INDEX || a->kind == EXPR_ORDER)
        TRY(own_dims(s, a->name, &a->of, 1, &(struct tuple){0}));
    const int slot = find_slot(s->info->in, s->info->n_in, base);
    if (slot < 0) return weights ? other_arg(s, arg, base, part) : QN_OK;
    const int32_t tensor = s->op->in[slot];
    const struct tensor *t = tensor == NO_TENSOR ? NULL : &s->w->g->tensors.items[tensor];
    if (t == NULL || !takes_layout(s, base, part, t->layout == LAYOUT_PACKED))
        return absent_arg(s, arg);
    if ((t->role == TENSOR_WEIGHT) != weights) return QN_OK;
    return weights ? weight_arg(s, arg, t) : value_arg(s, arg, tensor);
}

/* Checks that attributes that are sizes of dims equal the model's. */
static int check_attrs(const struct step *s) {
    const struct model_spec *spec = &s->w->g->spec;
    const struct op_attrs *a = &s->op->attrs;
    const struct kv_row kv = spec_kv_row(spec, DTYPE_F32);
    const struct {
        const char *name;
        uint32_t have, want;
    } all[] = {{"heads", a->heads, spec->n_heads},
               {"kv", a->kv, kv.heads},
               {"D", a->D, kv.k_width},
               {"DV", a->DV, kv.v_width},
               {"DR", a->DR, spec->latent.rope},
               {"experts", a->experts, spec->experts.n},
               {"top_k", a->top_k, spec->experts.top_k}};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (all[i].have != 0 && all[i].have != all[i].want)
            return fail_step(s, "is not the model's", all[i].name);
    return QN_OK;
}

/* ---- outputs ---- */

/* LINEAR of the queries' latent makes heads, so it does not write the stream. */
static bool is_stream_writer(const struct step *s) {
    const enum op_kind kind = s->op->kind;
    if (kind == OP_LINEAR) return !is_used(s, (uint8_t)global_dim("x"));
    return kind == OP_EMBED || kind == OP_SPLITK_SUM || kind == OP_EXPERT_DOWN;
}

/* Whether the graphs are compared at this output, and its value becomes a symbol. */
static bool is_cut(const struct step *s, int slot) {
    const int32_t tensor = s->op->out[slot];
    if (s->w->g->tensors.items[tensor].role == TENSOR_STATE) return true;
    if (s->op->kind == OP_ROUTER || (s->op->kind == OP_LM_HEAD && slot == LM_OUT_LOGITS))
        return true; /* choices by logits are functions of them */
    return is_stream_writer(s) && slot == STREAM_X;
}

/* Whether the outputs are also compared, without a symbol. */
static bool is_end(const struct step *s) {
    return s->op->kind == OP_LM_HEAD || s->op->kind == OP_SAMPLE;
}

static int record(struct step *s, const struct expr_out *out, int slot, form_id form,
                  const char **label) {
    struct walk *w = s->w;
    const struct tensor *t = &w->g->tensors.items[s->op->out[slot]];
    char *text, *name;
    if (form == FORM_NONE) return fail_step(s, "has no normal form: it exceeds a limit", out->name);
    TRY(arena_printf(w->d, &w->m->arena, &name, "%s", out->name));
    if (t->role == TENSOR_STATE)
        TRY(arena_printf(w->d, &w->m->arena, &text, "%s %s", t->name, out->name));
    else if (is_stream_writer(s))
        TRY(arena_printf(w->d, &w->m->arena, &text, "stream %u", w->n_stream++));
    else
        TRY(arena_printf(w->d, &w->m->arena, &text, "%s of layer %d", out->name, s->op->layer));
    *label = text;
    return ARRAY_PUSH(w->d, &w->compared,
                      (struct compared){text, form, s->index, name, w->first_op, false});
}

static int set_value(struct step *s, uint32_t out, int slot, form_id form) {
    const struct expr_out *o = &s->x->out[out];
    struct tensor_value *v = &s->w->values[s->op->out[slot]];
    const uint32_t which = part_of_out(s->x, out);
    if (which >= MAX_PARTS) return fail_step(s, "has too many parts", o->name);
    struct part *p = &v->parts[which];
    TRY(own_dims(s, o->name, o->dims, o->n_dims, &p->dims));
    if (form == FORM_NONE) return fail_step(s, "has no normal form: it exceeds a limit", o->name);
    p->form = form;
    v->n = MAX(v->n, which + 1);
    return QN_OK;
}

/* The outputs of one operator. `run` makes the forms of the cuts or of the others; for the others,
 * the cuts' symbols are known. */
struct outputs {
    int slot[EXPR_MAX_OUT]; /* -1: the operator does not have it */
    bool cut[EXPR_MAX_OUT];
    struct expr_known known[EXPR_MAX_OUT];
    uint32_t n_known;
};

static void run(struct step *s, const struct outputs *o, bool cuts, form_id *nodes) {
    uint32_t dims[BLOCK_MAX_DIMS] = {0};
    bool needed[EXPR_MAX_NODES] = {false};
    for (uint32_t i = 0; i < s->x->n_dims; i++)
        for (int k = 0; k < s->dims[i].n; k++) dims[i] |= 1u << s->dims[i].at[k];
    for (uint32_t i = 0; i < s->x->n_out; i++)
        if (o->slot[i] >= 0 && o->cut[i] == cuts)
            expr_needed(s->x, s->x->out[i].node, s->absent, needed);
    const struct expr_call c = {s->args, dims, needed, o->known, o->n_known};
    expr_forms_of(s->w->m->f, s->x, &c, nodes);
}

/* Replaces a cut's value by a symbol. */
static int make_symbol(struct step *s, struct outputs *o, uint32_t i, const char *label) {
    const struct expr_out *out = &s->x->out[i];
    struct tuple dims;
    form_id form;
    TRY(own_dims(s, out->name, out->dims, out->n_dims, &dims));
    TRY(make_input(s->w, label, FORM_REAL, &dims, &form));
    o->known[o->n_known++] = (struct expr_known){out->node, form};
    return set_value(s, i, o->slot[i], form);
}

static int run_cuts(struct step *s, struct outputs *o, form_id *nodes) {
    struct outputs before = *o;
    bool any = false;
    for (uint32_t i = 0; i < s->x->n_out; i++) any = any || (o->slot[i] >= 0 && o->cut[i]);
    if (!any) return QN_OK;
    run(s, &before, true, nodes);
    for (uint32_t i = 0; i < s->x->n_out; i++) {
        const char *label;
        if (o->slot[i] < 0 || !o->cut[i]) continue;
        TRY(record(s, &s->x->out[i], o->slot[i], nodes[s->x->out[i].node], &label));
        TRY(make_symbol(s, o, i, label));
    }
    s->w->first_op = s->index + 1;
    return QN_OK;
}

/* Drops a part of no elements: the parts before it are the whole tensor. */
static int leave_empty_parts(struct step *s, struct outputs *o) {
    for (uint32_t i = 0; i < s->x->n_out; i++) {
        uint64_t before = 0;
        if (o->slot[i] < 0) continue;
        const struct tensor *t = &s->w->g->tensors.items[s->op->out[o->slot[i]]];
        for (uint32_t k = 0; k < i; k++) {
            const struct expr_out *other = &s->x->out[k];
            struct tuple dims;
            if (!same_operand(other->name, s->x->out[i].name)) continue;
            TRY(own_dims(s, other->name, other->dims, other->n_dims, &dims));
            before += tuple_size(s, &dims);
        }
        if (before != 0 && before == tensor_elements(t)) o->slot[i] = -1;
    }
    return QN_OK;
}

static int run_outputs(struct step *s) {
    struct outputs o = {0};
    form_id nodes[EXPR_MAX_NODES];
    for (uint32_t i = 0; i < s->x->n_out; i++) {
        char base[EXPR_NAME];
        const char *part;
        split_name(s->x->out[i].name, base, &part);
        o.slot[i] = find_slot(s->info->out, s->info->n_out, base);
        if (o.slot[i] < 0) return fail_step(s, "is no output of the operator", base);
        if (s->op->out[o.slot[i]] == NO_TENSOR)
            o.slot[i] = -1;
        else
            o.cut[i] = is_cut(s, o.slot[i]);
    }
    TRY(leave_empty_parts(s, &o));
    TRY(run_cuts(s, &o, nodes));
    run(s, &o, false, nodes);
    for (uint32_t i = 0; i < s->x->n_out; i++) {
        const char *label;
        if (o.slot[i] < 0 || o.cut[i]) continue;
        const form_id form = nodes[s->x->out[i].node];
        TRY(set_value(s, i, o.slot[i], form));
        if (is_end(s)) TRY(record(s, &s->x->out[i], o.slot[i], form, &label));
    }
    return QN_OK;
}

/* ---- a graph ---- */

static int expr_of_kind(struct walk *w, enum op_kind kind, const struct expr **out) {
    struct expr **kept = &w->m->exprs[kind];
    if (*kept == NULL) {
        struct expr *x;
        TRY(ARENA_NEW(w->d, &w->m->arena, &x, 1));
        TRY(op_expr_parse(w->d, kind, spec_is_latent(&w->m->spec), x));
        *kept = x;
    }
    *out = *kept;
    return QN_OK;
}

static int walk_op(struct walk *w, uint32_t index) {
    struct step s = {.w = w, .index = index, .op = &w->g->ops.items[index]};
    s.info = op_info_of(s.op->kind);
    TRY(check_attrs(&s));
    TRY(expr_of_kind(w, s.op->kind, &s.x));
    for (uint32_t i = 0; i < s.x->n_args; i++) TRY(bind_arg(&s, i, false));
    for (uint32_t i = 0; i < s.x->n_args; i++) TRY(bind_arg(&s, i, true));
    return run_outputs(&s);
}

/* The operator that makes both of SAMPLE's inputs; NULL: there is none. */
static const struct kop *sampled(const struct kgraph *g, const struct kop *sample) {
    const int logits = g->tensors.items[sample->in[SAMPLE_LOGITS]].producer;
    const int part = g->tensors.items[sample->in[SAMPLE_PART]].producer;
    return logits >= 0 && logits == part ? &g->ops.items[logits] : NULL;
}

/* Checks that the bands of LM_HEAD, and those of SAMPLE, cover all logit rows in order, and that
 * SAMPLE reads the logits of its own band. A band's forms do not show which rows it has. */
static int check_bands(const struct walk *w) {
    const struct kgraph *g = w->g;
    uint32_t heads = 0, samples = 0; /* logit rows of the bands so far */
    for (size_t i = 0; i < g->ops.n; i++) {
        const struct kop *op = &g->ops.items[i];
        if (op->kind != OP_LM_HEAD && op->kind != OP_SAMPLE) continue;
        uint32_t *rows = op->kind == OP_LM_HEAD ? &heads : &samples;
        const struct kop *head = op->kind == OP_LM_HEAD ? op : sampled(g, op);
        if (op->attrs.band_first != *rows)
            return fail(
                w->d, QN_EVERIFY,
                "kernel graph: operator %zu, %s: its band begins with logit row %u, want %u", i,
                op_name(op->kind), op->attrs.band_first, *rows);
        if (head == NULL || head->attrs.band_first != *rows)
            return fail(w->d, QN_EVERIFY,
                        "kernel graph: operator %zu, %s: has another band's logits", i,
                        op_name(op->kind));
        *rows += op->attrs.band;
    }
    if (heads == g->n_logit_rows && samples == g->n_logit_rows) return QN_OK;
    return fail(w->d, QN_EVERIFY, "kernel graph: LM_HEAD has %u and SAMPLE %u of %u logit rows",
                heads, samples, g->n_logit_rows);
}

static int walk_graph(struct walk *w) {
    w->values = calloc(w->g->tensors.n + 1, sizeof *w->values);
    if (w->values == NULL)
        return fail_nomem(w->d, w->g->tensors.n * sizeof *w->values, "a kernel graph's meaning");
    for (uint32_t i = 0; i < w->g->ops.n; i++) TRY(walk_op(w, i));
    TRY(check_named(w));
    TRY(check_bands(w));
    return forms_status(w->d, w->m->f);
}

static void walk_fini(struct walk *w) {
    free(w->values);
    ARRAY_FINI(&w->compared);
}

int kgraph_meaning_new(struct diag *d, const struct kgraph *reference,
                       struct kgraph_meaning **out) {
    struct kgraph_meaning *m = calloc(1, sizeof *m);
    struct walk w = {.d = d, .m = m, .g = reference};
    *out = NULL;
    if (m == NULL) return fail_nomem(d, sizeof *m, "a model's meaning");
    m->spec = reference->spec;
    int rc = forms_new(d, &m->f);
    if (rc == QN_OK) rc = walk_graph(&w);
    if (rc == QN_OK) {
        m->reference.items = w.compared.items;
        m->reference.n = w.compared.n;
        m->reference.capacity = w.compared.capacity;
        w.compared.items = NULL;
        w.compared.n = w.compared.capacity = 0;
        *out = m;
    }
    walk_fini(&w);
    if (rc != QN_OK) kgraph_meaning_free(m);
    return rc;
}

void kgraph_meaning_free(struct kgraph_meaning *m) {
    if (m == NULL) return;
    forms_free(m->f);
    map_fini(&m->numbers);
    ARRAY_FINI(&m->reference);
    arena_fini(&m->arena);
    free(m);
}

/* ---- the comparison ---- */

static int differs(const struct walk *w, const struct compared *c) {
    const struct kop *ops = w->g->ops.items;
    struct strbuf made = {0};
    for (uint32_t i = c->first_op; i <= c->op; i++)
        strbuf_printf(&made, "%s%s", i > c->first_op ? " " : "", op_name(ops[i].kind));
    fail(w->d, QN_EVERIFY,
         "kernel graph of %u rows: layer %d: %s of %s (operator %u) is not what the model's "
         "reference "
         "graph computes; since the last value that is: %s",
         w->g->n_rows, ops[c->op].layer, c->output, op_name(ops[c->op].kind), c->op,
         strbuf_text(&made));
    strbuf_fini(&made);
    return QN_EVERIFY;
}

/* The reference's value with that label that no value of the graph has matched yet, or, if `taken`,
 * that one has; most often the i-th. NULL: there is none. */
static struct compared *counterpart(const struct kgraph_meaning *m, const char *label, size_t i,
                                    bool taken) {
    for (size_t k = 0; k < m->reference.n; k++) {
        struct compared *r = &m->reference.items[(i + k) % m->reference.n];
        if (r->taken == taken && strcmp(r->label, label) == 0) return r;
    }
    return NULL;
}

/* Whether an operator repeats one of the first band for other logit rows. */
static bool is_of_later_band(const struct kop *op) {
    return (op->kind == OP_LM_HEAD || op->kind == OP_SAMPLE) && op->attrs.band_first > 0;
}

static int compare(struct walk *w) {
    struct kgraph_meaning *m = w->m;
    size_t n = 0; /* values that are not of a later band */
    for (size_t i = 0; i < m->reference.n; i++) m->reference.items[i].taken = false;
    for (size_t i = 0; i < w->compared.n; i++) {
        const struct compared *c = &w->compared.items[i];
        const bool later = is_of_later_band(&w->g->ops.items[c->op]);
        struct compared *r = counterpart(m, c->label, i, later);
        if (r == NULL || !form_equal(m->f, r->form, c->form)) return differs(w, c);
        r->taken = true;
        n += !later;
    }
    if (n == m->reference.n) return QN_OK;
    return fail(
        w->d, QN_EVERIFY,
        "kernel graph of %u rows: has %zu values of the residual stream, the caches and the "
        "head, the model's reference graph %zu",
        w->g->n_rows, n, m->reference.n);
}

int kgraph_prove(struct diag *d, struct kgraph_meaning *m, const struct kgraph *g,
                 struct kgraph_prove_report *report) {
    struct walk w = {.d = d, .m = m, .g = g};
    if (hash_bytes(&m->spec, sizeof m->spec, 0) != hash_bytes(&g->spec, sizeof g->spec, 0))
        return fail(d, QN_EVERIFY, "kernel graph of %u rows: is another model's", g->n_rows);
    int rc = walk_graph(&w);
    if (rc == QN_OK) rc = compare(&w);
    if (rc == QN_OK && report != NULL) {
        struct form_stats stats;
        forms_stats(m->f, &stats);
        *report = (struct kgraph_prove_report){(uint32_t)g->ops.n, (uint32_t)m->reference.n,
                                               stats.n_forms};
    }
    walk_fini(&w);
    return rc;
}

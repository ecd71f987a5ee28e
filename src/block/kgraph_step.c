/* kgraph_step.c - see kgraph_step.h. */
#include "block/kgraph_step.h"

#include "base/checked.h"
#include "graph/kv_row.h"

#include <stdio.h>
#include <string.h>

/* ---- dims that all operators share ---- */

static const char global_dims[] = KGRAPH_LETTERS;

int kgraph_step_letter(const char *name) {
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

/* ---- messages and inputs ---- */

int kgraph_step_fail(const struct kgraph_step *s, const char *what, const char *name) {
    return fail(s->w->d, QN_EVERIFY, "kernel graph: operator %u, %s of layer %d: '%s' %s", s->index,
                op_name(s->op->kind), s->op->layer, name, what);
}

/* The number of an input with this name; equal names are the same input. */
static int input_number(struct kgraph_walk *w, const char *name, uint32_t *out) {
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

int kgraph_step_input(struct kgraph_walk *w, const char *name, enum form_input_kind kind,
                      const struct kgraph_tuple *dims, form_id *out) {
    uint32_t number;
    TRY(input_number(w, name, &number));
    *out = form_input(w->m->f, number, kind, dims->at, dims->n);
    return QN_OK;
}

/* ---- names of arguments ---- */

void kgraph_step_split_name(const char *name, char base[EXPR_NAME], const char **part) {
    const char *point = strchr(name, '.');
    const size_t n = point == NULL ? strlen(name) : (size_t)(point - name);
    memcpy(base, name, n);
    base[n] = '\0';
    *part = point == NULL ? NULL : point + 1;
}

int kgraph_step_slot(const struct op_slot *slots, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(slots[i].name, name) == 0) return i;
    return -1;
}

bool kgraph_step_same_operand(const char *a, const char *b) {
    char base_a[EXPR_NAME], base_b[EXPR_NAME];
    const char *part_a, *part_b;
    kgraph_step_split_name(a, base_a, &part_a);
    kgraph_step_split_name(b, base_b, &part_b);
    return strcmp(base_a, base_b) == 0 && part_a != NULL && part_b != NULL;
}

/* Which part of its operand an argument is, counted in order; *n: how many parts have that name. */
static uint32_t part_of_arg(const struct expr *x, uint32_t arg, uint32_t *n) {
    uint32_t which = 0;
    *n = 1;
    if (strchr(x->args[arg].name, '.') == NULL) return 0;
    *n = 0;
    for (uint32_t i = 0; i < x->n_args; i++) {
        if (!kgraph_step_same_operand(x->args[i].name, x->args[arg].name)) continue;
        if (i == arg) which = *n;
        (*n)++;
    }
    return which;
}

uint32_t kgraph_step_part_of_out(const struct expr *x, uint32_t out) {
    uint32_t which = 0;
    if (strchr(x->out[out].name, '.') == NULL) return 0;
    for (uint32_t i = 0; i < out; i++)
        which += kgraph_step_same_operand(x->out[i].name, x->out[out].name);
    return which;
}

/* ---- dims of an operator ---- */

static void bind_dim(struct kgraph_step *s, uint8_t dim, const uint8_t *at, uint32_t n) {
    s->bound[dim] = true;
    s->dims[dim].n = (uint8_t)n;
    memcpy(s->dims[dim].at, at, n);
}

/* Matches the dims of an argument with those of its value. A letter matches itself, or nothing if
 * the value has a single element along it. k and n take the bound or all remaining dims. */
static int match_value(struct kgraph_step *s, const struct expr_arg *a,
                       const struct kgraph_tuple *have) {
    uint32_t at = 0;
    for (int i = 0; i < a->n_dims; i++) {
        const uint8_t dim = a->dims[i];
        const int global = kgraph_step_letter(s->x->dims[dim].name);
        uint32_t n = 0;
        if (global >= 0)
            n = at < have->n && have->at[at] == global;
        else if (s->bound[dim])
            n = s->dims[dim].n;
        else
            n = have->n - at;
        if (at + n > have->n) return kgraph_step_fail(s, "has other dims than its value", a->name);
        if (s->bound[dim] &&
            (s->dims[dim].n != n || memcmp(s->dims[dim].at, have->at + at, n) != 0))
            return kgraph_step_fail(s, "has other dims than the operands before it", a->name);
        bind_dim(s, dim, have->at + at, n);
        at += n;
    }
    return at == have->n ? QN_OK : kgraph_step_fail(s, "has fewer dims than its value", a->name);
}

int kgraph_step_own_dims(struct kgraph_step *s, const char *name, const uint8_t *dims, uint32_t n,
                         struct kgraph_tuple *out) {
    out->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int global = kgraph_step_letter(s->x->dims[dims[i]].name);
        const uint8_t letter = (uint8_t)global;
        if (!s->bound[dims[i]]) {
            if (global < 0) return kgraph_step_fail(s, "has a dim that no operand gives", name);
            bind_dim(s, dims[i], &letter, 1);
        }
        const struct kgraph_tuple *t = &s->dims[dims[i]];
        if (out->n + t->n > MAX_TUPLE) return kgraph_step_fail(s, "has too many dims", name);
        memcpy(out->at + out->n, t->at, t->n);
        out->n = (uint8_t)(out->n + t->n);
    }
    return QN_OK;
}

uint64_t kgraph_step_tuple_size(const struct kgraph_step *s, const struct kgraph_tuple *t) {
    uint64_t n = 1;
    for (int i = 0; i < t->n; i++)
        n *= t->at[i] < N_GLOBAL ? letter_size(s->w->g, global_dims[t->at[i]], s->op)
                                 : s->w->m->flat[t->at[i] - N_GLOBAL];
    return n;
}

static bool is_flat(uint8_t dim) {
    return dim >= N_GLOBAL;
}

bool kgraph_step_uses(const struct kgraph_step *s, uint8_t dim) {
    for (uint32_t i = 0; i < s->x->n_dims; i++)
        for (int k = 0; s->bound[i] && k < s->dims[i].n; k++)
            if (s->dims[i].at[k] == dim) return true;
    return false;
}

/* Binds the rows of a weight that no operand has named. They are `h` if there are `hidden` rows,
 * except in QKV_LINEAR and where the operator uses h or the queries' latent. Else they are a flat
 * dim of that size that the operator does not use yet. */
static int bind_rows(struct kgraph_step *s, uint8_t dim, uint64_t rows, const char *name) {
    const uint8_t hidden = (uint8_t)kgraph_step_letter("h"),
                  latent = (uint8_t)kgraph_step_letter("x");
    uint64_t *flat = s->w->m->flat;
    if (rows == s->w->g->spec.hidden && s->op->kind != OP_QKV_LINEAR &&
        !kgraph_step_uses(s, hidden) && !kgraph_step_uses(s, latent)) {
        bind_dim(s, dim, &hidden, 1);
        return QN_OK;
    }
    for (uint32_t i = 0; i < MAX_FLAT; i++) {
        const uint8_t letter = (uint8_t)(N_GLOBAL + i);
        if ((flat[i] != 0 && flat[i] != rows) || kgraph_step_uses(s, letter)) continue;
        flat[i] = rows;
        bind_dim(s, dim, &letter, 1);
        return QN_OK;
    }
    return kgraph_step_fail(s, "has rows of one more size than are told apart", name);
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

static int absent_arg(struct kgraph_step *s, uint32_t arg) {
    if (s->x->args[arg].fallback == EXPR_NO_NODE)
        return kgraph_step_fail(s, "is missing", s->x->args[arg].name);
    s->absent |= 1u << arg;
    return QN_OK;
}

/* Describes the n parts of a weight that an argument is. An argument without parts of its own is
 * all of them, one after the other. */
static int tell_parts(struct kgraph_step *s, const struct weight_part *p, uint32_t n,
                      struct strbuf *out) {
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0) strbuf_str(out, ", then ");
        tell_part(&p[i], out);
    }
    return strbuf_status(s->w->d, out);
}

/* A part's rows times its columns must be the product of the dims' sizes. */
static int weight_arg(struct kgraph_step *s, uint32_t arg, const struct tensor *t) {
    const struct kgraph *g = s->w->g;
    const struct expr_arg *a = &s->x->args[arg];
    struct kgraph_tuple dims;
    uint32_t n;
    const uint32_t which = part_of_arg(s->x, arg, &n);
    const bool whole = strchr(a->name, '.') == NULL || t->n_parts == 1;
    if (!whole && t->n_parts > n)
        return kgraph_step_fail(s, "has another number of parts than its weight", a->name);
    if (which >= t->n_parts) return absent_arg(s, arg);
    const struct weight_part *p = &g->parts.items[t->first_part + which];
    if (a->n_dims > 0 && !s->bound[a->dims[0]] &&
        kgraph_step_letter(s->x->dims[a->dims[0]].name) < 0)
        TRY(bind_rows(s, a->dims[0], whole ? t->shape[0] : p->rows, a->name));
    TRY(kgraph_step_own_dims(s, a->name, a->dims, a->n_dims, &dims));
    const uint64_t cols = t->n_dims > 1 ? t->shape[1] : 1;
    const uint64_t elements = whole ? tensor_elements(t) : p->rows * cols;
    if (kgraph_step_tuple_size(s, &dims) != elements)
        return kgraph_step_fail(s, "has another shape than its weight", a->name);
    struct strbuf name = {0};
    int rc = tell_parts(s, p, whole ? t->n_parts : 1, &name);
    if (rc == QN_OK)
        rc = kgraph_step_input(s->w, strbuf_text(&name), FORM_REAL, &dims, &s->args[arg]);
    strbuf_fini(&name);
    return rc;
}

/* The dims of a part of a value whose last dim is flat: those after the value's other dims. */
static int dims_in_flat(struct kgraph_step *s, const struct expr_arg *a,
                        const struct kgraph_tuple *have, struct kgraph_tuple *inner) {
    const uint32_t outer = have->n - 1u;
    for (uint32_t i = 0; i < outer; i++)
        if (i >= a->n_dims || kgraph_step_letter(s->x->dims[a->dims[i]].name) != have->at[i])
            return kgraph_step_fail(s, "has other dims than its value", a->name);
    for (uint32_t i = 0; i < outer; i++) bind_dim(s, a->dims[i], &have->at[i], 1);
    return kgraph_step_own_dims(s, a->name, a->dims + outer, a->n_dims - outer, inner);
}

/* Records that an argument names columns of a value of n columns. The same argument names the same
 * columns in every operator of its kind. At most n columns are named. */
static int name_columns(struct kgraph_step *s, const struct expr_arg *a,
                        struct kgraph_tensor_value *v, uint64_t columns, uint64_t n) {
    uint64_t before = 0;
    for (uint32_t i = 0; i < v->n_named; i++) {
        if (v->named[i].by == a && v->named[i].columns == columns) return QN_OK;
        if (v->named[i].by == a) return kgraph_step_fail(s, "has two sizes in one value", a->name);
        before += v->named[i].columns;
    }
    if (columns > n - before || v->n_named == MAX_NAMED)
        return kgraph_step_fail(s, "and other parts are more than their value", a->name);
    v->named[v->n_named++] = (struct kgraph_named){a, columns};
    return QN_OK;
}

int kgraph_step_check_named(const struct kgraph_walk *w) {
    for (size_t i = 0; i < w->g->tensors.n; i++) {
        const struct kgraph_tensor_value *v = &w->values[i];
        const struct kgraph_tuple *dims = &v->parts[0].dims;
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
static int flat_arg(struct kgraph_step *s, uint32_t arg, struct kgraph_tensor_value *v) {
    const struct expr_arg *a = &s->x->args[arg];
    const struct kgraph_form_part *value = &v->parts[0];
    const uint8_t flat = value->dims.at[value->dims.n - 1];
    const uint64_t n = s->w->m->flat[flat - N_GLOBAL];
    const struct block_use use = {.dims = 1u << flat};
    struct kgraph_tuple mine;
    char name[160];
    form_id places;
    TRY(dims_in_flat(s, a, &value->dims, &mine));
    TRY(name_columns(s, a, v, kgraph_step_tuple_size(s, &mine), n));
    snprintf(name, sizeof name, "places of %s in %s of %llu", a->name, op_name(s->op->kind),
             (unsigned long long)n);
    TRY(kgraph_step_input(s->w, name, FORM_INDEX, &mine, &places));
    s->args[arg] = form_apply(s->w->m->f, BLOCK_OP_PICK, &use,
                              (const form_id[BLOCK_MAX_ARITY]){value->form, places});
    return QN_OK;
}

static int value_arg(struct kgraph_step *s, uint32_t arg, int32_t tensor) {
    const struct expr_arg *a = &s->x->args[arg];
    struct kgraph_tensor_value *v = &s->w->values[tensor];
    const bool is_part = strchr(a->name, '.') != NULL;
    uint32_t n;
    const uint32_t which = part_of_arg(s->x, arg, &n);
    if (v->n == 0)
        return kgraph_step_fail(s, "is read, and no operator before it has written it", a->name);
    const struct kgraph_tuple *first = &v->parts[0].dims;
    if (v->n == 1 && is_part && first->n > 0 && is_flat(first->at[first->n - 1]))
        return flat_arg(s, arg, v);
    if (which >= v->n) return absent_arg(s, arg);
    s->args[arg] = v->parts[which].form;
    return match_value(s, a, &v->parts[which].dims);
}

/* Whether an operand binds to this argument: packed operands may have an argument of their own. */
static bool takes_layout(const struct kgraph_step *s, const char *base, const char *part,
                         bool packed) {
    char other[EXPR_NAME + 8];
    snprintf(other, sizeof other, "%s.packed", base);
    if (part != NULL && strcmp(part, "packed") == 0) return packed;
    return !packed || expr_find_arg(s->x, other) < 0;
}

/* An attribute: a whole number is itself, any other number is a symbol. */
static int attr_arg(struct kgraph_step *s, uint32_t arg) {
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
        return kgraph_step_input(s->w, name, FORM_REAL, &(struct kgraph_tuple){0}, &s->args[arg]);
    }
    return kgraph_step_fail(s, "is no attribute of an operator", a->name);
}

/* The name of an argument that depends on the logits, or on the chosen experts, and on how many are
 * chosen. */
static int tell_logits(struct kgraph_step *s, const char *name, char *out, size_t room) {
    const bool places = strcmp(name, "places") == 0;
    const struct op_attrs *a = &s->op->attrs;
    for (uint32_t i = 0; i < s->x->n_args; i++) {
        const char *of = s->x->args[i].name;
        if (places ? strcmp(of, "chosen") != 0 && strcmp(of, "ids") != 0
                   : strncmp(of, "logits", 6) != 0)
            continue;
        if (places)
            snprintf(out, room, "%s of %u", name, s->args[i]);
        else
            snprintf(out, room, "%s of %u, %u of %u, %u of %u groups", name, s->args[i], a->top_k,
                     a->experts, a->top_groups, a->groups);
        return QN_OK;
    }
    return kgraph_step_fail(s, "depends on what the operator does not have", name);
}

/* An argument that is no operand; op.def lists these. */
static int other_arg(struct kgraph_step *s, uint32_t arg, const char *base, const char *part) {
    const struct expr_arg *a = &s->x->args[arg];
    char name[160];
    struct kgraph_tuple dims;
    if (a->kind == EXPR_CONST) return attr_arg(s, arg);
    TRY(kgraph_step_own_dims(s, a->name, a->dims, a->n_dims, &dims));
    if (strcmp(base, "chosen") == 0 || strcmp(base, "places") == 0 || strcmp(base, "kept") == 0)
        TRY(tell_logits(s, a->name, name, sizeof name));
    else if (strcmp(base, "sees") == 0)
        snprintf(name, sizeof name, "sees %u", s->op->attrs.window);
    else if (strcmp(base, "old") == 0) {
        const int kv = kgraph_step_slot(s->info->out, s->info->n_out, "kv");
        if (kv < 0 || s->op->out[kv] == NO_TENSOR)
            return kgraph_step_fail(s, "has no cache", a->name);
        snprintf(name, sizeof name, "old %.100s %s", s->w->g->tensors.items[s->op->out[kv]].name,
                 part == NULL ? "" : part);
    } else {
        snprintf(name, sizeof name, "%s", a->name);
    }
    return kgraph_step_input(s->w, name, expr_form_kind((enum expr_kind)a->kind), &dims,
                             &s->args[arg]);
}

int kgraph_step_bind(struct kgraph_step *s, uint32_t arg, bool weights) {
    const struct expr_arg *a = &s->x->args[arg];
    char base[EXPR_NAME];
    const char *part;
    kgraph_step_split_name(a->name, base, &part);
    if (a->kind == EXPR_INDEX || a->kind == EXPR_ORDER)
        TRY(kgraph_step_own_dims(s, a->name, &a->of, 1, &(struct kgraph_tuple){0}));
    const int slot = kgraph_step_slot(s->info->in, s->info->n_in, base);
    if (slot < 0) return weights ? other_arg(s, arg, base, part) : QN_OK;
    const int32_t tensor = s->op->in[slot];
    const struct tensor *t = tensor == NO_TENSOR ? NULL : &s->w->g->tensors.items[tensor];
    if (t == NULL || !takes_layout(s, base, part, t->layout == LAYOUT_PACKED))
        return absent_arg(s, arg);
    if ((t->role == TENSOR_WEIGHT) != weights) return QN_OK;
    return weights ? weight_arg(s, arg, t) : value_arg(s, arg, tensor);
}

int kgraph_step_check_attrs(const struct kgraph_step *s) {
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
            return kgraph_step_fail(s, "is not the model's", all[i].name);
    return QN_OK;
}

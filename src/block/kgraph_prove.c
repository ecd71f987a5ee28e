/* kgraph_prove.c - see kgraph_prove.h. */
#include "block/kgraph_step.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

/* ---- outputs ---- */

/* LINEAR of the queries' latent makes heads, so it does not write the stream. */
static bool is_stream_writer(const struct kgraph_step *s) {
    const enum op_kind kind = s->op->kind;
    if (kind == OP_LINEAR) return !kgraph_step_uses(s, (uint8_t)kgraph_step_letter("x"));
    return op_writes_stream(kind);
}

/* Whether the graphs are compared at this output, and its value becomes a symbol. */
static bool is_cut(const struct kgraph_step *s, int slot) {
    const int32_t tensor = s->op->out[slot];
    if (s->w->g->tensors.items[tensor].role == TENSOR_STATE) return true;
    if (s->op->kind == OP_ROUTER || (s->op->kind == OP_LM_HEAD && slot == LM_OUT_LOGITS))
        return true; /* choices by logits are functions of them */
    return is_stream_writer(s) && slot == STREAM_X;
}

/* Whether the outputs are also compared, without a symbol. */
static bool is_end(const struct kgraph_step *s) {
    return s->op->kind == OP_LM_HEAD || s->op->kind == OP_SAMPLE;
}

static int record(struct kgraph_step *s, const struct expr_out *out, int slot, form_id form,
                  const char **label) {
    struct kgraph_walk *w = s->w;
    const struct tensor *t = &w->g->tensors.items[s->op->out[slot]];
    char *text, *name;
    if (form == FORM_NONE)
        return kgraph_step_fail(s, "has no normal form: it exceeds a limit", out->name);
    TRY(arena_printf(w->d, &w->m->arena, &name, "%s", out->name));
    if (t->role == TENSOR_STATE)
        TRY(arena_printf(w->d, &w->m->arena, &text, "%s %s", t->name, out->name));
    else if (is_stream_writer(s))
        TRY(arena_printf(w->d, &w->m->arena, &text, "stream %u", w->n_stream++));
    else
        TRY(arena_printf(w->d, &w->m->arena, &text, "%s of layer %d", out->name, s->op->layer));
    *label = text;
    return ARRAY_PUSH(w->d, &w->compared,
                      (struct kgraph_compared){text, form, s->index, name, w->first_op, false});
}

static int set_value(struct kgraph_step *s, uint32_t out, int slot, form_id form) {
    const struct expr_out *o = &s->x->out[out];
    struct kgraph_tensor_value *v = &s->w->values[s->op->out[slot]];
    const uint32_t which = kgraph_step_part_of_out(s->x, out);
    if (which >= MAX_PARTS) return kgraph_step_fail(s, "has too many parts", o->name);
    struct kgraph_form_part *p = &v->parts[which];
    TRY(kgraph_step_own_dims(s, o->name, o->dims, o->n_dims, &p->dims));
    if (form == FORM_NONE)
        return kgraph_step_fail(s, "has no normal form: it exceeds a limit", o->name);
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

static void run(struct kgraph_step *s, const struct outputs *o, bool cuts, form_id *nodes) {
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
static int make_symbol(struct kgraph_step *s, struct outputs *o, uint32_t i, const char *label) {
    const struct expr_out *out = &s->x->out[i];
    struct kgraph_tuple dims;
    form_id form;
    TRY(kgraph_step_own_dims(s, out->name, out->dims, out->n_dims, &dims));
    TRY(kgraph_step_input(s->w, label, FORM_REAL, &dims, &form));
    o->known[o->n_known++] = (struct expr_known){out->node, form};
    return set_value(s, i, o->slot[i], form);
}

static int run_cuts(struct kgraph_step *s, struct outputs *o, form_id *nodes) {
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
static int leave_empty_parts(struct kgraph_step *s, struct outputs *o) {
    for (uint32_t i = 0; i < s->x->n_out; i++) {
        uint64_t before = 0;
        if (o->slot[i] < 0) continue;
        const struct tensor *t = &s->w->g->tensors.items[s->op->out[o->slot[i]]];
        for (uint32_t k = 0; k < i; k++) {
            const struct expr_out *other = &s->x->out[k];
            struct kgraph_tuple dims;
            if (!kgraph_step_same_operand(other->name, s->x->out[i].name)) continue;
            TRY(kgraph_step_own_dims(s, other->name, other->dims, other->n_dims, &dims));
            before += kgraph_step_tuple_size(s, &dims);
        }
        if (before != 0 && before == tensor_elements(t)) o->slot[i] = -1;
    }
    return QN_OK;
}

static int run_outputs(struct kgraph_step *s) {
    struct outputs o = {0};
    form_id nodes[EXPR_MAX_NODES];
    for (uint32_t i = 0; i < s->x->n_out; i++) {
        char base[EXPR_NAME];
        const char *part;
        kgraph_step_split_name(s->x->out[i].name, base, &part);
        o.slot[i] = kgraph_step_slot(s->info->out, s->info->n_out, base);
        if (o.slot[i] < 0) return kgraph_step_fail(s, "is no output of the operator", base);
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

static int expr_of_kind(struct kgraph_walk *w, enum op_kind kind, const struct expr **out) {
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

static int walk_op(struct kgraph_walk *w, uint32_t index) {
    struct kgraph_step s = {.w = w, .index = index, .op = &w->g->ops.items[index]};
    s.info = op_info_of(s.op->kind);
    TRY(kgraph_step_check_attrs(&s));
    TRY(expr_of_kind(w, s.op->kind, &s.x));
    for (uint32_t i = 0; i < s.x->n_args; i++) TRY(kgraph_step_bind(&s, i, false));
    for (uint32_t i = 0; i < s.x->n_args; i++) TRY(kgraph_step_bind(&s, i, true));
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
static int check_bands(const struct kgraph_walk *w) {
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

static int walk_graph(struct kgraph_walk *w) {
    w->values = calloc(w->g->tensors.n + 1, sizeof *w->values);
    if (w->values == NULL)
        return fail_nomem(w->d, w->g->tensors.n * sizeof *w->values, "a kernel graph's meaning");
    for (uint32_t i = 0; i < w->g->ops.n; i++) TRY(walk_op(w, i));
    TRY(kgraph_step_check_named(w));
    TRY(check_bands(w));
    return forms_status(w->d, w->m->f);
}

static void walk_fini(struct kgraph_walk *w) {
    free(w->values);
    ARRAY_FINI(&w->compared);
}

int kgraph_meaning_new(struct diag *d, const struct kgraph *reference,
                       struct kgraph_meaning **out) {
    struct kgraph_meaning *m = calloc(1, sizeof *m);
    struct kgraph_walk w = {.d = d, .m = m, .g = reference};
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

static int differs(const struct kgraph_walk *w, const struct kgraph_compared *c) {
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
static struct kgraph_compared *counterpart(const struct kgraph_meaning *m, const char *label,
                                           size_t i, bool taken) {
    for (size_t k = 0; k < m->reference.n; k++) {
        struct kgraph_compared *r = &m->reference.items[(i + k) % m->reference.n];
        if (r->taken == taken && strcmp(r->label, label) == 0) return r;
    }
    return NULL;
}

/* Whether an operator repeats one of the first band for other logit rows. */
static bool is_of_later_band(const struct kop *op) {
    return (op->kind == OP_LM_HEAD || op->kind == OP_SAMPLE) && op->attrs.band_first > 0;
}

static int compare(struct kgraph_walk *w) {
    struct kgraph_meaning *m = w->m;
    size_t n = 0; /* values that are not of a later band */
    for (size_t i = 0; i < m->reference.n; i++) m->reference.items[i].taken = false;
    for (size_t i = 0; i < w->compared.n; i++) {
        const struct kgraph_compared *c = &w->compared.items[i];
        const bool later = is_of_later_band(&w->g->ops.items[c->op]);
        struct kgraph_compared *r = counterpart(m, c->label, i, later);
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
    struct kgraph_walk w = {.d = d, .m = m, .g = g};
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

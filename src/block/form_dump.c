/* form_dump.c - a form as text. */
#include "block/form_table.h"

static const char *const functions[] = {
    [ATOM_EXP] = "exp", [ATOM_LOG] = "log", [ATOM_RELU] = "relu", [ATOM_PHI] = "phi"};

/* As text, a form is a tree in which one part may occur many times. Longer text is cut off. */
enum { MOST_BYTES = 1 << 16 };

struct dump {
    const struct forms *f;
    const struct form_names *names;
    struct strbuf *out;
    size_t start; /* bytes of out before the form */
};

static bool is_full(const struct dump *d) {
    return d->out->n - d->start > MOST_BYTES;
}

static void dump_form(const struct dump *d, form_id id);

static void dump_dim(const struct dump *d, uint32_t dim) {
    const char *name = d->names == NULL || d->names->dims == NULL ? NULL : d->names->dims[dim];
    if (name != NULL)
        strbuf_str(d->out, name);
    else
        strbuf_printf(d->out, "d%u", dim);
}

static void dump_tensor(const struct dump *d, uint32_t tensor) {
    const struct form_names *n = d->names;
    if (n != NULL && tensor < n->n_tensors && n->tensors[tensor] != NULL)
        strbuf_str(d->out, n->tensors[tensor]);
    else
        strbuf_printf(d->out, "t%u", tensor);
}

static void dump_atom(const struct dump *d, const struct atom *a);

static void dump_index(const struct dump *d, index_id at) {
    const struct index_map *m = &d->f->maps.items[INDEX_MAP(at)];
    if (INDEX_MAP(at) == MAP_SWAP || m->swapped) strbuf_str(d->out, "swap ");
    if (!INDEX_IS_VAR(at)) {
        dump_atom(d, atom_of(d->f, m->atom));
        return;
    }
    dump_dim(d, INDEX_DIM(at));
    if (INDEX_COPY(at) != 0) strbuf_printf(d->out, "'%u", INDEX_COPY(at));
}

static void dump_indices(const struct dump *d, const struct atom *a) {
    for (int i = 0; i < a->n; i++) {
        if (i > 0) strbuf_char(d->out, ',');
        dump_index(d, a->at[i]);
    }
}

static void dump_mono(const struct dump *d, mono_id id);

static void dump_atom(const struct dump *d, const struct atom *a) {
    struct strbuf *out = d->out;
    switch ((enum atom_kind)a->kind) {
    case ATOM_INPUT:
        if (a->input == FORM_WHICH) {
            strbuf_printf(out, "which(%u: ", a->which);
            dump_tensor(d, a->tensor);
            strbuf_char(out, ')');
        } else {
            dump_tensor(d, a->tensor);
        }
        if (a->n == 0) return;
        strbuf_char(out, '[');
        dump_indices(d, a);
        strbuf_char(out, ']');
        return;
    case ATOM_SIZE:
        strbuf_str(out, "size(");
        dump_dim(d, a->tensor);
        break;
    case ATOM_SUM:
        strbuf_str(out, "sum(");
        dump_indices(d, a);
        strbuf_str(out, ": ");
        dump_mono(d, a->mono);
        break;
    case ATOM_MAX:
    case ATOM_CHOOSE:
        strbuf_str(out, a->kind == ATOM_MAX ? "max(" : "choose(");
        dump_indices(d, a);
        if (a->mono != MONO_ONE) {
            strbuf_str(out, " in ");
            dump_mono(d, a->mono);
        }
        strbuf_str(out, ": ");
        dump_form(d, a->form);
        break;
    case ATOM_POWER:
        strbuf_char(out, '(');
        dump_form(d, a->form);
        break;
    case ATOM_EXP:
    case ATOM_LOG:
    case ATOM_RELU:
    case ATOM_PHI:
        strbuf_printf(out, "%s(", functions[a->kind]);
        dump_form(d, a->form);
        break;
    }
    strbuf_char(out, ')');
}

static void dump_mono(const struct dump *d, mono_id id) {
    const struct mono *m = mono_of(d->f, id);
    if (m->n == 0) strbuf_char(d->out, '1');
    for (uint32_t i = 0; i < m->n && !is_full(d); i++) {
        const struct factor *x = &m->factors[i];
        if (i > 0) strbuf_char(d->out, ' ');
        dump_atom(d, atom_of(d->f, x->atom));
        if (x->num != 1 || x->den != 1) strbuf_printf(d->out, "^%d", x->num);
        if (x->den != 1) strbuf_printf(d->out, "/%d", x->den);
    }
}

static void dump_form(const struct dump *d, form_id id) {
    const struct form *p = form_of(d->f, id);
    if (id == FORM_NONE) strbuf_str(d->out, "not decided");
    if (id == FORM_ZERO) strbuf_char(d->out, '0');
    for (uint32_t i = 0; i < p->n && !is_full(d); i++) {
        const struct rational c = p->terms[i].c;
        const bool one = c.den == 1 && (c.num == 1 || c.num == -1);
        const bool bare = p->terms[i].mono == MONO_ONE;
        if (i > 0)
            strbuf_str(d->out, c.num < 0 ? " - " : " + ");
        else if (c.num < 0)
            strbuf_char(d->out, '-');
        if (!one || bare) {
            strbuf_printf(d->out, "%lld", (long long)(c.num < 0 ? -c.num : c.num));
            if (c.den != 1) strbuf_printf(d->out, "/%lld", (long long)c.den);
            if (!bare) strbuf_char(d->out, ' ');
        }
        if (!bare) dump_mono(d, p->terms[i].mono);
    }
}

void form_dump(const struct forms *f, form_id form, const struct form_names *names,
               struct strbuf *out) {
    const struct dump d = {f, names, out, out->n};
    dump_form(&d, form);
    if (is_full(&d)) strbuf_str(out, " ...");
}

/* task_verify_map.c - see task_verify_map.h. */
#include "task/task_verify_map.h"
#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 24, WORD = 24 };

/* The values of the names in one operator's row. */
struct names {
    const struct proof *f;
    const struct prog_op *op;
    const struct op_info *info;
    uint32_t n;
    struct {
        char text[WORD];
        uint64_t value;
        bool known;
    } name[MAX_NAMES];
    int guess; /* the name that is looked for; -1: none is */
    bool open; /* an unknown name was read */
};

static void set(struct names *n, const char *text, uint64_t value, bool known) {
    if (n->n == MAX_NAMES) return;
    snprintf(n->name[n->n].text, WORD, "%s", text);
    n->name[n->n].value = value;
    n->name[n->n++].known = known;
}

static void set_given(struct names *n) {
    const struct op_attrs *a = &n->op->attrs;
    set(n, "T", n->f->v->n_rows, true);
    set(n, "L", n->f->v->n_logit_rows, true);
    set(n, "P", (n->f->v->context + ATTENTION_PIECE - 1) / ATTENTION_PIECE, true);
#define SET_COUNT(name) set(n, #name, a->name, true);
#define SET_NUMBER(name)
#define SET_REAL(name)
#define ATTR(kind, name, ...) SET_##kind(name)
#include "graph/attr.def"
    set(n, "PARTIALS", PARTIALS, true);
    set(n, "SQUARES_COLUMNS", SQUARES_COLUMNS, true);
    set(n, "PACK_K", PACK_K, true);
    set(n, "EXPERT_STRETCH", EXPERT_STRETCH, true);
    set(n, "PART_HEAD", PART_HEAD, true);
    set(n, "LM_BLOCK", LM_BLOCK, true);
    set(n, "RESET_UNITS", RESET_UNITS, true);
}

/* ---- numbers: a cursor over the text ---- */

static bool of_word(char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static void take_word(const char **at, char word[WORD]) {
    int n = 0;
    while (of_word(**at)) {
        if (n < WORD - 1) word[n++] = **at;
        ++*at;
    }
    word[n] = '\0';
}

static bool take(const char **at, char c) {
    if (**at != c) return false;
    ++*at;
    return true;
}

/* The value of a name. A new name joins the list, unknown. */
static uint64_t value_of(struct names *n, const char *word) {
    uint32_t i = 0;
    while (i < n->n && strcmp(n->name[i].text, word) != 0) i++;
    if (i == n->n) set(n, word, 1, false);
    if (i >= n->n) return 0;
    if (!n->name[i].known && (int)i != n->guess) {
        n->open = true;
        if (n->guess < 0) n->guess = (int)i; /* the first one */
    }
    return n->name[i].value;
}

static uint64_t sum(struct names *n, const char **at);

static uint64_t atom(struct names *n, const char **at) {
    char word[WORD];
    if (take(at, '(')) {
        const uint64_t v = sum(n, at);
        take(at, ')');
        return v;
    }
    take_word(at, word);
    if (word[0] >= '0' && word[0] <= '9') return strtoull(word, NULL, 10);
    if (strcmp(word, "min") != 0) return value_of(n, word);
    take(at, '(');
    const uint64_t a = sum(n, at);
    take(at, ',');
    const uint64_t b = sum(n, at);
    take(at, ')');
    return a < b ? a : b;
}

static uint64_t product(struct names *n, const char **at) {
    uint64_t v = atom(n, at);
    for (;;) {
        if (take(at, '*')) {
            v *= atom(n, at);
        } else if (take(at, '/')) {
            const uint64_t by = atom(n, at);
            v = by == 0 ? 0 : v / by + (v % by != 0);
        } else {
            return v;
        }
    }
}

static uint64_t sum(struct names *n, const char **at) {
    uint64_t v = product(n, at);
    while (take(at, '+')) v += product(n, at);
    return v;
}

/* ---- names that shapes bind ---- */

/* Whether a dimension begins with the single letter `r` or `u`: the task's rows or units. */
static bool begins_with(const char *text, char letter) {
    return text[0] == letter && !of_word(text[1]);
}

static uint64_t with_guess(struct names *n, int name, uint64_t value, const char *text) {
    n->guess = name;
    n->name[name].value = value;
    return sum(n, &text);
}

/* Finds the value of a number's only unknown name that makes the number `have`, if exactly one
 * value does. */
static void bisect(struct names *n, const char *text, uint64_t have) {
    const char *at = text;
    n->guess = -1;
    n->open = false;
    sum(n, &at);
    const int name = n->guess;
    if (!n->open || name < 0) return;
    n->open = false;
    uint64_t low = 0, high = UINT32_MAX; /* the least value that gives `have` or more */
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (with_guess(n, name, middle, text) < have)
            low = middle + 1;
        else
            high = middle;
    }
    const bool found = with_guess(n, name, low, text) == have && !n->open;
    const bool single = with_guess(n, name, low + 1, text) != have;
    n->name[name].value = low;
    n->name[name].known = found && single;
    n->guess = -1;
}

static const struct prog_tensor *operand(const struct names *n, bool in, int slot) {
    const uint32_t t = in ? n->op->in[slot] : n->op->out[slot];
    return t == PROG_NONE ? NULL : proof_tensor(n->f, t);
}

/* Looks for unknown names, in three rounds. Returns the units that the first dimension `u` says; 0:
 * there is none. */
static uint64_t bind(struct names *n) {
    uint64_t units = 0;
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < n->info->n_in; i++) {
            const struct prog_tensor *t = operand(n, true, i);
            for (int k = 0; t != NULL && k < n->info->in[i].n_dims && k < t->n_dims; k++) {
                const char *text = n->info->in[i].dim[k];
                const bool u = begins_with(text, 'u');
                if (u && (text[1] == ',' || text[1] == ']') && units == 0) units = t->shape[k];
                if (!u && !begins_with(text, 'r') && *text != '*') bisect(n, text, t->shape[k]);
            }
        }
    return units;
}

/* ---- dimensions ---- */

static struct verify_step *add_step(struct verify_dim *d, enum verify_verb verb, uint64_t a,
                                    uint64_t b) {
    struct verify_step *s = &d->step[MIN(d->n, (uint32_t)VERIFY_MAX_STEPS - 1)];
    *s = (struct verify_step){a, b, verb};
    d->n++;
    return s;
}

/* Whether an input of the operator is a list: integers, all of which each task reads, so that
 * whatever a list names is read after the list. */
static bool is_list(const struct names *n, const char *word) {
    for (int i = 0; i < n->info->n_in; i++) {
        const struct op_slot *s = &n->info->in[i];
        bool whole = s->integer && !s->weight && !s->state;
        if (strcmp(s->name, word) != 0) continue;
        for (int k = 0; k < s->n_dims; k++)
            whole = whole && !begins_with(s->dim[k], 'r') && !begins_with(s->dim[k], 'u') &&
                    memchr(s->dim[k], '@', strcspn(s->dim[k], "]")) == NULL;
        return whole && n->op->in[i] != PROG_NONE;
    }
    return false;
}

/* Reads what follows "u/": the units of a turn, and the elements that a turn stands for. */
static void read_turns(struct names *n, const char **at, struct verify_dim *d) {
    const uint64_t turn = atom(n, at);
    if (take(at, '<')) {
        add_step(d, VERB_FIRST, turn, atom(n, at));
        return;
    }
    add_step(d, VERB_OVER, turn, 0);
    if (take(at, '*')) add_step(d, VERB_TIMES, atom(n, at), 0);
}

/* Reads one access as steps; returns its extent. */
static uint64_t read_access(struct names *n, const struct verify_map *m, const char **at,
                            struct verify_dim *d) {
    const struct prog_task all = {.row1 = (uint32_t)m->rows, .unit1 = (uint32_t)m->units};
    d->n = 0;
    if (begins_with(*at, 'r')) {
        ++*at;
        add_step(d, VERB_ROWS, 0, 0);
    } else if (begins_with(*at, 'u')) {
        ++*at;
        add_step(d, VERB_UNITS, 0, 0);
        if (take(at, '(')) {
            const uint64_t a = sum(n, at);
            take(at, ',');
            const uint64_t b = sum(n, at);
            take(at, ')');
            add_step(d, VERB_CLIP, a, b);
        }
        if (take(at, '*'))
            add_step(d, VERB_TIMES, atom(n, at), 0);
        else if (take(at, '/'))
            read_turns(n, at, d);
        else if (take(at, '%'))
            add_step(d, VERB_WRAP, atom(n, at), 0);
    } else if (take(at, '@')) {
        char word[WORD];
        take_word(at, word);
        if (!is_list(n, word)) n->open = true;
        add_step(d, VERB_LISTED, 0, 0);
    } else {
        add_step(d, VERB_WHOLE, sum(n, at), 0);
    }
    d->extent = UINT64_MAX;
    return task_verify_map_range(d, &all).last;
}

/* Reads a dimension; of several extents, the one that equals `have`. have: 0 where nothing is
 * known. */
static bool read_dim(struct names *n, const struct verify_map *m, const char *text, uint64_t have,
                     struct verify_dim *d) {
    n->open = false;
    n->guess = -1;
    if (*text == '*') {
        add_step(d, VERB_WHOLE, have, 0);
        d->extent = have;
        return true;
    }
    uint64_t extent = read_access(n, m, &text, d);
    if (take(&text, ':')) {
        const bool at_end = take(&text, '>');
        const uint64_t own = read_access(n, m, &text, d);
        if (at_end) add_step(d, VERB_LATER, extent < own ? 0 : extent - own, 0);
    }
    d->extent = extent;
    while (take(&text, '|')) {
        struct verify_dim other = {0};
        other.extent = read_access(n, m, &text, &other);
        if (d->extent != have && other.extent == have) *d = other;
    }
    return !n->open && d->n <= VERIFY_MAX_STEPS && (*text == ',' || *text == ']');
}

struct verify_interval task_verify_map_range(const struct verify_dim *d,
                                             const struct prog_task *t) {
    struct verify_interval v = {0, 0};
    for (uint32_t i = 0; i < d->n; i++) {
        const struct verify_step *s = &d->step[i];
        const bool empty = v.first >= v.last;
        switch (s->verb) {
        case VERB_WHOLE: v = (struct verify_interval){0, s->a}; break;
        case VERB_LISTED: v = (struct verify_interval){0, d->extent}; break;
        case VERB_ROWS: v = (struct verify_interval){t->row0, t->row1}; break;
        case VERB_UNITS: v = (struct verify_interval){t->unit0, t->unit1}; break;
        case VERB_CLIP:
            v.first = v.first < s->a ? 0 : v.first - s->a;
            v.last = v.last < s->a ? 0 : MIN(v.last, s->b) - s->a;
            break;
        case VERB_TIMES: v = (struct verify_interval){v.first * s->a, v.last * s->a}; break;
        case VERB_OVER:
            if (!empty) v = (struct verify_interval){v.first / s->a, (v.last - 1) / s->a + 1};
            break;
        case VERB_FIRST:
            v.first = v.first / s->a * s->b + MIN(v.first % s->a, s->b);
            v.last = v.last / s->a * s->b + MIN(v.last % s->a, s->b);
            break;
        case VERB_LATER:
            if (!empty) v = (struct verify_interval){v.first + s->a, v.last + s->a};
            break;
        case VERB_WRAP:
            if (empty) break;
            if (v.first / s->a != (v.last - 1) / s->a)
                v = (struct verify_interval){0, s->a};
            else
                v = (struct verify_interval){v.first % s->a, (v.last - 1) % s->a + 1};
            break;
        default: break;
        }
    }
    v.last = MIN(v.last, d->extent);
    return v;
}

/* ---- operands ---- */

static int wrong(const struct names *n, const struct op_slot *slot, const char *what) {
    return fail(n->f->d, QN_EVERIFY, "operator %u (layer %d %s): operand %s: %s",
                (uint32_t)(n->op - PROG(n->f->p, OP)), n->op->layer, n->info->name, slot->name,
                what);
}

/* Whether the input of that name is there. */
static bool has_input(const struct names *n, const char *name) {
    for (int i = 0; i < n->info->n_in; i++)
        if (strcmp(n->info->in[i].name, name) == 0) return n->op->in[i] != PROG_NONE;
    return false;
}

static bool may_be(const struct names *n, const struct op_slot *slot, bool there) {
    if (slot->with[0] != '\0') return there == has_input(n, slot->with);
    if (slot->without[0] != '\0') return there != has_input(n, slot->without);
    return there || slot->optional;
}

/* What is wrong with a tensor's role, format or layout for a slot; NULL: nothing. */
static const char *unfit(const struct prog_tensor *t, const struct op_slot *slot) {
    const bool narrow = t->dtype == DTYPE_BF16 || t->dtype == DTYPE_F16;
    if (slot->weight) {
        if (t->role != PROG_WEIGHT || t->layout != LAYOUT_ROWS) return "want a weight";
        if (t->n_dims == 1) return t->dtype == DTYPE_F32 ? NULL : "want float32";
        return narrow || t->dtype == DTYPE_F32 ? NULL : "want a float format";
    }
    if (slot->state)
        return t->role == PROG_STATE && t->layout == LAYOUT_BLOCKS ? NULL : "want a KV cache";
    if (t->role != PROG_ACTIVATION) return "want an activation";
    if (t->layout == LAYOUT_PACKED)
        return slot->packable || slot->packed ? narrow ? NULL : "want 16 bits" : "want plain rows";
    if (slot->packed) return "want packed rows";
    if (slot->integer) return t->dtype == DTYPE_I32 ? NULL : "want int32";
    return t->dtype == DTYPE_F32 ? NULL : "want float32";
}

static int read_operand(struct names *n, struct verify_map *m, bool in, int slot) {
    const struct op_slot *s = in ? &n->info->in[slot] : &n->info->out[slot];
    struct verify_operand *o = in ? &m->in[slot] : &m->out[slot];
    const struct prog_tensor *t = operand(n, in, slot);
    if (!may_be(n, s, t != NULL)) return wrong(n, s, t == NULL ? "is missing" : "is not wanted");
    if (t == NULL) return QN_OK;
    const char *what = unfit(t, s);
    if (what != NULL) return wrong(n, s, what);
    if (t->n_dims != s->n_dims) return wrong(n, s, "has the wrong number of dimensions");
    o->n_dims = t->n_dims;
    for (int k = 0; k < s->n_dims; k++) {
        if (!read_dim(n, m, s->dim[k], t->shape[k], &o->dim[k]))
            return wrong(n, s, "its row of op.def is not understood");
        if (o->dim[k].extent != t->shape[k]) return wrong(n, s, "has another shape");
    }
    return QN_OK;
}

int task_verify_map(struct proof *f, uint32_t op, struct verify_map *map) {
    memset(map, 0, sizeof *map);
    const struct prog_op *o = &PROG(f->p, OP)[op];
    map->info = op_info_of((enum op_kind)o->kind);
    struct names n = {.f = f, .op = o, .info = map->info, .guess = -1};
    set_given(&n);
    const char *at = map->info->rows;
    map->rows = sum(&n, &at);
    const uint64_t units = bind(&n);
    at = map->info->units;
    map->units = begins_with(at, 'u') ? units : sum(&n, &at);
    for (int i = 0; i < map->info->n_in; i++) TRY(read_operand(&n, map, true, i));
    for (int i = 0; i < map->info->n_out; i++) TRY(read_operand(&n, map, false, i));
    return QN_OK;
}

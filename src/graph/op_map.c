#include "graph/op_map.h"
#include "graph/expert_list.h"
#include "base/checked.h"

#include <stdbool.h>
#include <string.h>

enum { MAX_NAMES = 12 };

/* A name of the row and its number. */
struct name {
    char text[OP_NAME_CHARS];
    uint64_t value;
};

/* What a map is bound with. */
struct binder {
    struct diag *d;
    const struct map_source *s;
    const struct op_info *info;
    struct name names[MAX_NAMES];
    int n_names;
    uint64_t rows, units;
    bool has_units; /* the number of units is known */
};

/* ---- numbers ---- */

/* A number of the row while it is read. `known`: all its names have values; else unknown has
 * none. */
struct number {
    uint64_t value;
    bool known;
    char unknown[OP_NAME_CHARS];
};

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static const char *read_word(const char *text, char word[OP_NAME_CHARS * 2]) {
    size_t n = 0;
    for (; is_letter(*text) || is_digit(*text); text++)
        if (n < OP_NAME_CHARS * 2 - 1) word[n++] = *text;
    word[n] = '\0';
    return text;
}

/* The value of a name: T, L, P, attributes, constants of op.h, bound names; false: no such name. */
static bool find_known(const struct binder *b, const char *word, uint64_t *value) {
    const struct op_attrs *a = &b->s->attrs;
    const struct map_graph *g = &b->s->graph;
    const struct {
        const char *name;
        uint64_t value;
    } known[] = {
        {"T", g->n_rows},         {"L", g->n_logit_rows},
        {"P", g->n_pieces},
#define KNOWN_COUNT(name) {#name, a->name},
#define KNOWN_NUMBER(name)
#define KNOWN_REAL(name)
#define ATTR(kind, name, ...) KNOWN_##kind(name)
#include "graph/attr.def"
        {"PARTIALS", PARTIALS},   {"SQUARES_COLUMNS", SQUARES_COLUMNS},
        {"PACK_K", PACK_K},       {"EXPERT_STRETCH", EXPERT_STRETCH},
        {"PART_HEAD", PART_HEAD}, {"RESET_UNITS", RESET_UNITS},
        {"LM_BLOCK", LM_BLOCK},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (strcmp(known[i].name, word) == 0) {
            *value = known[i].value;
            return true;
        }
    for (int i = 0; i < b->n_names; i++)
        if (strcmp(b->names[i].text, word) == 0) {
            *value = b->names[i].value;
            return true;
        }
    return false;
}

static const char *read_sum(const struct binder *b, const char *text, struct number *n);

/* Reads "(a,b)", after the word min. */
static const char *read_min(const struct binder *b, const char *text, struct number *n) {
    struct number other;
    text = read_sum(b, text + 1, n);
    text = read_sum(b, text + 1, &other);
    n->value = MIN(n->value, other.value);
    n->known = n->known && other.known;
    return text + 1;
}

static const char *read_factor(const struct binder *b, const char *text, struct number *n) {
    char word[OP_NAME_CHARS * 2];
    *n = (struct number){.known = true};
    if (*text == '(') return read_sum(b, text + 1, n) + 1;
    if (is_digit(*text)) {
        for (; is_digit(*text); text++) n->value = n->value * 10 + (uint64_t)(*text - '0');
        return text;
    }
    text = read_word(text, word);
    if (strcmp(word, "min") == 0 && *text == '(') return read_min(b, text, n);
    n->known = find_known(b, word, &n->value);
    if (!n->known) memcpy(n->unknown, word, OP_NAME_CHARS - 1);
    return text;
}

static const char *read_product(const struct binder *b, const char *text, struct number *n) {
    text = read_factor(b, text, n);
    while (*text == '*' || *text == '/') {
        const char op = *text;
        struct number other;
        text = read_factor(b, text + 1, &other);
        if (op == '*')
            n->value *= other.value;
        else
            n->value = other.value == 0 ? 0 : CEIL_DIV(n->value, other.value);
        n->known = n->known && other.known;
    }
    return text;
}

/* 64 bits are enough: shapes are below 2^32 (model_spec.h), and products have at most two factors
 * that are not constants. */
static const char *read_sum(const struct binder *b, const char *text, struct number *n) {
    text = read_product(b, text, n);
    while (*text == '+') {
        struct number other;
        text = read_product(b, text + 1, &other);
        n->value += other.value;
        n->known = n->known && other.known;
    }
    return text;
}

/* ---- dimensions ---- */

static bool is_word(const char *text, char letter) {
    return text[0] == letter && !is_letter(text[1]) && !is_digit(text[1]);
}

static bool ends(char c) {
    return c == ',' || c == ']' || c == '\0';
}

/* Reads what follows "u/N": "*X", X elements for N units, or "<X", the first X of N units. */
static const char *read_turns(const struct binder *b, const char *text, struct map_dim *m,
                              bool *known) {
    struct number n;
    const char op = *text;
    if (op != '*' && op != '<') return text;
    text = read_factor(b, text + 1, &n);
    if (op == '*') m->after = (uint32_t)n.value;
    if (op == '<') m->first = (uint32_t)n.value;
    *known = n.known && n.value != 0;
    return text;
}

/* Reads "u(a,b)*D": the part of the dimension that a task's units are. Sets *known. */
static const char *read_units(const struct binder *b, const char *text, struct map_dim *m,
                              bool *known) {
    struct number n;
    m->index = MAP_UNITS;
    m->hi = b->units;
    m->times = m->over = m->after = 1;
    *known = b->has_units;
    text++;
    if (*text == '(') {
        text = read_sum(b, text + 1, &n);
        m->lo = n.value;
        text = read_sum(b, text + 1, &n) + 1;
        m->hi = n.value;
    }
    const char op = *text;
    if (op != '*' && op != '/' && op != '%') return text;
    text = read_factor(b, text + 1, &n);
    if (op == '*') m->times = (uint32_t)n.value;
    if (op == '/') m->over = (uint32_t)n.value;
    if (op == '%') m->modulo = (uint32_t)n.value;
    *known = *known && n.known && n.value != 0;
    return op == '/' && *known ? read_turns(b, text, m, known) : text;
}

/* Reads "@list": what a list names. Sets *known: whether it is an input of integers. */
static const char *read_listed(const struct binder *b, const char *text, struct map_dim *m,
                               bool *known) {
    char word[OP_NAME_CHARS * 2];
    text = read_word(text + 1, word);
    m->index = MAP_LISTED;
    *known = false;
    for (int i = 0; i < b->info->n_in; i++) {
        const struct op_slot *slot = &b->info->in[i];
        if (strcmp(slot->name, word) != 0 || !slot->integer || b->s->in[i].n_dims == 0) continue;
        m->hi = b->s->in[i].shape[0];
        *known = true;
    }
    return text;
}

/* One access of a dimension: "r", "u...", "@list" or a number. */
static const char *read_access(const struct binder *b, const char *text, struct map_dim *m,
                               struct number *number) {
    *m = (struct map_dim){.times = 1, .over = 1, .after = 1};
    *number = (struct number){.known = true};
    if (is_word(text, 'r')) {
        m->index = MAP_ROWS;
        m->extent = b->rows;
        return text + 1;
    }
    if (is_word(text, 'u')) {
        text = read_units(b, text, m, &number->known);
        m->extent = UINT64_MAX;
        m->extent = m->modulo != 0 ? m->modulo : op_map_range(m, 0, 0, m->lo, m->hi).last;
        return text;
    }
    if (*text == '@') return read_listed(b, text, m, &number->known);
    text = read_sum(b, text, number);
    m->index = MAP_ALL;
    m->lo = m->extent = number->value;
    return text;
}

static int not_understood(const struct binder *b, const char *text) {
    return fail(b->d, QN_EINTERNAL, "op.def: %s: '%.20s' is not understood", b->info->name, text);
}

static int bind_name(struct binder *b, const char *word, uint64_t value) {
    if (b->n_names == MAX_NAMES) return not_understood(b, word);
    struct name *n = &b->names[b->n_names++];
    memcpy(n->text, word, OP_NAME_CHARS);
    n->value = value;
    return QN_OK;
}

/* Solves "S" or "S*N", N known, for S: the product is `have`. false: the text is neither. */
static bool solve(const struct binder *b, const char *text, uint64_t have, struct number *n) {
    struct number first, second = {.value = 1, .known = true};
    text = read_factor(b, text, &first);
    if (*text == '*') text = read_factor(b, text + 1, &second);
    if (!ends(*text) && *text != ':') return false;
    if (first.known || !second.known || second.value == 0) return false;
    *n = first;
    n->value = have / second.value;
    return true;
}

/* Binds the name, or the units, that a dimension of a present operand determines. */
static int learn(struct binder *b, const char *text, uint64_t have) {
    struct number n;
    if (is_word(text, 'u') && ends(text[1])) {
        if (!b->has_units) b->units = have;
        b->has_units = true;
        return QN_OK;
    }
    if (is_word(text, 'u') || is_word(text, 'r') || *text == '*') return QN_OK;
    if (solve(b, text, have, &n)) return bind_name(b, n.unknown, n.value);
    return QN_OK;
}

/* Reads a dimension, all names known. `have`: the operand's extent; 0: it is absent. Of several
 * extents, takes the one that the operand has, or the first. */
static int read_dim(const struct binder *b, const char *text, uint64_t have, struct map_dim *m) {
    struct number n;
    if (text[0] == '*') { /* as the operand has it */
        *m = (struct map_dim){.extent = have, .lo = have, .times = 1, .over = 1, .after = 1};
        return QN_OK;
    }
    const char *at = read_access(b, text, m, &n);
    bool known = n.known;
    if (*at == ':') {
        const uint64_t extent = m->extent;
        const bool last = at[1] == '>';
        at = read_access(b, at + 1 + last, m, &n);
        if (last) m->shift = extent - MIN(m->extent, extent);
        m->extent = extent;
        if (m->index == MAP_LISTED) m->lo = extent;
        if (m->index == MAP_LISTED) m->hi = MIN(m->hi, extent);
        known = known && n.known;
    }
    while (*at == '|' && m->extent != have) {
        struct map_dim other;
        at = read_access(b, at + 1, &other, &n);
        if (other.extent == have) *m = other;
    }
    while (*at == '|') at = read_access(b, at + 1, &(struct map_dim){0}, &n);
    return known && ends(*at) ? QN_OK : not_understood(b, text);
}

/* ---- operands ---- */

static int wrong_shape(const struct binder *b, const struct op_slot *slot,
                       const struct map_shape *have, const struct map_operand *want) {
    uint64_t w[OP_MAX_DIMS] = {0};
    for (uint32_t i = 0; i < want->n_dims; i++) w[i] = want->dim[i].extent;
    return fail(b->d, QN_ESHAPE,
                "layer %d %s: %s (%s): want [%llu,%llu,%llu,%llu] in %u dimensions, have "
                "[%llu,%llu,%llu,%llu] in %u",
                b->s->layer, b->info->name, slot->name, have->name, (unsigned long long)w[0],
                (unsigned long long)w[1], (unsigned long long)w[2], (unsigned long long)w[3],
                want->n_dims, (unsigned long long)have->shape[0],
                (unsigned long long)have->shape[1], (unsigned long long)have->shape[2],
                (unsigned long long)have->shape[3], have->n_dims);
}

/* Whether the input of that name is there. */
static bool is_there(const struct binder *b, const char *name) {
    for (int i = 0; i < b->info->n_in; i++)
        if (strcmp(b->info->in[i].name, name) == 0) return b->s->in[i].n_dims != 0;
    return false;
}

/* Whether an operand must be there, by the conditions of its row. */
static bool is_wanted(const struct binder *b, const struct op_slot *slot) {
    if (slot->with[0] != '\0') return is_there(b, slot->with);
    if (slot->without[0] != '\0') return !is_there(b, slot->without);
    return true;
}

static int check_presence(const struct binder *b, const struct op_slot *slot, bool there) {
    const bool either = slot->optional && slot->with[0] == '\0' && slot->without[0] == '\0';
    if (either || there == is_wanted(b, slot)) return QN_OK;
    if (slot->without[0] != '\0')
        return fail(b->d, QN_ESHAPE, "layer %d %s: want one of %s and %s", b->s->layer,
                    b->info->name, slot->name, slot->without);
    return fail(b->d, QN_ESHAPE, "layer %d %s: operand %s is %s", b->s->layer, b->info->name,
                slot->name, there ? "not wanted" : "missing");
}

static int read_operand(const struct binder *b, const struct op_slot *slot,
                        const struct map_shape *have, struct map_operand *m) {
    m->n_dims = (uint32_t)slot->n_dims;
    m->weight = slot->weight;
    for (int i = 0; i < slot->n_dims; i++)
        TRY(read_dim(b, slot->dim[i], have->n_dims > (uint32_t)i ? have->shape[i] : 0, &m->dim[i]));
    return QN_OK;
}

/* Checks an input against its row of op.def. */
static int bind_input(const struct binder *b, int i, struct map_operand *m) {
    const struct op_slot *slot = &b->info->in[i];
    const struct map_shape *have = &b->s->in[i];
    TRY(check_presence(b, slot, have->n_dims != 0));
    if (have->n_dims == 0) return QN_OK;
    TRY(read_operand(b, slot, have, m));
    bool same = have->n_dims == m->n_dims;
    for (uint32_t k = 0; same && k < m->n_dims; k++) same = have->shape[k] == m->dim[k].extent;
    return same ? QN_OK : wrong_shape(b, slot, have, m);
}

/* Two rounds: an input may use a name that a later input binds. */
static int bind_names(struct binder *b) {
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < b->info->n_in; i++) {
            const struct op_slot *slot = &b->info->in[i];
            const struct map_shape *have = &b->s->in[i];
            for (int k = 0; k < slot->n_dims && (uint32_t)k < have->n_dims; k++)
                TRY(learn(b, slot->dim[k], have->shape[k]));
        }
    return QN_OK;
}

static int bind_counts(struct binder *b) {
    struct number n;
    read_sum(b, b->info->rows, &n);
    if (!n.known) return not_understood(b, b->info->rows);
    b->rows = n.value;
    TRY(bind_names(b));
    if (is_word(b->info->units, 'u')) return b->has_units ? QN_OK : not_understood(b, "u");
    read_sum(b, b->info->units, &n);
    if (!n.known) return not_understood(b, b->info->units);
    b->units = n.value;
    b->has_units = true;
    return QN_OK;
}

static int check_attributes(const struct binder *b) {
    const struct op_attrs *a = &b->s->attrs;
    const struct {
        const char *name;
        bool set;
    } all[] = {
#define ATTR(kind, name, fixed, of_model, holds) {#name, (holds)},
#include "graph/attr.def"
    };
    for (const char *at = b->info->attributes; *at != '\0';) {
        char word[OP_NAME_CHARS * 2];
        at = read_word(at, word);
        for (size_t i = 0; i < COUNT_OF(all); i++)
            if (strcmp(all[i].name, word) == 0 && !all[i].set)
                return fail(b->d, QN_ESHAPE, "layer %d %s: attribute %s is not set", b->s->layer,
                            b->info->name, word);
        at += *at == ' ';
    }
    return QN_OK;
}

int op_map_bind(struct diag *d, const struct map_source *source, struct op_map *map) {
    struct binder b = {.d = d, .s = source};
    b.info = op_info_of(source->kind);
    memset(map, 0, sizeof *map);
    TRY(check_attributes(&b));
    TRY(bind_counts(&b));
    map->rows = b.rows;
    map->units = b.units;
    for (int i = 0; i < b.info->n_in; i++) TRY(bind_input(&b, i, &map->in[i]));
    for (int i = 0; i < b.info->n_out; i++)
        if (is_wanted(&b, &b.info->out[i]))
            TRY(read_operand(&b, &b.info->out[i], &source->out[i], &map->out[i]));
    return QN_OK;
}

int op_maps_keep(struct diag *d, struct op_maps *maps, struct arena *arena,
                 const struct op_map *map, const struct op_map **kept) {
    for (size_t i = maps->list.n; i-- > 0;)
        if (memcmp(maps->list.items[i].map, map, sizeof *map) == 0) {
            *kept = maps->list.items[i].map;
            return QN_OK;
        }
    struct op_map *copy;
    TRY(ARENA_NEW(d, arena, &copy, 1));
    *copy = *map;
    *kept = copy;
    return ARRAY_PUSH(d, &maps->list, (struct op_map_ref){copy});
}

/* ---- evaluation ---- */

static uint64_t clamp(uint64_t u, const struct map_dim *d) {
    return MIN(MAX(u, d->lo), d->hi) - d->lo;
}

/* Of each d->over units the first d->first: how many of these lie before unit u. */
static uint64_t firsts_before(const struct map_dim *d, uint64_t u) {
    return u / d->over * d->first + MIN(u % d->over, (uint64_t)d->first);
}

struct map_range op_map_range(const struct map_dim *d, uint64_t row0, uint64_t row1, uint64_t unit0,
                              uint64_t unit1) {
    if (d->index == MAP_ALL || d->index == MAP_LISTED) return (struct map_range){0, d->lo};
    if (d->index == MAP_ROWS) return (struct map_range){row0, row1};
    const uint64_t u0 = clamp(unit0, d), u1 = clamp(unit1, d);
    if (u0 >= u1) return (struct map_range){0, 0};
    if (d->modulo != 0) {
        const uint64_t turn = u0 / d->modulo;
        if (turn != (u1 - 1) / d->modulo) return (struct map_range){0, d->modulo};
        return (struct map_range){u0 - turn * d->modulo, u1 - turn * d->modulo};
    }
    uint64_t from = u0 * d->times / d->over * d->after;
    uint64_t to = CEIL_DIV(u1 * d->times, (uint64_t)d->over) * d->after;
    if (d->first != 0) {
        from = firsts_before(d, u0);
        to = firsts_before(d, u1);
    }
    return (struct map_range){MIN(from + d->shift, d->extent), MIN(to + d->shift, d->extent)};
}

/* How much of a dimension of a weight a task of units [unit0,unit1) reads. */
static uint64_t read_of(const struct map_dim *d, uint64_t unit0, uint64_t unit1) {
    if (d->index == MAP_LISTED) return d->hi;
    if (d->index == MAP_UNITS && d->modulo != 0) return unit1 - unit0;
    const struct map_range r = op_map_range(d, 0, 0, unit0, unit1);
    return r.last - r.first;
}

uint64_t op_map_weight_elements(const struct op_map *map, uint64_t unit0, uint64_t unit1) {
    uint64_t elements = 0;
    for (int i = 0; i < OP_MAX_IN; i++) {
        const struct map_operand *m = &map->in[i];
        if (!m->weight || m->n_dims < 2 || m->dim[0].index == MAP_ALL) continue;
        uint64_t n = 1;
        for (uint32_t k = 0; k < m->n_dims; k++) n *= read_of(&m->dim[k], unit0, unit1);
        elements += n;
    }
    return elements;
}

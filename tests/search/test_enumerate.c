/* The least cost, by an enumerator that shares nothing with src/search: random programs of a few
 * operators, their own typing and evaluation, all graphs of every skeleton with at most one loop,
 * without pruning but by cost. It must find a graph of the search's least cost and none below.
 *
 * Costs are those that docs/superoptimizer.md describes, written down once more here. */
#include "search_rig.h"

#include <math.h>

enum {
    PROGRAMS = 200,
    DIMS = 3,
    INPUTS = 3,
    VALUES = 16,
    CELLS = 2 * 3 * 5,
    NONE = 255,
    MORE_OPS = 1, /* than the program has itself, or the graph that the search finds */
    RING_PAGES = 16,
    PRIME = 2147483647,
};

enum kind { ACT, VEC, WEIGHT };
enum stage { EARLY, BEFORE, LOOP, AFTER, NO_STAGE };
enum op { ADD, SUB, MUL, DIV, SQUARE, SIGMOID, SILU, SUM, N_OPS };

static const uint32_t op_cost[N_OPS] = {1, 1, 1, 8, 1, 10, 11, 1};
static const uint32_t test_size[DIMS] = {2, 3, 5};

/* ---- values: an array over all dims, the same along those that the value lacks ---- */

struct value {
    uint32_t dims;
    uint32_t whole; /* dims that each of its terms has: sums go over these only */
    uint64_t cell[CELLS];
};

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t power(uint64_t x, uint64_t n) {
    uint64_t r = 1;
    for (; n > 0; n >>= 1, x = x * x % PRIME)
        if ((n & 1) != 0) r = r * x % PRIME;
    return r;
}

/* The index of a cell along a dim. */
static uint32_t index_along(uint32_t cell, uint32_t dim) {
    for (uint32_t d = 0; d < dim; d++) cell /= test_size[d];
    return cell % test_size[dim];
}

static uint32_t stride_of(uint32_t dim) {
    uint32_t stride = 1;
    for (uint32_t d = 0; d < dim; d++) stride *= test_size[d];
    return stride;
}

static struct value random_value(uint32_t dims, uint64_t seed) {
    struct value v = {.dims = dims, .whole = dims};
    for (uint32_t i = 0; i < CELLS; i++) {
        uint64_t key = seed;
        for (uint32_t d = 0; d < DIMS; d++)
            if ((dims >> d & 1) != 0) key = mix(key * 31 + index_along(i, d) + 1);
        v.cell[i] = mix(key) % PRIME;
    }
    return v;
}

static uint64_t apply_cell(enum op op, uint64_t a, uint64_t b) {
    const uint64_t s = mix(a + 77) % PRIME; /* some function, for the sigmoid */
    switch (op) {
    case ADD: return (a + b) % PRIME;
    case SUB: return (a + PRIME - b) % PRIME;
    case MUL: return a * b % PRIME;
    case DIV: return a * power(b, PRIME - 2) % PRIME;
    case SQUARE: return a * a % PRIME;
    case SIGMOID: return s;
    case SILU: return a * s % PRIME;
    default: return a;
    }
}

static struct value sum_over(const struct value *a, uint32_t dim) {
    struct value v = {.dims = a->dims & ~(1u << dim), .whole = a->whole & ~(1u << dim)};
    const uint32_t stride = stride_of(dim);
    for (uint32_t i = 0; i < CELLS; i++) {
        const uint32_t first = i - index_along(i, dim) * stride;
        for (uint32_t k = 0; k < test_size[dim]; k++)
            v.cell[i] = (v.cell[i] + a->cell[first + k * stride]) % PRIME;
    }
    return v;
}

static struct value apply(enum op op, const struct value *a, const struct value *b, uint32_t dim) {
    struct value v = {.dims = a->dims | (b != NULL ? b->dims : 0)};
    v.whole = op == ADD || op == SUB ? a->whole & b->whole : a->whole | (b != NULL ? b->whole : 0);
    for (uint32_t i = 0; i < CELLS; i++)
        v.cell[i] = apply_cell(op, a->cell[i], b != NULL ? b->cell[i] : 0);
    return dim == NONE ? v : sum_over(&v, dim);
}

static bool same(const struct value *a, const struct value *b) {
    return a->dims == b->dims && memcmp(a->cell, b->cell, sizeof a->cell) == 0;
}

/* ---- programs ---- */

struct line {
    enum op op; /* of the last value */
    uint32_t other, dim;
};

struct program {
    uint32_t n_inputs, size[DIMS], n_lines;
    struct line line[4];
    uint32_t dims[INPUTS];
    enum kind kind[INPUTS];
    struct value input[INPUTS], target;
    uint32_t ops, summed; /* bits: operators that may be used; dims that may be summed over */
    uint32_t needed;      /* bits: inputs on which the target depends */
    uint32_t most_ops;    /* of a graph */
    char text[1000];
};

static uint64_t next_random(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    return mix(*state);
}

/* "[a,c]"; nothing of no dims. */
static const char *write_dims(uint32_t dims, char out[12]) {
    char *p = out;
    *p = '\0';
    for (uint32_t d = 0; d < DIMS; d++)
        if ((dims >> d & 1) != 0) p += sprintf(p, "%c%c", p == out ? '[' : ',', 'a' + (int)d);
    if (dims != 0) sprintf(p, "]");
    return out;
}

static void make_inputs(struct program *p, uint64_t *random, char *text) {
    static const char *const kinds[] = {"act", "vec", "weight"};
    char dims[12];
    p->n_inputs = 2 + next_random(random) % 2;
    text += sprintf(text, "op f(");
    for (uint32_t i = 0; i < p->n_inputs; i++) {
        p->dims[i] = 1 + (uint32_t)(next_random(random) % 7);
        p->kind[i] = (enum kind)(next_random(random) % 3);
        p->input[i] = random_value(p->dims[i], next_random(random));
        text += sprintf(text, "%sx%u%s %s", i > 0 ? ", " : "", i, write_dims(p->dims[i], dims),
                        kinds[p->kind[i]]);
    }
}

/* An operator on the last value and perhaps an earlier one; `added`, bits, are values that earlier
 * lines add or subtract: multiples of a value are not looked for. */
static struct line random_line(const struct value *values, uint32_t n, uint32_t added,
                               uint64_t *random) {
    for (;;) {
        const struct line l = {.op = (enum op)(next_random(random) % N_OPS),
                               .other = (uint32_t)(next_random(random) % n),
                               .dim = (uint32_t)(next_random(random) % DIMS)};
        if (l.op == SUM && (values[n - 1].whole >> l.dim & 1) == 0) continue;
        if (l.op == DIV) continue; /* x / (x x) is an inverse that the search does not look for */
        if ((l.op == ADD || l.op == SUB) && ((added | 1u << (n - 1)) >> l.other & 1) != 0) continue;
        return l;
    }
}

static struct value apply_line(const struct line *l, const struct value *values, uint32_t n) {
    return apply(l->op, &values[n - 1], l->op < SQUARE ? &values[l->other] : NULL,
                 l->op == SUM ? l->dim : NONE);
}

static void write_line(const struct line *l, uint32_t n, char text[60]) {
    static const char *const words[] = {"+", "-", "*", "/", "square", "sigmoid", "silu"};
    if (l->op < SQUARE)
        sprintf(text, "v%u %s v%u", n - 1, words[l->op], l->other);
    else if (l->op == SUM)
        sprintf(text, "sum(%c: v%u)", 'a' + (int)l->dim, n - 1);
    else
        sprintf(text, "%s(v%u)", words[l->op], n - 1);
}

/* What may be used because the program has the line (docs/superoptimizer.md). */
static void allow_ops(struct program *p, const struct line *l, uint32_t n) {
    p->ops |= 1u << l->op;
    if (l->op == SUM) p->ops |= 1u << MUL;
    if (l->op == SUM) p->summed |= 1u << l->dim;
    if (l->op == MUL && l->other == n - 1) p->ops |= 1u << SQUARE;
    if (l->op == SIGMOID) p->ops |= 1u << SILU;
}

static struct value run_program(const struct program *p, const struct value input[INPUTS]) {
    struct value values[VALUES];
    uint32_t n = p->n_inputs;
    memcpy(values, input, n * sizeof *input);
    for (uint32_t i = 0; i < p->n_lines; i++, n++) values[n] = apply_line(&p->line[i], values, n);
    return values[n - 1];
}

/* Whether the target has what its text has: each input counts, and it differs along each dim. Where
 * all of an input cancels out there is nothing to search. */
static bool is_sound(const struct program *p) {
    uint32_t along = 0;
    for (uint32_t d = 0; d < DIMS; d++)
        for (uint32_t i = 0; i < CELLS; i++) {
            const uint32_t first = i - index_along(i, d) * stride_of(d);
            if (p->target.cell[i] != p->target.cell[first]) along |= 1u << d;
        }
    return along == p->target.dims && p->needed == (1u << p->n_inputs) - 1;
}

static void find_needed(struct program *p) {
    for (uint32_t i = 0; i < p->n_inputs; i++) {
        struct value input[INPUTS];
        memcpy(input, p->input, sizeof input);
        input[i] = random_value(p->dims[i], 12345 + i);
        const struct value other = run_program(p, input);
        if (!same(&other, &p->target)) p->needed |= 1u << i;
    }
}

static void make_program(struct program *p, uint64_t seed) {
    static const uint32_t sizes[] = {32, 128, 512};
    uint64_t random = seed;
    struct value values[VALUES];
    char head[300], body[600], dims[12], line[60], name[12], *at = body;
    *p = (struct program){0};
    for (uint32_t d = 0; d < DIMS; d++) p->size[d] = sizes[next_random(&random) % 3];
    make_inputs(p, &random, head);
    uint32_t n = p->n_inputs, added = 0;
    memcpy(values, p->input, sizeof p->input);
    for (uint32_t i = 0; i < n; i++) at += sprintf(at, "  v%u = x%u\n", i, i);
    p->n_lines = 2 + (uint32_t)(next_random(&random) % 2);
    for (uint32_t i = 0; i < p->n_lines; i++, n++) {
        p->line[i] = random_line(values, n, added, &random);
        if (p->line[i].op == ADD || p->line[i].op == SUB)
            added |= 1u << (n - 1) | 1u << p->line[i].other;
        values[n] = apply_line(&p->line[i], values, n);
        allow_ops(p, &p->line[i], n);
        write_line(&p->line[i], n, line);
        snprintf(name, sizeof name, i + 1 == p->n_lines ? "y" : "v%u", n);
        at += sprintf(at, "  %s = %s\n", name, line);
    }
    p->target = values[n - 1];
    find_needed(p);
    snprintf(p->text, sizeof p->text, "%s) -> y%s\n%s", head, write_dims(p->target.dims, dims),
             body);
}

/* ---- a task of one skeleton, and what things cost in it ---- */

struct task {
    const struct program *p;
    uint32_t grid, loop, streamed, tile[DIMS];
    double rounds, trips;
};

static uint64_t units(const struct task *t, double cycles) {
    return (uint64_t)(cycles * 256 * t->rounds + 0.5);
}

static double elements(const struct task *t, uint32_t dims, enum stage stage) {
    double n = 1;
    for (uint32_t d = 0; d < DIMS; d++) {
        const bool in_tiles = (t->grid >> d & 1) != 0 || (stage == LOOP && d == t->loop);
        if ((dims >> d & 1) != 0) n *= in_tiles ? t->tile[d] : t->p->size[d];
    }
    return n * (stage == LOOP ? t->trips : 1);
}

/* An iteration streams no more pages of 4096 elements than the ring has. */
static void fit_ring(struct task *t) {
    t->trips = 1;
    for (double pages = RING_PAGES + 1; t->loop != NONE && pages > RING_PAGES;) {
        pages = 0;
        for (uint32_t i = 0; i < t->p->n_inputs; i++)
            if ((t->streamed >> i & 1) != 0) pages += ceil(elements(t, t->p->dims[i], LOOP) / 4096);
        if (t->tile[t->loop] == 1) return;
        if (pages > RING_PAGES) t->tile[t->loop] /= 2;
    }
}

static void set_shape(struct task *t) {
    double tasks = 1;
    for (uint32_t d = 0; d < DIMS; d++) {
        bool weight = false;
        for (uint32_t i = 0; i < t->p->n_inputs; i++)
            weight |= t->p->kind[i] == WEIGHT && (t->p->dims[i] >> d & 1) != 0;
        uint32_t tile = 1;
        if ((t->grid >> d & 1) != 0)
            tile = weight ? 16 : 1;
        else if (d == t->loop)
            tile = weight ? 256 : 64;
        t->tile[d] = tile < t->p->size[d] ? tile : t->p->size[d];
        if ((t->grid >> d & 1) != 0) tasks *= ceil((double)t->p->size[d] / t->tile[d]);
    }
    fit_ring(t);
    t->rounds = ceil(tasks / 132);
    t->trips = t->loop == NONE ? 1 : ceil((double)t->p->size[t->loop] / t->tile[t->loop]);
}

static enum stage stage_of_input(const struct task *t, uint32_t i) {
    if ((t->streamed >> i & 1) != 0) return LOOP;
    return t->p->kind[i] == ACT ? BEFORE : EARLY;
}

static uint64_t cost_of_input(const struct task *t, uint32_t i) {
    const enum stage stage = stage_of_input(t, i);
    return units(t, 2 * elements(t, t->p->dims[i], stage) / (stage == BEFORE ? 32 : 15));
}

static uint64_t cost_of_op(const struct task *t, enum op op, uint32_t dims, bool product,
                           bool reduces, enum stage stage) {
    const double n = elements(t, dims, stage);
    double cycles = n / 256 * 5 * op_cost[op];
    if (product) cycles = n / 4096 * 390 / 8;
    return units(t, cycles + (reduces ? 60 : 0));
}

static uint64_t cost_of_result(const struct task *t, uint32_t dims, enum stage stage) {
    return units(t, elements(t, dims, stage) / 2 / 256 * 30);
}

/* ---- all graphs ---- */

struct state {
    const struct task *t;
    struct value value[VALUES];
    enum stage stage[VALUES];
    uint32_t n, most, paid; /* values, at most; bits: inputs that were brought in */
    uint64_t cost, limit, least;
    uint64_t last; /* key of the operator added last */
    uint64_t n_tried;
};

static void look_for_target(struct state *s, uint32_t i) {
    const struct task *t = s->t;
    if (!same(&s->value[i], &t->p->target) || (t->grid & ~s->value[i].dims) != 0) return;
    if (s->stage[i] == LOOP && (s->value[i].dims >> t->loop & 1) == 0) return;
    const uint64_t pay = i < t->p->n_inputs && (s->paid >> i & 1) == 0 ? cost_of_input(t, i) : 0;
    const uint64_t all = s->cost + pay + cost_of_result(t, s->value[i].dims, s->stage[i]);
    if (all < s->least) s->least = all;
}

static enum stage stage_together(enum stage a, enum stage b) {
    if (a == b) return a;
    const enum stage low = a < b ? a : b, high = a < b ? b : a;
    return low == LOOP ? NO_STAGE : high;
}

struct step {
    enum op op;
    uint32_t a, b, dim; /* b, dim: NONE */
};

static void extend(struct state *s);

/* What must still be paid: every input on which the target depends, and the result. */
static uint64_t to_be_paid(const struct state *s) {
    uint64_t cost = cost_of_result(s->t, s->t->p->target.dims, AFTER);
    for (uint32_t i = 0; i < s->t->p->n_inputs; i++)
        if ((s->t->p->needed & ~s->paid) >> i & 1) cost += cost_of_input(s->t, i);
    return cost;
}

static void go_on(struct state *s, struct step x, enum stage out) {
    const struct value *b = x.b == NONE ? NULL : &s->value[x.b];
    const struct value v = apply(x.op == SUM && b != NULL ? MUL : x.op, &s->value[x.a], b, x.dim);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->stage[i] == out && same(&v, &s->value[i])) return; /* it is there */
    s->value[s->n] = v;
    s->stage[s->n++] = out;
    look_for_target(s, s->n - 1);
    extend(s);
    s->n--;
}

static void try_step(struct state *s, struct step x) {
    const uint64_t key = (uint64_t)x.op << 24 | x.a << 16 | x.b << 8 | x.dim;
    const bool uses_last = x.a + 1 == s->n || (x.b != NONE && x.b + 1 == s->n);
    const enum stage in =
        x.b == NONE ? s->stage[x.a] : stage_together(s->stage[x.a], s->stage[x.b]);
    enum stage out = in;
    if (in == NO_STAGE || s->n == s->most || (key <= s->last && !uses_last)) return;
    if (x.dim != NONE && (s->t->grid >> x.dim & 1) != 0) return;
    if (x.dim != NONE && in == LOOP && x.dim == s->t->loop) out = AFTER;
    const uint32_t dims = s->value[x.a].dims | (x.b != NONE ? s->value[x.b].dims : 0);
    const uint32_t operands = 1u << x.a | (x.b != NONE ? 1u << x.b : 0);
    const uint32_t paid = s->paid;
    const uint64_t cost = s->cost, last = s->last;
    for (uint32_t i = 0; i < s->t->p->n_inputs; i++)
        if ((operands & ~s->paid) >> i & 1) s->cost += cost_of_input(s->t, i);
    s->paid |= operands & ((1u << s->t->p->n_inputs) - 1);
    s->cost += cost_of_op(s->t, x.op, dims, x.op == SUM && x.b != NONE, x.dim != NONE, in);
    s->last = key;
    s->n_tried++;
    if (s->cost + to_be_paid(s) <= s->limit) go_on(s, x, out);
    s->paid = paid;
    s->cost = cost;
    s->last = last;
}

static void extend(struct state *s) {
    const uint32_t n = s->n, ops = s->t->p->ops;
    for (uint32_t a = 0; a < n; a++) {
        for (enum op op = SQUARE; op < SUM; op++)
            if ((ops >> op & 1) != 0) try_step(s, (struct step){op, a, NONE, NONE});
        for (uint32_t d = 0; d < DIMS; d++)
            if ((s->t->p->summed & s->value[a].whole) >> d & 1)
                try_step(s, (struct step){SUM, a, NONE, d});
        for (uint32_t b = 0; b < n; b++) {
            for (enum op op = ADD; op < SQUARE; op++)
                if ((ops >> op & 1) != 0 && (a <= b || op == SUB || op == DIV))
                    try_step(s, (struct step){op, a, b, NONE});
            for (uint32_t d = 0; d < DIMS && a <= b; d++)
                if ((s->t->p->summed & (s->value[a].whole | s->value[b].whole)) >> d & 1)
                    try_step(s, (struct step){SUM, a, b, d});
        }
    }
}

/* The least cost of a graph for the skeleton; UINT64_MAX: none costs at most `limit`. */
static uint64_t least_of_skeleton(struct task *t, uint64_t limit, uint64_t *n_tried) {
    static struct state s;
    set_shape(t);
    s = (struct state){.t = t, .n = t->p->n_inputs, .limit = limit, .least = UINT64_MAX};
    s.cost = units(t, 700 + (t->loop == NONE ? 0 : 20 * t->trips));
    for (uint32_t i = 0; i < s.n; i++) {
        s.value[i] = t->p->input[i];
        s.stage[i] = stage_of_input(t, i);
    }
    for (uint32_t i = 0; i < t->p->n_inputs; i++) look_for_target(&s, i);
    s.most = s.n + t->p->most_ops;
    if (s.cost + to_be_paid(&s) <= limit) extend(&s);
    *n_tried += s.n_tried;
    return s.least;
}

static uint64_t least_cost(const struct program *p, uint64_t limit, uint64_t *n_tried) {
    uint64_t least = UINT64_MAX;
    for (uint32_t grid = 0; grid < 1u << DIMS; grid++) {
        if ((grid & ~p->target.dims) != 0) continue;
        for (uint32_t loop = 0; loop <= DIMS; loop++) {
            struct task t = {.p = p, .grid = grid, .loop = loop == DIMS ? NONE : loop};
            if (loop < DIMS && (grid >> loop & 1) != 0) continue;
            for (uint32_t streamed = 0; streamed < 1u << p->n_inputs; streamed++) {
                bool fits = (streamed != 0) == (loop < DIMS);
                for (uint32_t i = 0; i < p->n_inputs && fits && loop < DIMS; i++) {
                    const bool has = (p->dims[i] >> loop & 1) != 0, is = (streamed >> i & 1) != 0;
                    fits = p->kind[i] == WEIGHT ? has == is : !is || (has && p->kind[i] == ACT);
                }
                t.streamed = streamed;
                if (!fits) continue;
                const uint64_t cost = least_of_skeleton(&t, limit, n_tried);
                if (cost < least) least = cost;
            }
        }
    }
    return least;
}

/* ---- the comparison ---- */

/* The search's least cost; *n_ops: at least the operators of its graph. */
static uint64_t cost_by_search(const struct program *p, uint32_t *n_ops) {
    struct search_params params = search_params_default();
    struct search_result r;
    struct diag d = {0};
    static struct expr x;
    params.n_loops = 1;
    params.max_steps = 1000000;
    params.limits = (struct block_limits){UINT32_MAX, UINT32_MAX, UINT32_MAX};
    params.sizes.n = DIMS;
    for (uint32_t i = 0; i < DIMS; i++) {
        params.sizes.at[i].name[0] = (char)('a' + (int)i);
        params.sizes.at[i].size = p->size[i];
    }
    int rc = op_text_parse(&d, "program", p->text, strlen(p->text), &x);
    if (rc == QN_OK) rc = search(&d, &x, &params, &r);
    if (rc != QN_OK) print_error("%s\n%s", d.message, p->text);
    assert_int_equal(rc, QN_OK);
    if (!r.complete)
        print_error("a budget ran out: %llu steps\n%s", (unsigned long long)r.n_steps, p->text);
    assert_true(r.complete);
    const uint64_t cost =
        r.graphs.n > 0 ? (uint64_t)(r.graphs.items[0].cost * 256 + 0.5) : UINT64_MAX;
    *n_ops = r.graphs.n > 0
                 ? r.graphs.items[0].blocks.task[0].n_nodes - r.graphs.items[0].blocks.task[0].n_in
                 : 0;
    search_result_fini(&r);
    return cost;
}

static void least_costs_agree(void **state) {
    (void)state;
    uint64_t n_tried = 0;
    uint32_t n_differ = 0;
    for (uint64_t i = 0, seed = 1000; i < PROGRAMS; i++) {
        struct program p;
        do make_program(&p, seed++);
        while (!is_sound(&p));
        uint32_t n_ops;
        const uint64_t found = cost_by_search(&p, &n_ops);
        p.most_ops = n_ops > p.n_lines + MORE_OPS ? n_ops : p.n_lines + MORE_OPS;
        const uint64_t least = least_cost(&p, found, &n_tried);
        if (found == least) continue;
        print_error("program %llu: the search finds %.3f, the enumerator %.3f\n%s",
                    (unsigned long long)i, (double)found / 256, (double)least / 256, p.text);
        n_differ++;
    }
    print_message("%d programs, %llu steps of the enumerator\n", PROGRAMS,
                  (unsigned long long)n_tried);
    assert_int_equal(n_differ, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(least_costs_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* stabilise.c - one exponential after the other: degrees, then the maximum, then the parts. */
#include "search/stabilise.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

enum { DEGREE = 2 }; /* of the exponential, so that its root has one, too */

struct stabiliser {
    struct diag *d;
    struct block_graph *g;
    uint32_t task;                            /* of the exponential */
    uint32_t exp;                             /* its node */
    int32_t degree[BLOCK_TASKS][BLOCK_NODES]; /* of a value: scaled by c^(degree / DEGREE) */
};

/* ---- editing ---- */

/* Inserts a node before node `at` and adjusts references. */
static int insert(struct stabiliser *s, struct block *b, uint8_t at, struct block_node n) {
    if (b->n_nodes == BLOCK_NODES)
        return fail(s->d, QN_ELIMIT, "%s: more than %d nodes in a task", b->name, BLOCK_NODES);
    memmove(&b->node[at + 1], &b->node[at], (size_t)(b->n_nodes - at) * sizeof *b->node);
    b->node[at] = n;
    b->n_nodes++;
    for (uint32_t i = at + 1u; i < b->n_nodes; i++) {
        uint8_t *const operand[] = {&b->node[i].a, &b->node[i].b, &b->node[i].c};
        for (size_t k = 0; k < COUNT_OF(operand); k++)
            if (*operand[k] != BLOCK_NONE && *operand[k] >= at) ++*operand[k];
    }
    for (uint32_t i = 0; i < b->n_out; i++)
        if (b->out[i].node >= at) b->out[i].node++;
    return QN_OK;
}

/* The index of the first node of the stage or a later stage. */
static uint8_t start_of(const struct block *b, uint32_t stage) {
    uint8_t i = b->n_in;
    while (i < b->n_nodes && b->node[i].stage < stage) i++;
    return i;
}

static bool is_read(const struct block *b, uint32_t node) {
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        uint8_t operand[BLOCK_MAX_ARITY];
        const uint32_t n = block_operands(&b->node[i], operand);
        for (uint32_t k = 0; k < n; k++)
            if (operand[k] == node) return true;
    }
    for (uint32_t i = 0; i < b->n_out; i++)
        if (b->out[i].node == node) return true;
    return false;
}

static void drop(struct block *b, uint32_t at) {
    memmove(&b->node[at], &b->node[at + 1], (size_t)(b->n_nodes - at - 1) * sizeof *b->node);
    b->n_nodes--;
    for (uint32_t i = at; i < b->n_nodes; i++) {
        uint8_t *const operand[] = {&b->node[i].a, &b->node[i].b, &b->node[i].c};
        for (size_t k = 0; k < COUNT_OF(operand); k++)
            if (*operand[k] != BLOCK_NONE && *operand[k] > at) --*operand[k];
    }
    for (uint32_t i = 0; i < b->n_out; i++)
        if (b->out[i].node > at) b->out[i].node--;
}

static void drop_unread(struct block *b) {
    for (uint32_t i = b->n_nodes; i-- > b->n_in;)
        if (!is_read(b, i)) drop(b, i);
}

static struct block_node new_node(uint32_t op, uint32_t stage, uint8_t a, uint8_t b,
                                  block_dims dims) {
    return (struct block_node){.op = (uint8_t)op,
                               .stage = (uint8_t)stage,
                               .dtype = DTYPE_F32,
                               .a = a,
                               .b = b,
                               .c = BLOCK_NONE,
                               .dims = dims};
}

/* ---- degrees ---- */

/* The output of an earlier task that an input of task t is. */
static bool find_maker(const struct block_graph *g, uint32_t t, uint32_t input, uint32_t *task,
                       uint32_t *out) {
    for (*task = t; (*task)-- > 0;)
        for (*out = 0; *out < g->task[*task].n_out; ++*out)
            if (strcmp(g->task[*task].out[*out].name, g->task[t].in[input].name) == 0) return true;
    return false;
}

/* The degree of an operator's result; false: scaling the exponential does not just scale it. */
static bool degree_of(uint32_t op, int32_t a, int32_t b, int32_t *degree) {
    switch (op) {
    case BLOCK_OP_MUL:
    case BLOCK_OP_MM: *degree = a + b; return true;
    case BLOCK_OP_DIV: *degree = a - b; return true;
    case BLOCK_OP_SQUARE: *degree = 2 * a; return true;
    case BLOCK_OP_SQRT: *degree = a / 2; return a % 2 == 0;
    case BLOCK_OP_RSQRT: *degree = -a / 2; return a % 2 == 0;
    case BLOCK_OP_ADD:
    case BLOCK_OP_SUB: *degree = a; return a == b;
    case BLOCK_OP_NEG:
    case BLOCK_OP_SUM:
    case BLOCK_OP_MEAN:
    case BLOCK_OP_ACC_SUM:
    case BLOCK_OP_SWAP:
    case BLOCK_OP_CAST16: *degree = a; return true;
    case BLOCK_OP_ACC_ONLINE: *degree = b; return a == 0;
    default: *degree = 0; return a == 0 && b == 0;
    }
}

static bool find_degrees_of_task(struct stabiliser *s, uint32_t t) {
    const struct block *b = &s->g->task[t];
    int32_t *degree = s->degree[t];
    bool scales = true;
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        const struct block_node *n = &b->node[i];
        uint32_t task, out;
        degree[i] = 0;
        if (n->op == BLOCK_OP_INPUT) {
            if (find_maker(s->g, t, i, &task, &out))
                degree[i] = s->degree[task][s->g->task[task].out[out].node];
            continue;
        }
        if (t == s->task && i == s->exp) {
            degree[i] = DEGREE;
        } else if (!degree_of(n->op, n->a == BLOCK_NONE ? 0 : degree[n->a],
                              n->b == BLOCK_NONE ? 0 : degree[n->b], &degree[i])) {
            degree[i] = 0;
            scales = false;
        }
    }
    return scales;
}

/* Whether scaling the exponential scales values and leaves the last task's results as they are. */
static bool find_degrees(struct stabiliser *s) {
    const struct block *last = &s->g->task[s->g->n_tasks - 1];
    bool scales = true;
    for (uint32_t t = 0; t < s->g->n_tasks; t++) scales = find_degrees_of_task(s, t) && scales;
    for (uint32_t i = 0; i < last->n_out; i++)
        scales = scales && s->degree[s->g->n_tasks - 1][last->out[i].node] == 0;
    return scales;
}

/* Dims of a task over which scaled values are summed. */
static block_dims summed_dims(const struct stabiliser *s, uint32_t t) {
    const struct block *b = &s->g->task[t];
    block_dims dims = 0;
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        const struct block_node *n = &b->node[i];
        const bool scaled = (n->a != BLOCK_NONE && s->degree[t][n->a] != 0) ||
                            (n->b != BLOCK_NONE && s->degree[t][n->b] != 0);
        if (scaled) dims |= n->red;
    }
    return dims;
}

/* ---- the exponential's own task ---- */

/* In a stage outside loops: exp(s) -> exp(s - max(s)); *max: the node of max(s). */
static int subtract_maximum(struct stabiliser *s, block_dims over, uint8_t *max) {
    struct block *b = &s->g->task[s->task];
    const struct block_node *e = &b->node[s->exp];
    const uint8_t of = e->a, at = (uint8_t)s->exp;
    const uint32_t stage = e->stage;
    const block_dims dims = e->dims;
    struct block_node m =
        new_node(BLOCK_OP_MAX_OVER, stage, of, BLOCK_NONE, dims & (block_dims)~over);
    m.red = over;
    TRY(insert(s, b, at, m));
    TRY(insert(s, b, at + 1, new_node(BLOCK_OP_SUB, stage, of, at, dims)));
    b->node[at + 2].a = at + 1;
    *max = at;
    return QN_OK;
}

/* *factor: what an accumulator multiplies the exponential by; BLOCK_NONE: nothing. */
static bool split_product(const struct stabiliser *s, const struct block *b, uint8_t summed,
                          uint8_t *factor) {
    const struct block_node *n = &b->node[summed];
    *factor = BLOCK_NONE;
    if (summed == s->exp) return true;
    if (n->op != BLOCK_OP_MUL && n->op != BLOCK_OP_MM) return false;
    if ((n->a == s->exp) == (n->b == s->exp)) return false;
    *factor = n->a == s->exp ? n->b : n->a;
    return s->degree[s->task][*factor] == 0;
}

/* Whether every scaled value that the loop sums has the form exp(s) * factor. */
static bool loop_is_online(const struct stabiliser *s, block_dims loop) {
    const struct block *b = &s->g->task[s->task];
    const int32_t *degree = s->degree[s->task];
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        const struct block_node *n = &b->node[i];
        uint8_t factor;
        if (n->a == BLOCK_NONE || degree[n->a] == 0 || n->red == 0) continue;
        if (n->op == BLOCK_OP_MM && n->stage == b->node[s->exp].stage && n->red == loop) continue;
        if (n->op != BLOCK_OP_ACC_SUM || n->red != loop || !split_product(s, b, n->a, &factor))
            return false;
    }
    return true;
}

/* The number 1, made early. */
static int one(struct stabiliser *s, struct block *b, uint8_t *node) {
    struct block_node n = new_node(BLOCK_OP_NUMBER, STAGE_EARLY, BLOCK_NONE, BLOCK_NONE, 0);
    n.numerator = n.denominator = 1;
    *node = b->n_in;
    return insert(s, b, b->n_in, n);
}

/* acc_sum(exp(s) * v) -> acc_online(s, v), everywhere in the task. */
static int make_online(struct stabiliser *s) {
    struct block *b = &s->g->task[s->task];
    uint8_t factor, unit;
    TRY(one(s, b, &unit));
    s->exp++;
    if (!find_degrees(s)) return fail(s->d, QN_EINTERNAL, "%s: degrees changed", b->name);
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        struct block_node *n = &b->node[i];
        if (n->op != BLOCK_OP_ACC_SUM || s->degree[s->task][n->a] == 0) continue;
        split_product(s, b, n->a, &factor);
        n->op = BLOCK_OP_ACC_ONLINE;
        n->a = b->node[s->exp].a;
        n->b = factor == BLOCK_NONE ? unit : factor;
        n->order = ORDER_SHARES;
    }
    return QN_OK;
}

/* ---- handed-over values ---- */

static block_dims dims_by_name(const struct block *from, block_dims dims, const struct block *to) {
    block_dims out = 0;
    for (uint32_t i = 0; i < from->n_dims; i++)
        for (uint32_t k = 0; k < to->n_dims && (dims >> i & 1) != 0; k++)
            if (strcmp(from->dim[i].name, to->dim[k].name) == 0) out |= (block_dims)(1u << k);
    return out;
}

/* The dims of the maximum over which task t sums scaled values. */
static block_dims merged_dims(const struct stabiliser *s, uint32_t t, block_dims of_max) {
    return summed_dims(s, t) & dims_by_name(&s->g->task[s->task], of_max, &s->g->task[t]);
}

/* Each scaled input must have the exponential's own degree and lie in a stage outside loops. */
static bool can_weigh(const struct stabiliser *s, uint32_t t) {
    const struct block *b = &s->g->task[t];
    for (uint32_t i = 0; i < b->n_in; i++)
        if (s->degree[t][i] != 0 &&
            (s->degree[t][i] != DEGREE || block_stage_loops(b->node[i].stage)))
            return false;
    return b->n_in < BLOCK_IN;
}

/* Reads the maximum as the task's last input. */
static int add_maximum_input(struct stabiliser *s, struct block *b, const char name[BLOCK_NAME],
                             block_dims dims) {
    struct block_node n = new_node(BLOCK_OP_INPUT, STAGE_BEFORE, BLOCK_NONE, BLOCK_NONE, dims);
    n.space = dims == 0 ? SPACE_REG : SPACE_SCRATCH;
    TRY(insert(s, b, b->n_in, n));
    memcpy(b->in[b->n_in].name, name, BLOCK_NAME);
    b->in[b->n_in].kind = EXPR_ACT;
    b->n_in++;
    return QN_OK;
}

/* Multiplies every scaled input of task t by exp(its maximum - the maximum of all parts). */
static int weigh(struct stabiliser *s, uint32_t t, const char name[BLOCK_NAME], block_dims of_max) {
    struct block *b = &s->g->task[t];
    const block_dims dims = dims_by_name(&s->g->task[s->task], of_max, b);
    const block_dims over = merged_dims(s, t, of_max);
    const uint8_t max = b->n_in;
    uint8_t at;
    TRY(add_maximum_input(s, b, name, dims));
    at = start_of(b, STAGE_BEFORE);
    struct block_node all =
        new_node(BLOCK_OP_MAX_OVER, STAGE_BEFORE, max, BLOCK_NONE, dims & (block_dims)~over);
    all.red = over;
    TRY(insert(s, b, at, all));
    TRY(insert(s, b, at + 1, new_node(BLOCK_OP_SUB, STAGE_BEFORE, max, at, dims)));
    TRY(insert(s, b, at + 2, new_node(BLOCK_OP_EXP, STAGE_BEFORE, at + 1, BLOCK_NONE, dims)));
    const uint8_t weight = at + 2;
    for (uint8_t i = 0, next = at + 3; i < max; i++) {
        if (s->degree[t][i] == 0) continue;
        const struct block_node product =
            new_node(BLOCK_OP_MUL, STAGE_BEFORE, i, weight, b->node[i].dims | dims);
        TRY(insert(s, b, next, product));
        for (uint32_t k = next + 1u; k < b->n_nodes; k++) {
            uint8_t *const operand[] = {&b->node[k].a, &b->node[k].b, &b->node[k].c};
            for (size_t j = 0; j < COUNT_OF(operand); j++)
                if (*operand[j] == i) *operand[j] = next;
        }
        next++;
    }
    return QN_OK;
}

/* Writes the maximum beside the task's other results. */
static int hand_over_maximum(struct stabiliser *s, uint8_t max, char name[BLOCK_NAME]) {
    struct block *b = &s->g->task[s->task];
    if (b->n_out == BLOCK_OUT)
        return fail(s->d, QN_ELIMIT, "%s: more than %d results of a task", b->name, BLOCK_OUT);
    snprintf(name, BLOCK_NAME, "max_%u_%u", s->task, b->n_out);
    struct block_out *o = &b->out[b->n_out++];
    *o = (struct block_out){.node = max, .dtype = DTYPE_F32};
    memcpy(o->name, name, BLOCK_NAME);
    return QN_OK;
}

/* ---- one exponential ---- */

/* Adds the accumulator of the largest s beside the loop's sums. */
static int add_loop_maximum(struct stabiliser *s, block_dims loop, uint8_t *max) {
    struct block *b = &s->g->task[s->task];
    const struct block_node *e = &b->node[s->exp];
    uint32_t stage = STAGE_AFTER;
    for (uint32_t i = 0; i < b->n_nodes; i++)
        if (b->node[i].op == BLOCK_OP_ACC_SUM && s->degree[s->task][b->node[i].a] != 0)
            stage = MIN(stage, b->node[i].stage);
    struct block_node m =
        new_node(BLOCK_OP_ACC_MAX, stage, e->a, BLOCK_NONE, e->dims & (block_dims)~loop);
    m.red = loop;
    *max = start_of(b, stage);
    return insert(s, b, *max, m);
}

/* Whether a later task merges scaled values of parts with different maxima. */
static bool is_merged(const struct stabiliser *s, block_dims of_max) {
    for (uint32_t t = s->task + 1; t < s->g->n_tasks; t++)
        if (merged_dims(s, t, of_max) != 0) return true;
    return false;
}

static bool can_stabilise(const struct stabiliser *s, block_dims over, block_dims loop) {
    const block_dims of_max = s->g->task[s->task].node[s->exp].dims & (block_dims)~over;
    for (uint32_t t = s->task + 1; t < s->g->n_tasks; t++)
        if (merged_dims(s, t, of_max) != 0 && !can_weigh(s, t)) return false;
    if (over == 0) return false; /* summed by a later task only */
    return loop == 0 || (over == loop && loop_is_online(s, loop));
}

/* The exponential's sums are over `over`. loop: the dim of its loop, or empty. */
static int stabilise_exponential(struct stabiliser *s, block_dims over, block_dims loop) {
    struct block *b = &s->g->task[s->task];
    const block_dims of_max = b->node[s->exp].dims & (block_dims)~over;
    const bool merged = is_merged(s, of_max);
    uint8_t max = BLOCK_NONE;
    char name[BLOCK_NAME] = "";
    if (loop == 0) {
        TRY(subtract_maximum(s, over, &max));
    } else {
        if (merged) TRY(add_loop_maximum(s, loop, &max));
        if (merged && max <= s->exp) s->exp++;
    }
    if (merged) TRY(hand_over_maximum(s, max, name));
    if (loop == 0) s->exp += 2;
    if (!find_degrees(s)) return fail(s->d, QN_EINTERNAL, "%s: degrees changed", b->name);
    for (uint32_t t = s->task + 1; t < s->g->n_tasks; t++)
        if (merged_dims(s, t, of_max) != 0) TRY(weigh(s, t, name, of_max));
    if (loop != 0) {
        for (uint32_t t = 0; t < s->g->n_tasks; t++) find_degrees_of_task(s, t);
        TRY(make_online(s));
    }
    drop_unread(b);
    return QN_OK;
}

/* Whether the exponential is exp(x - max(..)). */
static bool has_maximum(const struct block *b, uint32_t exp) {
    const struct block_node *n = &b->node[b->node[exp].a];
    if (n->op != BLOCK_OP_SUB) return false;
    const struct block_node *m = &b->node[n->b];
    return m->op == BLOCK_OP_MAX_OVER || m->op == BLOCK_OP_ACC_MAX || m->op == BLOCK_OP_INPUT;
}

/* The next exponential that is summed without a maximum. */
static bool find_exponential(struct stabiliser *s, block_dims *over, bool *scales) {
    for (s->task = 0; s->task < s->g->n_tasks; s->task++) {
        const struct block *b = &s->g->task[s->task];
        for (s->exp = 0; s->exp < b->n_nodes; s->exp++) {
            if (b->node[s->exp].op != BLOCK_OP_EXP || has_maximum(b, s->exp)) continue;
            *scales = find_degrees(s);
            *over = summed_dims(s, s->task) & b->node[s->exp].dims;
            if (*over != 0 || is_merged(s, b->node[s->exp].dims)) return true;
        }
    }
    return false;
}

static int run(struct stabiliser *s, bool *stable) {
    block_dims over;
    bool scales;
    *stable = true;
    while (*stable && find_exponential(s, &over, &scales)) {
        const struct block *b = &s->g->task[s->task];
        const block_dims loop = block_loop_dims(b, b->node[s->exp].stage);
        *stable = scales && can_stabilise(s, over, loop);
        if (*stable) TRY(stabilise_exponential(s, over, loop));
    }
    return QN_OK;
}

int stabilise(struct diag *d, struct block_graph *g, bool *stable) {
    struct stabiliser s = {.d = d, .g = g};
    const struct block_graph before = *g;
    const int rc = run(&s, stable);
    if (rc != QN_OK || !*stable) *g = before;
    return rc;
}

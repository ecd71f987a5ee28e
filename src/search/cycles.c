/* cycles.c - the cost model: one table, then one function for each part of a task. */
#include "search/cycles.h"

#include "base/checked.h"

static const struct cycles_table table = {
    .workers = 132,       /* an H100's */
    .stream_bytes = 15,   /* 3.35 TB/s over 132 multiprocessors of 1.7 GHz */
    .stage_bytes = 32,    /* of L2, an H100's multiprocessor */
    .trip = 700,          /* measured: an event's counter to the word that it guards */
    .page_products = 390, /* measured: a page of 16 x 256 weights */
    .warps = 8,
    .barrier = 60,
    .instruction = 5,  /* measured: epilogues */
    .result_word = 30, /* measured: a word that goes through shared memory */
    .hand_over = 2200, /* 1.3 us */
    .iteration = 20,
    .ring_pages = 16,
};

const struct cycles_table *cycles_table(void) {
    return &table;
}

static uint64_t cycles(const struct task_shape *t, double n) {
    return (uint64_t)(n * CYCLES_UNIT * (double)t->rounds + 0.5);
}

/* ---- shape ---- */

enum { WEIGHT_ROWS = 16, WEIGHT_COLUMNS = 256, LOOP_TILE = 64 };

static uint64_t size_of(const struct problem *p, uint32_t dim) {
    return p->dim[dim].size != 0 ? p->dim[dim].size : 1;
}

static bool any_has(const struct sources *sources, uint32_t kind, uint32_t dim) {
    for (uint32_t i = 0; i < sources->n; i++)
        if (sources->at[i].kind == kind && (sources->at[i].dims >> dim & 1) != 0) return true;
    return false;
}

/* A page of weights has 16 rows and 256 columns. A task has one index of each other grid dim, of
 * heads and of pieces. */
static uint32_t tile_of(const struct problem *p, const struct sources *sources,
                        const struct skeleton *k, uint32_t dim) {
    const bool weights = any_has(sources, EXPR_WEIGHT, dim) && !any_has(sources, EXPR_STATE, dim) &&
                         !p->dim[dim].piece;
    uint64_t tile = 1;
    if ((k->grid >> dim & 1) != 0)
        tile = weights ? WEIGHT_ROWS : 1;
    else if (dim == k->loop || dim == k->loop2)
        tile = weights ? WEIGHT_COLUMNS : LOOP_TILE;
    return (uint32_t)MIN(tile, size_of(p, dim));
}

static uint64_t trips_of(const struct task_shape *t, uint8_t loop) {
    return loop == BLOCK_NONE ? 1 : CEIL_DIV(size_of(t->p, loop), t->tile[loop]);
}

uint64_t cycles_elements(const struct task_shape *t, block_dims dims, uint32_t stage) {
    const struct skeleton *k = t->skeleton;
    uint64_t elements = 1;
    for (uint32_t i = 0; i < t->p->n_dims; i++) {
        if ((dims >> i & 1) == 0) continue;
        const bool advances =
            (stage == STAGE_LOOP && i == k->loop) || (stage == STAGE_LOOP2 && i == k->loop2);
        const bool in_tiles = (k->grid >> i & 1) != 0 || advances;
        elements *= in_tiles ? t->tile[i] : size_of(t->p, i);
        elements = MIN(elements, UINT64_C(1) << 40);
    }
    return elements;
}

/* Halves the loop's tile until the pages that an iteration streams fit the ring. */
static void fit_pages(const struct sources *sources, uint64_t streamed, uint8_t loop,
                      uint32_t stage, struct task_shape *t) {
    for (uint64_t pages = table.ring_pages + 1; loop != BLOCK_NONE && pages > table.ring_pages;) {
        pages = 0;
        for (uint32_t i = 0; i < sources->n; i++)
            if ((streamed >> i & 1) != 0)
                pages +=
                    CEIL_DIV(cycles_elements(t, sources->at[i].dims, stage), BLOCK_PAGE_ELEMENTS);
        if (t->tile[loop] == 1) return;
        if (pages > table.ring_pages) t->tile[loop] /= 2;
    }
}

void task_shape_make(const struct problem *p, const struct sources *sources,
                     const struct skeleton *k, struct task_shape *out) {
    *out = (struct task_shape){.p = p, .skeleton = k, .tasks = 1};
    for (uint32_t i = 0; i < p->n_dims; i++) {
        out->tile[i] = tile_of(p, sources, k, i);
        if ((k->grid >> i & 1) != 0) out->tasks *= CEIL_DIV(size_of(p, i), out->tile[i]);
        out->tasks = MIN(out->tasks, UINT32_MAX);
    }
    fit_pages(sources, k->streamed, k->loop, STAGE_LOOP, out);
    fit_pages(sources, k->streamed2, k->loop2, STAGE_LOOP2, out);
    out->rounds = CEIL_DIV(out->tasks, (uint64_t)table.workers);
    out->trips = trips_of(out, k->loop);
    out->trips2 = trips_of(out, k->loop2);
}

static uint64_t times(const struct task_shape *t, uint32_t stage) {
    return stage == STAGE_LOOP ? t->trips : stage == STAGE_LOOP2 ? t->trips2 : 1;
}

/* ---- costs ---- */

uint64_t cycles_source(const struct task_shape *t, const struct source *s, uint32_t stage) {
    const double each = s->leaf == BLOCK_NONE ? 4 : 2; /* handed-over values have 32 bits */
    const double bytes =
        each * (double)cycles_elements(t, s->dims, stage) * (double)times(t, stage);
    const bool is_number = s->leaf != BLOCK_NONE && t->p->leaf[s->leaf].op != BLOCK_OP_INPUT;
    if (is_number) return 0;
    return cycles(t, bytes / (stage == STAGE_BEFORE ? table.stage_bytes : table.stream_bytes));
}

uint64_t cycles_operator(const struct task_shape *t, uint32_t op, block_dims dims, block_dims red,
                         bool product, uint32_t stage) {
    const double elements = (double)cycles_elements(t, dims, stage) * (double)times(t, stage);
    const double each = elements / BLOCK_THREADS;
    double n = each * table.instruction * block_op_table[op].cost;
    if (product) n = elements / BLOCK_PAGE_ELEMENTS * table.page_products / table.warps;
    if (red != 0) n += table.barrier;
    return cycles(t, n);
}

uint64_t cycles_result(const struct task_shape *t, block_dims dims, uint32_t stage) {
    const double words = (double)cycles_elements(t, dims, stage) * (double)times(t, stage) / 2;
    return cycles(t, words / BLOCK_THREADS * table.result_word);
}

uint64_t cycles_task(const struct task_shape *t) {
    const struct skeleton *k = t->skeleton;
    const double iterations = (k->loop != BLOCK_NONE ? (double)t->trips : 0) +
                              (k->loop2 != BLOCK_NONE ? (double)t->trips2 : 0);
    return cycles(t, table.trip + table.iteration * iterations);
}

uint64_t cycles_hand_over(void) {
    return (uint64_t)(table.hand_over * CYCLES_UNIT);
}

/* skeleton.c - the enumeration of skeletons. */
#include "search/skeleton.h"

void sources_make(const struct problem *p, const struct saturation *s, const uint16_t handed[],
                  uint32_t n, struct sources *out) {
    out->n = 0;
    for (uint32_t i = 0; i < p->n_leaves; i++) {
        const struct problem_leaf *l = &p->leaf[i];
        out->at[out->n++] = (struct source){.class = (uint16_t)i,
                                            .leaf = (uint8_t)i,
                                            .kind = l->op == BLOCK_OP_INPUT ? l->kind : EXPR_CONST,
                                            .dims = l->dims};
    }
    for (uint32_t i = 0; i < n; i++)
        out->at[out->n++] = (struct source){.class = handed[i],
                                            .leaf = BLOCK_NONE,
                                            .kind = EXPR_ACT,
                                            .dims = s->classes.items[handed[i]].dims};
}

/* ---- which sources a loop may stream ---- */

/* Sources with the dim that must be streamed, and those that may be. */
static void streams_of(const struct sources *sources, uint32_t dim, uint64_t *must, uint64_t *may) {
    *must = *may = 0;
    for (uint32_t i = 0; i < sources->n; i++) {
        const struct source *s = &sources->at[i];
        if (dim == BLOCK_NONE || (s->dims >> dim & 1) == 0) continue;
        if (s->kind == EXPR_WEIGHT || s->kind == EXPR_STATE) *must |= UINT64_C(1) << i;
        if (s->kind == EXPR_ACT || s->kind == EXPR_MASK) *may |= UINT64_C(1) << i;
    }
}

static uint64_t next_subset(uint64_t subset, uint64_t of) {
    return (subset - of) & of; /* 0 after the last */
}

/* Whether a task can have the source: each of its dims whose size is known at run time only must be
 * in the grid, or be the dim of the loop that streams it. */
static bool can_have(const struct problem *p, const struct skeleton *k, const struct source *s,
                     uint64_t bit) {
    for (uint32_t dim = 0; dim < p->n_dims; dim++) {
        if (!p->dim[dim].at_run_time || (s->dims >> dim & 1) == 0 || (k->grid >> dim & 1) != 0)
            continue;
        const uint64_t along =
            (dim == k->loop ? k->streamed : 0) | (dim == k->loop2 ? k->streamed2 : 0);
        const uint64_t across =
            (dim != k->loop ? k->streamed : 0) | (dim != k->loop2 ? k->streamed2 : 0);
        if ((along & ~across & bit) == 0) return false;
    }
    return true;
}

/* Adds the skeleton without the sources that it cannot have, unless the list has it or one of its
 * loops streams nothing. */
static int add_skeleton(struct diag *d, const struct problem *p, const struct sources *sources,
                        struct skeleton k, struct skeletons *out) {
    for (uint32_t i = 0; i < sources->n; i++)
        if (!can_have(p, &k, &sources->at[i], UINT64_C(1) << i)) k.absent |= UINT64_C(1) << i;
    k.streamed &= ~k.absent;
    k.streamed2 &= ~k.absent;
    if ((k.loop != BLOCK_NONE && k.streamed == 0) || (k.loop2 != BLOCK_NONE && k.streamed2 == 0))
        return QN_OK;
    for (size_t i = out->list.n; i-- > 0;) {
        const struct skeleton *o = &out->list.items[i];
        if (o->grid != k.grid || o->loop != k.loop || o->loop2 != k.loop2) break;
        if (o->streamed == k.streamed && o->streamed2 == k.streamed2 && o->absent == k.absent)
            return QN_OK;
    }
    return ARRAY_PUSH(d, &out->list, k);
}

static int add_loops(struct diag *d, const struct problem *p, const struct sources *sources,
                     struct skeleton k, struct skeletons *out) {
    uint64_t must, may, must2, may2, subset = 0, subset2;
    streams_of(sources, k.loop, &must, &may);
    streams_of(sources, k.loop2, &must2, &may2);
    if (k.loop == k.loop2) must2 = 0; /* the first loop's sources need not stream again */
    do {
        k.streamed = must | subset;
        subset2 = 0;
        do {
            k.streamed2 = must2 | subset2;
            TRY(add_skeleton(d, p, sources, k, out));
            subset2 = next_subset(subset2, may2);
        } while (subset2 != 0);
        subset = next_subset(subset, may);
    } while (subset != 0);
    return QN_OK;
}

static int add_grid(struct diag *d, const struct problem *p, const struct sources *sources,
                    block_dims grid, uint32_t n_loops, struct skeletons *out) {
    struct skeleton k = {.grid = grid, .loop = BLOCK_NONE, .loop2 = BLOCK_NONE};
    TRY(add_loops(d, p, sources, k, out));
    for (uint8_t i = 0; i < p->n_dims && n_loops > 0; i++) {
        if ((grid >> i & 1) != 0) continue;
        k.loop = i;
        k.loop2 = BLOCK_NONE;
        TRY(add_loops(d, p, sources, k, out));
        for (k.loop2 = 0; k.loop2 < p->n_dims && n_loops > 1; k.loop2++)
            if ((grid >> k.loop2 & 1) == 0) TRY(add_loops(d, p, sources, k, out));
    }
    return QN_OK;
}

int skeletons_make(struct diag *d, const struct problem *p, const struct sources *sources,
                   block_dims dims, uint32_t n_loops, struct skeletons *out) {
    block_dims grid = 0;
    for (uint32_t i = 0; i < p->n_dims; i++) /* a grid shares out whole pieces only */
        if (p->dim[i].rest) dims &= (block_dims) ~(1u << i);
    *out = (struct skeletons){0};
    do {
        TRY(add_grid(d, p, sources, grid, n_loops, out));
        grid = (block_dims)next_subset(grid, dims);
    } while (grid != 0);
    return QN_OK;
}

/* ---- questions ---- */

uint32_t skeleton_stages(const struct skeleton *k, const struct sources *sources, uint32_t source) {
    static const uint8_t straight[N_EXPR_KINDS] = {
        [EXPR_ACT] = STAGE_BEFORE, [EXPR_MASK] = STAGE_BEFORE};
    const uint32_t streamed = (uint32_t)(k->streamed >> source & 1) << STAGE_LOOP |
                              (uint32_t)(k->streamed2 >> source & 1) << STAGE_LOOP2;
    if ((k->absent >> source & 1) != 0) return 0;
    return streamed != 0 ? streamed : 1u << straight[sources->at[source].kind];
}

static void write_loop(const struct problem *p, const struct sources *sources, const char *word,
                       uint8_t loop, uint64_t streamed, struct strbuf *out) {
    if (loop == BLOCK_NONE) return;
    strbuf_printf(out, " %s %s streams", word, p->dim[loop].name);
    for (uint32_t i = 0; i < sources->n; i++)
        if ((streamed >> i & 1) != 0)
            strbuf_printf(out, " %s",
                          sources->at[i].leaf == BLOCK_NONE ? "handed"
                                                            : p->leaf[sources->at[i].leaf].name);
}

void skeleton_write(const struct problem *p, const struct sources *sources,
                    const struct skeleton *k, struct strbuf *out) {
    strbuf_str(out, "grid");
    for (uint32_t i = 0; i < p->n_dims; i++)
        if ((k->grid >> i & 1) != 0) strbuf_printf(out, " %s", p->dim[i].name);
    write_loop(p, sources, "loop", k->loop, k->streamed, out);
    write_loop(p, sources, "loop2", k->loop2, k->streamed2, out);
}

/* search.c - the stages in their order. */
#include "search/search.h"

#include "base/checked.h"
#include "search/block_prove.h"
#include "search/candidate.h"
#include "search/stabilise.h"

#include <string.h>

enum { SUBJECTS = 1 + BLOCK_DIMS, LOOK_UPS = 1 << 28 }; /* look-ups of forms; also a budget */

struct search_params search_params_default(void) {
    return (struct search_params){.n_tasks = 1,
                                  .n_graphs = 16,
                                  .n_loops = 2,
                                  .n_threads = 1,
                                  .max_applications = 100000,
                                  .max_steps = 1 << 20,
                                  .limits = block_limits_default()};
}

/* ---- problems and their values ---- */

/* Everything that lives as long as a search. */
struct searcher {
    struct diag *d;
    const struct expr *x;
    const struct search_params *params;
    struct search_result *out;
    struct arena arena;
    struct forms *forms[SUBJECTS];
    struct subject *subjects;
    uint8_t split[SUBJECTS]; /* problem_make's */
    uint32_t n_subjects;
    /* The problems again, for proofs: they do not share the search's look-ups of forms. */
    struct forms *proof_forms[SUBJECTS]; /* NULL: not made yet */
    struct problem *proofs;
    struct candidates candidates;
    bool takes_unstable; /* graphs whose sums of exponentials have no maxima */
};

static int add_subject(struct searcher *s, uint8_t split) {
    struct subject *subject = &s->subjects[s->n_subjects];
    struct forms *f;
    TRY(forms_new(s->d, &s->forms[s->n_subjects]));
    s->split[s->n_subjects] = split;
    f = s->forms[s->n_subjects++];
    forms_bound(f, LOOK_UPS);
    TRY(problem_make(s->d, s->x, &s->params->sizes, split, f, &subject->problem));
    TRY(saturate(s->d, &s->arena, &subject->problem, s->params->max_applications,
                 &subject->saturation));
    s->out->n_states += subject->saturation.classes.n;
    s->out->n_edges += subject->saturation.applications.n;
    s->out->n_applications += subject->saturation.n_tried;
    const bool spent = form_number(f, 1, 1) == FORM_NONE;
    s->out->complete = s->out->complete && subject->saturation.complete && !spent;
    return QN_OK;
}

/* The problem of subject i in a table of its own. */
static int proof_of(struct searcher *s, uint32_t i, const struct problem **out) {
    *out = &s->proofs[i];
    if (s->proof_forms[i] != NULL) return QN_OK;
    TRY(forms_new(s->d, &s->proof_forms[i]));
    forms_bound(s->proof_forms[i], LOOK_UPS);
    return problem_make(s->d, s->x, &s->params->sizes, s->split[i], s->proof_forms[i],
                        &s->proofs[i]);
}

/* The problem, and for two tasks its variants with a reduced dim cut into pieces. */
static int add_subjects(struct searcher *s) {
    TRY(add_subject(s, PROBLEM_NO_SPLIT));
    if (s->params->n_tasks < 2) return QN_OK;
    const block_dims reduced = s->subjects[0].problem.reduced;
    for (uint8_t i = 0; i < s->x->n_dims && i < BLOCK_DIMS; i++)
        if ((reduced >> i & 1) != 0 && !s->x->dims[i].halved) TRY(add_subject(s, i));
    return QN_OK;
}

/* ---- from candidates to results ---- */

struct ranked {
    uint64_t cost;
    size_t found; /* index into the candidates */
};

static int compare_ranked(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
    return x->found < y->found ? -1 : x->found > y->found;
}

static bool is_there(const struct search_result *r, const struct block_graph *g) {
    struct strbuf text = {0}, other = {0};
    bool found = false;
    block_write(g, &text);
    for (size_t i = 0; i < r->graphs.n && !found; i++) {
        strbuf_clear(&other);
        block_write(&r->graphs.items[i].blocks, &other);
        found = strcmp(strbuf_text(&text), strbuf_text(&other)) == 0;
    }
    strbuf_fini(&text);
    strbuf_fini(&other);
    return found;
}

/* Stabilises, verifies and proves the graph, and keeps it if all succeed. */
static int finish(struct searcher *s, const struct candidate *c) {
    struct search_graph g = {.cost = (double)c->cost / CYCLES_UNIT, .blocks = c->blocks};
    struct diag broken = {0};
    const struct problem *problem;
    const char *why;
    bool proved;
    TRY(stabilise(s->d, &g.blocks, &g.stable));
    if (!g.stable && !s->takes_unstable) return QN_OK;
    if (block_graph_verify(&broken, &g.blocks, &s->params->limits) != QN_OK) {
        if (s->out->n_refused++ == 0) s->out->refused = broken;
        return QN_OK;
    }
    if (is_there(s->out, &g.blocks)) return QN_OK;
    TRY(proof_of(s, c->problem, &problem));
    TRY(block_prove(s->d, problem, &g.blocks, &proved, &why));
    if (!proved) {
        s->out->n_unproved++;
        return QN_OK;
    }
    return ARRAY_PUSH(s->d, &s->out->graphs, g);
}

static int finish_all(struct searcher *s) {
    const size_t n = s->candidates.list.n;
    struct ranked *order;
    TRY(ARENA_NEW(s->d, &s->arena, &order, n));
    for (size_t i = 0; i < n; i++) order[i] = (struct ranked){s->candidates.list.items[i].cost, i};
    qsort(order, n, sizeof *order, compare_ranked);
    for (size_t i = 0; i < n && s->out->graphs.n < s->params->n_graphs; i++)
        TRY(finish(s, &s->candidates.list.items[order[i].found]));
    return QN_OK;
}

/* ---- all together ---- */

static int run(struct searcher *s) {
    TRY(ARENA_NEW(s->d, &s->arena, &s->subjects, SUBJECTS));
    TRY(ARENA_NEW(s->d, &s->arena, &s->proofs, SUBJECTS));
    TRY(add_subjects(s));
    for (uint32_t i = 0; i < s->n_subjects; i++)
        TRY((s->params->n_tasks < 2 ? candidates_of_one : candidates_of_two)(
            s->d, &s->subjects[i], i, s->params, &s->candidates, s->out));
    TRY(finish_all(s));
    if (s->out->graphs.n > 0) return QN_OK;
    s->takes_unstable = true;
    s->out->n_refused = s->out->n_unproved = 0;
    return finish_all(s);
}

int search(struct diag *d, const struct expr *x, const struct search_params *params,
           struct search_result *out) {
    struct searcher s = {.d = d, .x = x, .params = params, .out = out};
    *out = (struct search_result){.complete = true};
    const int rc = run(&s);
    for (uint32_t i = 0; i < s.n_subjects; i++) {
        saturation_fini(&s.subjects[i].saturation);
        forms_free(s.forms[i]);
        forms_free(s.proof_forms[i]);
    }
    ARRAY_FINI(&s.candidates.list);
    arena_fini(&s.arena);
    if (rc != QN_OK) search_result_fini(out);
    return rc;
}

void search_result_fini(struct search_result *r) {
    ARRAY_FINI(&r->graphs);
}

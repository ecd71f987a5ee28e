/* The search on known patterns: found, proved, in few steps; the fusions that quern has by hand are
 * among the found ones; the same on one thread and on two; what it does not know it refuses. */
#include "search/block_prove.h"
#include "search/stabilise.h"
#include "search_rig.h"

#include "base/checked.h"

/* Sanitizers take several times as long: less is searched twice. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum { SHORT_STEPS = 10000000 }; /* beyond it the budget may end the search */

static const struct pattern {
    const char *name, *sizes;
    uint32_t n_tasks;
    uint64_t steps; /* at most: seconds depend on what else the machine does */
} patterns[] = {
    {"rmsnorm_linear", "i=6144", 1, 2000},
    {"gated_mlp", "", 1, 2000000},
    {"lora", "r=16", 1, 2000},
    {"softmax", "", 1, 100},
    {"qknorm_attention", "", 1, 10000},
    {"gqa_decode", "", 1, 1000},
    {"layernorm_linear", "", 1, 30000},
    {"ntrans", "", 1, 20000},
    {"linear", "", 1, 1000},
    {"swiglu_oai", "", 1, 24000000}, /* more values than the budget has room for */
    {"gqa_decode", "", 2, 500000},
    {"linear", "", 2, 10000},
    {"attention_output", "", 2, 3000000},
};

static void check_graphs(const struct pattern *p, const struct search_result *r) {
    const struct block_limits limits = block_limits_default();
    assert_true(r->graphs.n > 0);
    assert_int_equal(r->n_unproved, 0);
    for (size_t i = 0; i < r->graphs.n; i++) {
        const struct search_graph *g = &r->graphs.items[i];
        struct diag d = {0};
        assert_int_equal(g->blocks.n_tasks, p->n_tasks);
        assert_int_equal(block_graph_verify(&d, &g->blocks, &limits), QN_OK);
        assert_true(g->stable);
        if (i > 0) assert_true(g->cost >= r->graphs.items[i - 1].cost);
    }
}

static void patterns_are_found_in_few_steps(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(patterns); i++) {
        const struct pattern *p = &patterns[i];
        struct search_params params = search_params_default();
        struct search_result r;
        params.n_tasks = p->n_tasks;
        const double seconds = search_pattern(p->name, p->sizes, params, &r);
        print_message("%-18s tasks %u  %4llu values  %5llu applications  %5llu skeletons  %8llu "
                      "steps  %6.3f s\n",
                      p->name, p->n_tasks, (unsigned long long)r.n_states,
                      (unsigned long long)r.n_edges, (unsigned long long)r.n_skeletons,
                      (unsigned long long)r.n_steps, seconds);
        check_graphs(p, &r);
        if (p->n_tasks == 1 && p->steps < SHORT_STEPS) assert_true(r.complete);
        assert_true(r.n_steps <= p->steps);
        search_result_fini(&r);
    }
}

/* ---- the fusions that quern has by hand ---- */

static bool is_op(const struct block *b, uint8_t node, uint32_t op) {
    return node != BLOCK_NONE && b->node[node].op == op;
}

/* The sum over the loop, times the root's inverse afterwards: the norm is folded into the linear.
 */
static bool has_folded_norm(const struct block_graph *g) {
    const struct block *b = &g->task[0];
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        const struct block_node *n = &b->node[i];
        if (n->op == BLOCK_OP_MUL && n->stage == STAGE_AFTER &&
            ((is_op(b, n->a, BLOCK_OP_ACC_SUM) && is_op(b, n->b, BLOCK_OP_RSQRT)) ||
             (is_op(b, n->b, BLOCK_OP_ACC_SUM) && is_op(b, n->a, BLOCK_OP_RSQRT))))
            return true;
    }
    return false;
}

/* Both matrices stream through one loop over the same normalised activations. */
static bool has_two_streams(const struct block_graph *g) {
    const struct block *b = &g->task[0];
    uint32_t n_pages = 0, n_sums = 0;
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        n_pages += b->node[i].space == SPACE_PAGE && b->in[i].kind == EXPR_WEIGHT;
        n_sums += b->node[i].op == BLOCK_OP_ACC_SUM;
    }
    return n_pages == 2 && n_sums == 2;
}

static bool has_op(const struct block *b, uint32_t op) {
    for (uint32_t i = 0; i < b->n_nodes; i++)
        if (b->node[i].op == op) return true;
    return false;
}

static bool has_online_sums(const struct block_graph *g) {
    return has_op(&g->task[0], BLOCK_OP_ACC_ONLINE);
}

/* Whether a task sums over a dim that was split from another one, and which it has whole. */
static bool merges_pieces(const struct block *b) {
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        const struct block_node *n = &b->node[i];
        if (n->op == BLOCK_OP_SUM && b->dim[__builtin_ctz(n->red)].parent[0] != '\0') return true;
    }
    return false;
}

/* Whether the task has a piece of a split dim as an index of its grid. */
static bool has_a_piece(const struct block *b) {
    for (uint32_t i = 0; i < b->n_dims; i++)
        if (b->dim[i].role == ROLE_GRID && b->dim[i].parent[0] != '\0') return true;
    return false;
}

/* LINEAR_SPLITK and LINEAR_SUM. */
static bool has_split_k(const struct block_graph *g) {
    return g->n_tasks == 2 && has_a_piece(&g->task[0]) && g->task[0].n_out == 1 &&
           has_op(&g->task[0], BLOCK_OP_ACC_SUM) && merges_pieces(&g->task[1]) &&
           !has_op(&g->task[1], BLOCK_OP_MM);
}

/* ATTENTION_SPLIT and MERGE: pieces with {max, sum, out}, merged by their maxima. */
static bool has_split_kv(const struct block_graph *g) {
    return g->n_tasks == 2 && has_a_piece(&g->task[0]) && g->task[0].n_out == 3 &&
           has_op(&g->task[0], BLOCK_OP_ACC_MAX) && has_op(&g->task[0], BLOCK_OP_ACC_ONLINE) &&
           has_op(&g->task[1], BLOCK_OP_MAX_OVER) && merges_pieces(&g->task[1]);
}

/* Attention whole in the first task, its output times the matrix in the second. */
static bool has_attention_then_linear(const struct block_graph *g) {
    return g->n_tasks == 2 && g->task[0].n_out == 1 && has_op(&g->task[0], BLOCK_OP_ACC_ONLINE) &&
           has_op(&g->task[1], BLOCK_OP_ACC_SUM) && !has_op(&g->task[1], BLOCK_OP_EXP);
}

static void fusions_by_hand_are_the_cheapest(void **state) {
    (void)state;
    static const struct {
        const char *name, *sizes; /* split K pays where there are fewer tasks than workers */
        uint32_t n_tasks;
        bool (*has)(const struct block_graph *);
    } cases[] = {{"rmsnorm_linear", "", 1, has_folded_norm},
                 {"gated_mlp", "", 1, has_two_streams},
                 {"swiglu_oai", "", 1, has_two_streams},
                 {"gqa_decode", "", 1, has_online_sums},
                 {"qknorm_attention", "", 1, has_online_sums},
                 {"linear", "h=16384,i=512", 2, has_split_k},
                 {"gqa_decode", "", 2, has_split_kv},
                 {"attention_output", "", 2, has_attention_then_linear}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct search_params params = search_params_default();
        struct search_result r;
        bool found;
        params.n_tasks = cases[i].n_tasks;
        search_pattern(cases[i].name, cases[i].sizes, params, &r);
        found = r.graphs.n > 0 && cases[i].has(&r.graphs.items[0].blocks);
        if (!found) print_error("%s in %u tasks\n", cases[i].name, cases[i].n_tasks);
        assert_true(found);
        search_result_fini(&r);
    }
}

/* ---- promises ---- */

static void threads_change_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(patterns); i++) {
        struct search_params params = search_params_default();
        struct search_result one, two;
        params.n_tasks = patterns[i].n_tasks;
        if (params.n_tasks == 1 && patterns[i].steps > SHORT_STEPS) continue;
        if (SANITIZED && params.n_tasks > 1 && strcmp(patterns[i].name, "linear") != 0) continue;
        search_pattern(patterns[i].name, patterns[i].sizes, params, &one);
        params.n_threads = 2;
        search_pattern(patterns[i].name, patterns[i].sizes, params, &two);
        struct strbuf a = result_text(&one), b = result_text(&two);
        assert_string_equal(strbuf_text(&a), strbuf_text(&b));
        assert_int_equal(one.n_steps, two.n_steps);
        strbuf_fini(&a);
        strbuf_fini(&b);
        search_result_fini(&one);
        search_result_fini(&two);
    }
}

/* A budget ends the search early and says so; what is found until then is proved all the same. */
static void budgets_are_kept(void **state) {
    (void)state;
    struct search_params params = search_params_default();
    struct search_result r;
    params.max_applications = 100;
    search_pattern("gated_mlp", "", params, &r);
    assert_false(r.complete);
    assert_int_equal(r.n_applications, 100);
    assert_int_equal(r.graphs.n, 0);
    search_result_fini(&r);
    params = search_params_default();
    params.max_steps = 40;
    search_pattern("gated_mlp", "", params, &r);
    assert_false(r.complete);
    assert_int_equal(r.n_unproved, 0);
    search_result_fini(&r);
}

/* Each found graph, changed in one place, is no longer proved or breaks a rule. */
static void changed_graphs_are_not_proved(void **state) {
    (void)state;
    static const char *const names[] = {"rmsnorm_linear", "gated_mlp", "gqa_decode"};
    static const struct {
        uint8_t from, to;
    } swaps[] = {{BLOCK_OP_ADD, BLOCK_OP_SUB},    {BLOCK_OP_MUL, BLOCK_OP_ADD},
                 {BLOCK_OP_RSQRT, BLOCK_OP_SQRT}, {BLOCK_OP_SILU, BLOCK_OP_SIGMOID},
                 {BLOCK_OP_DIV, BLOCK_OP_MUL},    {BLOCK_OP_ACC_ONLINE, BLOCK_OP_MUL},
                 {BLOCK_OP_SQUARE, BLOCK_OP_SQRT}};
    const struct block_limits limits = block_limits_default();
    uint32_t n_changed = 0;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct search_result r;
        struct diag d = {0};
        struct forms *forms;
        struct problem p;
        struct problem_sizes sizes = {0};
        struct expr *x = read_pattern(names[i]);
        search_pattern(names[i], "", search_params_default(), &r);
        assert_int_equal(forms_new(&d, &forms), QN_OK);
        assert_int_equal(problem_make(&d, x, &sizes, PROBLEM_NO_SPLIT, forms, &p), QN_OK);
        const struct block_graph good = r.graphs.items[0].blocks;
        for (uint32_t n = good.task[0].n_in; n < good.task[0].n_nodes; n++)
            for (size_t k = 0; k < COUNT_OF(swaps); k++) {
                struct block_graph g = good;
                const char *why;
                bool proved = false;
                if (g.task[0].node[n].op != swaps[k].from) continue;
                g.task[0].node[n].op = swaps[k].to;
                if (block_graph_verify(NULL, &g, &limits) == QN_OK)
                    assert_int_equal(block_prove(&d, &p, &g, &proved, &why), QN_OK);
                assert_false(proved);
                n_changed++;
            }
        forms_free(forms);
        search_result_fini(&r);
        free(x);
    }
    assert_true(n_changed > 10);
}

static int search_text(struct diag *d, const char *text, struct search_result *r) {
    const struct search_params params = search_params_default();
    static struct expr x;
    *d = (struct diag){0};
    const int rc = op_text_parse(d, "test", text, strlen(text), &x);
    return rc != QN_OK ? rc : search(d, &x, &params, r);
}

static void what_it_does_not_know_it_refuses(void **state) {
    (void)state;
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"op f(a[t] act, b[t] act, m[t] mask) -> y[t]\n  y = select(m, a, b)\n", "know select"},
        {"op f(a[t,s] act, m[t,s] mask) -> y[t]\n  y = max(s in m: a)\n", "max_over with a mask"},
        {"op f(a[v,h] weight, i[t] index(v)) -> y[t,h]\n  y = pick(v = i: a)\n", "the kind index"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct diag d;
        struct search_result r;
        assert_int_equal(search_text(&d, cases[i].text, &r), QN_EUNSUPPORTED);
        if (strstr(d.message, cases[i].why) == NULL) print_error("%s\n", d.message);
        assert_non_null(strstr(d.message, cases[i].why));
    }
}

/* The logarithm of a sum of exponentials changes when they are scaled: it has no stable graph. */
static void an_unstable_graph_says_so(void **state) {
    (void)state;
    struct diag d;
    struct search_result r;
    assert_int_equal(search_text(&d, "op f(x[t,n] act) -> y[t]\n  y = log(sum(n: exp(x)))\n", &r),
                     QN_OK);
    assert_true(r.graphs.n > 0);
    assert_false(r.graphs.items[0].stable);
    search_result_fini(&r);
}

static void sizes_are_read(void **state) {
    (void)state;
    struct problem_sizes s;
    struct diag d = {0};
    assert_int_equal(problem_sizes_parse(&d, "h=4096,r=16", &s), QN_OK);
    assert_int_equal(s.n, 2);
    assert_string_equal(s.at[1].name, "r");
    assert_int_equal(s.at[1].size, 16);
    static const char *const bad[] = {
        "h",       "=3",
        "h=",      "h=0",
        "h=x",     "h=99999999999999999999",
        "h=3;r=4", "a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1,j=1,k=1,l=1,m=1"};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_int_equal(problem_sizes_parse(NULL, bad[i], &s), QN_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_are_found_in_few_steps),
        cmocka_unit_test(fusions_by_hand_are_the_cheapest),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(budgets_are_kept),
        cmocka_unit_test(changed_graphs_are_not_proved),
        cmocka_unit_test(what_it_does_not_know_it_refuses),
        cmocka_unit_test(an_unstable_graph_says_so),
        cmocka_unit_test(sizes_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

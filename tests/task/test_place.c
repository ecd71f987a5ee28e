/* Which worker gets a task (task/place.c), and whom an operator leaves alone (task/decompose.c). */
#include "base/checked.h"
#include "task/fixture.h"
#include "task/stage_test.h"

/* Workers that have tasks of an operator. */
static uint64_t workers_of(const struct fixture *f, size_t op) {
    uint64_t workers = 0;
    for (size_t i = 0; i < f->tasks.tasks.n; i++)
        if (f->tasks.tasks.items[i].op == (int32_t)op)
            workers |= 1ull << f->tasks.tasks.items[i].worker;
    return workers;
}

/* ATTENTION_WHOLE has a task for each row and KV head. Its tasks have the same workers in every
 * layer, and these are spread over all workers. The operator after it has other workers. */
static void whole_contexts_stay_with_their_workers(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(3, 64, 8, 1, 32, 96, 301);
    struct diag d = {0};
    struct fixture f;
    struct task_options o = defaults;
    o.device.n_workers = 40;
    o.launch = LAUNCH_ALL_AOT;
    ok(&d, fixture_compile(&d, &f, &spec, PACK_ROWS, 256, FIXTURE_WHOLE, &o));
    bool busy[40] = {false};
    uint32_t n = 0;
    for (size_t i = 0; i < f.tasks.tasks.n; i++) {
        const struct task *t = &f.tasks.tasks.items[i];
        if (t->kind != OP_ATTENTION_WHOLE) continue;
        assert_int_equal(t->unit1, PACK_ROWS);
        assert_int_equal(t->worker, t->unit0 * 40 / PACK_ROWS);
        busy[t->worker] = true;
        n++;
    }
    assert_int_equal(n, 3 * PACK_ROWS);
    for (size_t i = 0; i < f.tasks.tasks.n; i++) {
        const struct task *t = &f.tasks.tasks.items[i];
        const bool after =
            t->kind == OP_LINEAR && f.kernel.ops.items[t->op - 1].kind == OP_ATTENTION_WHOLE;
        if (after) assert_false(busy[t->worker]);
        n += after;
    }
    assert_true(n > 3 * PACK_ROWS);
    fixture_fini(&f);
}

/* Operators of one row alternate between workers: where half of them or fewer have a LINEAR, what
 * comes next is for the others; and no worker has both QKV and the attention of few after it. */
static void what_follows_a_short_operator_is_for_others(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(3, 256, 4, 2, 64, 512, 32000);
    const struct {
        uint32_t rows, workers;
        bool halves;
        int qkv[2], mlp; /* tasks, of QKV before STEP and before WHOLE; a LINEAR has 16 */
    } cases[] = {{1, 40, true, {24, 24}, 24},
                 {1, 40, false, {32, 32}, 40},
                 {1, 32, true, {16, 16}, 16},
                 {1, 31, true, {31, 29}, 31}, /* WHOLE has two slices */
                 {2, 40, true, {32, 32}, 40}};
    const uint32_t cuts[] = {FIXTURE_STEP, KGRAPH_CUT_QKV | KGRAPH_JOIN_HEADS};
    for (size_t c = 0; c < COUNT_OF(cases) * COUNT_OF(cuts); c++) {
        const bool halves = cases[c / 2].halves && cases[c / 2].rows == 1;
        struct diag d = {0};
        struct fixture f;
        struct task_options o = defaults;
        o.device = device_cuda(90, cases[c / 2].workers, 0);
        o.launch = LAUNCH_ALL_AOT;
        o.halves = cases[c / 2].halves;
        ok(&d, fixture_compile(&d, &f, &spec, cases[c / 2].rows, 256, cuts[c % 2], &o));
        int n_layers = 0;
        for (size_t op = 1; op < f.kernel.ops.n; op++) {
            const uint64_t here = workers_of(&f, op), before = workers_of(&f, op - 1);
            const enum op_kind kind = f.kernel.ops.items[op].kind;
            if (kind == OP_GATED_MLP) {
                assert_int_equal(__builtin_popcountll(here), cases[c / 2].mlp);
                if (halves && o.device.n_workers >= 32) assert_int_equal(here & before, 0);
                n_layers++;
            } else if (kind == OP_QKV_LINEAR) {
                assert_int_equal(__builtin_popcountll(here), cases[c / 2].qkv[c % 2]);
                const bool whole = f.kernel.ops.items[op + 1].kind == OP_ATTENTION_WHOLE;
                if (cases[c / 2].rows == 1 && (whole || (halves && o.device.n_workers >= 32)))
                    assert_int_equal(here & workers_of(&f, op + 1), 0);
            }
        }
        assert_int_equal(n_layers, 3);
        fixture_fini(&f);
    }
}

/* The operator of that kind in the last layer. */
static size_t last_op(const struct fixture *f, enum op_kind kind) {
    size_t op = f->kernel.ops.n - 1;
    while (op > 0 && f->kernel.ops.items[op].kind != kind) op--;
    assert_int_equal(f->kernel.ops.items[op].kind, kind);
    return op;
}

static int32_t waits_for(const struct fixture *f, size_t op) {
    size_t i = 0;
    while (f->tasks.tasks.items[i].op != (int32_t)op) i++;
    return f->tasks.tasks.items[i].wait;
}

/* The list of experts is made while the shared experts' MLP runs: neither waits for the other, and
 * ROUTER and ROUTE have workers of their own if no task of the MLP is larger for it. */
static void routing_is_beside_shared_experts(void **state) {
    (void)state;
    const struct {
        uint32_t rows, width; /* of the shared experts, 8 to a block */
        bool coarse;
        int mlp; /* tasks on 24 workers, of which ROUTER has 2 and ROUTE 1 */
    } cases[] = {{1, 320, true, 21},  {1, 336, true, 21}, {1, 344, true, 24},
                 {1, 320, false, 21}, {8, 320, true, 24}, {8, 320, false, 24}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct model_spec spec = fixture_spec(3, 256, 4, 2, 64, 512, 32000);
        spec.experts =
            (struct experts_spec){.n = 32, .top_k = 4, .width = 64, .shared_width = cases[c].width};
        struct diag d = {0};
        struct fixture f;
        struct task_options o = defaults;
        o.device = device_cuda(90, 24, 0);
        o.launch = LAUNCH_ALL_AOT;
        o.coarse_events = cases[c].coarse;
        ok(&d, fixture_compile(&d, &f, &spec, cases[c].rows, 256, FIXTURE_STEP, &o));
        const size_t route = last_op(&f, OP_ROUTE), mlp = last_op(&f, OP_GATED_MLP);
        const uint64_t on_mlp = workers_of(&f, mlp);
        assert_int_equal(__builtin_popcountll(on_mlp), cases[c].mlp);
        assert_int_equal(workers_of(&f, route) & workers_of(&f, mlp + 1), 0);
        if (cases[c].mlp < 24)
            assert_int_equal((workers_of(&f, route - 1) | workers_of(&f, route)) & on_mlp, 0);
        assert_int_equal(waits_for(&f, route - 1), waits_for(&f, mlp));
        assert_true(waits_for(&f, route) < waits_for(&f, mlp + 1));
        uint32_t n_dummies = 0;
        for (size_t i = 0; i < f.tasks.tasks.n; i++) n_dummies += f.tasks.tasks.items[i].op < 0;
        assert_true(n_dummies < 24 * spec.n_layers * 4);
        fixture_fini(&f);
    }
}

/* Who merges pieces has nothing of the LINEAR after it, if as many as it takes have not: 40 - 16
 * workers here, of which 1 can merge 256 columns at once. Not in long contexts. */
static void merge_is_apart(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(2, 256, 4, 2, 64, 512, 32000);
    const struct {
        uint32_t workers, context;
        bool merge_apart;
        uint32_t linear; /* tasks asked for; 0: none */
        int merge;       /* tasks */
    } cases[] = {{40, 1024, true, 0, 2},  {40, 1024, false, 0, 4}, {40, 1152, true, 0, 4},
                 {17, 1024, true, 0, 1},  {16, 1024, true, 0, 4},  {16, 1024, true, 8, 2},
                 {16, 1024, true, 15, 1}, {40, 1024, true, 90, 2}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct diag d = {0};
        struct fixture f;
        struct task_options o = defaults;
        /* What memory brings an SM of an H200, of an H100. */
        o.device = device_cuda(90, cases[c].workers, cases[c].merge_apart ? 37 : 25);
        o.launch = LAUNCH_ALL_AOT;
        o.tiles[OP_LINEAR].unit_tiles = cases[c].linear;
        ok(&d, fixture_compile(&d, &f, &spec, 1, cases[c].context,
                               FIXTURE_STEP | KGRAPH_CUT_ATTENTION, &o));
        int n = 0;
        for (size_t op = 1; op + 1 < f.kernel.ops.n; op++) {
            if (f.kernel.ops.items[op].kind != OP_ATTENTION_MERGE) continue;
            assert_int_equal(__builtin_popcountll(workers_of(&f, op)), cases[c].merge);
            if (cases[c].merge < 4)
                assert_int_equal(workers_of(&f, op) & workers_of(&f, op + 1), 0);
            n++;
        }
        assert_int_equal(n, 2);
        fixture_fini(&f);
    }
}

/* The iteration of a single row begins where the one before ended, on a worker that has none of the
 * LM head's larger tasks. */
static void who_samples_a_row_embeds_it(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(2, 256, 4, 2, 64, 512, 32000);
    const uint32_t workers[] = {1, 2, 7, 33, 60};
    for (size_t i = 0; i < COUNT_OF(workers); i++) {
        struct diag d = {0};
        struct fixture f;
        struct task_options o = defaults;
        o.device.n_workers = workers[i];
        o.launch = LAUNCH_ALL_AOT;
        ok(&d, fixture_compile(&d, &f, &spec, 1, 256, FIXTURE_STEP, &o));
        const size_t sample = f.kernel.ops.n - 1;
        assert_int_equal(f.kernel.ops.items[0].kind, OP_EMBED);
        assert_int_equal(f.kernel.ops.items[sample].kind, OP_SAMPLE);
        assert_true(workers_of(&f, 0) == workers_of(&f, sample));
        uint32_t least = UINT32_MAX, its = 0;
        for (size_t t = 0; t < f.tasks.tasks.n; t++) {
            const struct task *task = &f.tasks.tasks.items[t];
            if (task->kind != OP_LM_HEAD) continue;
            const uint32_t units = task->unit1 - task->unit0;
            least = MIN(least, units);
            if (workers_of(&f, 0) >> task->worker & 1) its = MAX(its, units);
        }
        assert_int_equal(its, least);
        fixture_fini(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_contexts_stay_with_their_workers),
        cmocka_unit_test(what_follows_a_short_operator_is_for_others),
        cmocka_unit_test(routing_is_beside_shared_experts),
        cmocka_unit_test(merge_is_apart),
        cmocka_unit_test(who_samples_a_row_embeds_it),
    };
    return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}

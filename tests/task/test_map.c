/* test_map.c - op.def's access maps: every row is understood; the compiler's evaluator and the
 * proof's say the same of the same tasks (of every operator: device/test_maps.c); and shapes that
 * do not fit are refused with the operand's name. */
#include "fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#undef fail
#include "maps_agree.h"

static struct model_spec spec_of(void) {
    return fixture_spec(2, 512, 8, 2, 64, 768, 1000);
}

/* A program of one variant. */
static struct prog_header *program_of(uint32_t n_rows, uint32_t cuts, uint32_t hidden,
                                      struct fixture *f) {
    const struct task_options o = {
        .device.n_workers = 7, .tasks_per_worker = 1, .launch = LAUNCH_ALL_AOT};
    struct model_spec spec = spec_of();
    struct prog_header *p = NULL;
    spec.hidden = hidden;
    struct diag d = {0};
    int rc = fixture_compile(&d, f, &spec, n_rows, 512, cuts, &o);
    if (rc == QN_OK) rc = fixture_program(&d, f, 512, &p);
    if (rc != QN_OK) print_message("%s\n", d.message);
    assert_int_equal(rc, QN_OK);
    return p;
}

static void both_evaluators_agree(void **state) {
    (void)state;
    static const struct {
        uint32_t n_rows, cuts, hidden;
    } graphs[] = {{1, 0, 512},
                  {3, KGRAPH_CUT_ATTENTION, 512},
                  {1, FIXTURE_STEP, 512},
                  {8, FIXTURE_FEW, 512},
                  {9, FIXTURE_SENTINELS, 512},
                  {64, FIXTURE_CUT, 512},
                  {128, FIXTURE_MANY, 512},
                  {16, FIXTURE_MANY, 320}};
    random_state = 1;
    for (size_t g = 0; g < sizeof graphs / sizeof *graphs; g++) {
        struct fixture f;
        struct prog_header *p = program_of(graphs[g].n_rows, graphs[g].cuts, graphs[g].hidden, &f);
        struct diag d = {0};
        struct proof proof = {.d = &d, .p = p, .v = PROG(p, VARIANT)};
        for (uint32_t op = 0; op < proof.v->n_ops; op++) maps_agree(&proof, op);
        free(p);
        fixture_fini(&f);
    }
}

/* Layers of different widths in one graph, and weights of different formats: each operator has its
 * own shapes, and the proof knows them. */
static void operators_have_their_own_shapes(void **state) {
    (void)state;
    const struct model_spec spec = spec_of();
    struct arena arena = {0};
    struct kgraph g;
    struct diag d = {0};
    kgraph_init(&g, &arena, &spec, 4, 4, 256);
    int32_t in[OP_MAX_IN], out[OP_MAX_OUT];
    const uint64_t shape[TENSOR_MAX_DIMS] = {4, 96};
    int32_t x;
    assert_int_equal(kgraph_input(&d, &g, "x", 2, shape, false, &x), QN_OK);
    static const struct {
        const char *name;
        enum dtype dtype;
        uint64_t rows;
    } layers[] = {{"a", DTYPE_BF16, 160}, {"b", DTYPE_F32, 48}, {"c", DTYPE_F16, 1024}};
    uint64_t cols = 96;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < OP_MAX_IN; k++) in[k] = NO_TENSOR;
        in[LINEAR_A] = x;
        assert_int_equal(kgraph_weight(&d, &g, layers[i].name, layers[i].dtype, 2, layers[i].rows,
                                       cols, &in[LINEAR_W]),
                         QN_OK);
        assert_int_equal(kgraph_op(&d, &g, OP_LINEAR, i, in, out), QN_OK);
        x = out[0];
        cols = layers[i].rows;
        assert_int_equal(g.tensors.items[x].shape[1], cols);
        assert_int_equal(kop_units(&g.ops.items[i]), cols);
    }
    assert_int_equal(kgraph_verify(&d, &g), QN_OK);
    kgraph_fini(&g);
    arena_fini(&arena);
}

/* What does not fit is refused, and the message names the operand. */
static void shapes_that_do_not_fit(void **state) {
    (void)state;
    const struct model_spec spec = spec_of();
    static const struct {
        uint64_t a[2], w[2], bias, residual[2];
        const char *message;
    } cases[] = {
        {{4, 64}, {32, 65}, 0, {0, 0}, "w (w): want [32,64,0,0]"},
        {{5, 64}, {32, 64}, 0, {0, 0}, "a (a): want [4,64,0,0]"},
        {{4, 64}, {32, 64}, 31, {0, 0}, "bias (bias): want [32,0,0,0]"},
        {{4, 64}, {32, 64}, 0, {4, 33}, "residual (residual): want [4,32,0,0]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct kgraph g;
        struct diag d = {0};
        int32_t in[OP_MAX_IN], out[OP_MAX_OUT];
        const uint64_t a[TENSOR_MAX_DIMS] = {cases[i].a[0], cases[i].a[1]};
        const uint64_t r[TENSOR_MAX_DIMS] = {cases[i].residual[0], cases[i].residual[1]};
        kgraph_init(&g, &arena, &spec, 4, 4, 256);
        for (int k = 0; k < OP_MAX_IN; k++) in[k] = NO_TENSOR;
        assert_int_equal(kgraph_input(&d, &g, "a", 2, a, false, &in[LINEAR_A]), QN_OK);
        assert_int_equal(
            kgraph_weight(&d, &g, "w", DTYPE_BF16, 2, cases[i].w[0], cases[i].w[1], &in[LINEAR_W]),
            QN_OK);
        if (cases[i].bias != 0)
            assert_int_equal(
                kgraph_weight(&d, &g, "bias", DTYPE_F32, 1, cases[i].bias, 0, &in[LINEAR_BIAS]),
                QN_OK);
        if (r[0] != 0)
            assert_int_equal(kgraph_input(&d, &g, "residual", 2, r, false, &in[LINEAR_RESIDUAL]),
                             QN_OK);
        assert_int_equal(kgraph_op(&d, &g, OP_LINEAR, 0, in, out), QN_ESHAPE);
        if (strstr(d.message, cases[i].message) == NULL) print_message("%s\n", d.message);
        assert_non_null(strstr(d.message, cases[i].message));
        kgraph_fini(&g);
        arena_fini(&arena);
    }
}

/* Everything that the tables say of a list and of the experts that it names is held to the row, to
 * the model, or to the block of weights. */
struct experts_program {
    struct prog_header *p;
    struct prog_op *up, *down, *route;
    struct prog_part *part; /* of the first stack */
    struct prog_tensor *tensors;
};

static void more_experts(struct experts_program *e) {
    e->up->attrs.experts++;
}
static void other_top_k(struct experts_program *e) {
    e->down->attrs.top_k--;
}
static void another_gate(struct experts_program *e) {
    e->route->attrs.gates ^= 1;
}
static void other_norm(struct experts_program *e) {
    e->route->attrs.normed ^= 1;
}
static void placed_anyhow(struct experts_program *e) {
    e->up->attrs.placed = 2;
}
static void list_of_floats(struct experts_program *e) {
    e->tensors[e->up->in[GATE_UP_LIST]].dtype = DTYPE_F32;
}
static void shorter_list(struct experts_program *e) {
    struct prog_tensor *t = &e->tensors[e->up->in[GATE_UP_LIST]];
    t->shape[0]--;
    t->bytes -= 4ull * t->shape[1];
}
static void slots_for_a_list(struct experts_program *e) {
    e->up->in[GATE_UP_LIST] = e->up->in[GATE_UP_SLOTS];
}
static void no_list(struct experts_program *e) {
    e->up->in[GATE_UP_LIST] = PROG_NONE;
}
static void fewer_in_a_stack(struct experts_program *e) {
    e->part->stack--;
}
static void no_stack(struct experts_program *e) {
    e->part->stack = 0;
}
static void tensors_that_overlap(struct experts_program *e) {
    e->part->step--;
}
static void tensors_outside(struct experts_program *e) {
    e->part->step++;
}
static void no_pattern(struct experts_program *e) {
    e->part->name = PROG(e->p, WEIGHT)[0].name;
}

static void lists_and_stacks_are_checked(void **state) {
    (void)state;
    static void (*const wrongs[])(struct experts_program *) = {NULL,
                                                               more_experts,
                                                               other_top_k,
                                                               another_gate,
                                                               other_norm,
                                                               placed_anyhow,
                                                               list_of_floats,
                                                               shorter_list,
                                                               slots_for_a_list,
                                                               no_list,
                                                               fewer_in_a_stack,
                                                               no_stack,
                                                               tensors_that_overlap,
                                                               tensors_outside,
                                                               no_pattern};
    struct model_spec spec = spec_of();
    spec.experts = (struct experts_spec){
        .n = 6, .top_k = 2, .width = 40, .shared_width = 24, .shared_gate = 1};
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        const struct task_options o = {.device.n_workers = 3, .tasks_per_worker = 1};
        struct fixture f;
        struct diag d = {0};
        struct experts_program e = {0};
        assert_int_equal(fixture_compile(&d, &f, &spec, 5, 512, 0, &o), QN_OK);
        assert_int_equal(fixture_program(&d, &f, 512, &e.p), QN_OK);
        struct prog_op *ops = (struct prog_op *)PROG(e.p, OP);
        for (uint64_t k = e.p->section[SECTION_OP].count; k-- > 0;) {
            if (ops[k].kind == OP_ROUTE) e.route = &ops[k];
            if (ops[k].kind == OP_EXPERT_GATE_UP) e.up = &ops[k];
            if (ops[k].kind == OP_EXPERT_DOWN) e.down = &ops[k];
        }
        e.tensors = (struct prog_tensor *)PROG(e.p, TENSOR);
        e.part = (struct prog_part *)PROG(e.p, PART) + e.tensors[e.up->in[GATE_UP_WG]].part;
        if (wrongs[i] != NULL) wrongs[i](&e);
        int rc = program_check(&d, "p", e.p, e.p->total_bytes);
        if (rc == QN_OK) rc = task_verify(&d, e.p, NULL);
        if ((rc == QN_OK) != (i == 0)) print_error("case %zu: %s\n", i, d.message);
        assert_int_equal(rc == QN_OK, i == 0);
        free(e.p);
        fixture_fini(&f);
    }
}

/* What a task reads of weights that a list names: as many as the list has room for. */
static void lists_bound_what_is_read(void **state) {
    (void)state;
    struct model_spec spec = spec_of();
    spec.experts = (struct experts_spec){.n = 64, .top_k = 4, .width = 96};
    for (uint32_t rows = 1; rows <= 32; rows *= 32) {
        const uint64_t listed = rows == 1 ? 4 : 64;
        const struct task_options o = {.device.n_workers = 2, .tasks_per_worker = 1};
        struct fixture f;
        struct diag d = {0};
        uint64_t up = 0, down = 0;
        assert_int_equal(fixture_compile(&d, &f, &spec, rows, 512, 0, &o), QN_OK);
        for (size_t i = 0; i < f.tasks.tasks.n; i++) {
            const struct task *t = &f.tasks.tasks.items[i];
            if (t->op < 0 || f.kernel.ops.items[t->op].layer != 0) continue;
            if (t->kind == OP_EXPERT_GATE_UP) up += task_weight_bytes(&f.kernel, t);
            if (t->kind == OP_EXPERT_DOWN) down += task_weight_bytes(&f.kernel, t);
        }
        assert_int_equal(up, listed * 2 * 96 * 512 * 2);
        assert_int_equal(down, listed * 96 * 512 * 2);
        fixture_fini(&f);
    }
}

/* Parts of a block: one after the other, and in turns. */
static void parts_of_blocks(void **state) {
    (void)state;
    const struct model_spec spec = spec_of();
    struct arena arena = {0};
    struct kgraph g;
    struct diag d = {0};
    const struct kgraph_part parts[] = {{"q", 40, {0}}, {"k", 8, {0}}, {"v", 8, {0}}};
    const char *const both[] = {"gate", "up"};
    int32_t joined, turns[2];
    kgraph_init(&g, &arena, &spec, 1, 1, 256);
    assert_int_equal(kgraph_weight_joined(&d, &g, parts, 3, DTYPE_BF16, 2, 16, &joined), QN_OK);
    assert_int_equal(g.tensors.items[joined].shape[0], 56);
    assert_int_equal(g.parts.items[1].at, 40);
    assert_int_equal(g.parts.items[2].at, 48);
    assert_int_equal(kgraph_weights_in_turns(&d, &g, both, 2, 8, DTYPE_BF16, 20, 16, turns), QN_OK);
    const struct weight_block *b = &g.blocks.items[1];
    assert_int_equal(b->rows, 48); /* three turns of eight of each */
    bool taken[48] = {false};
    for (uint32_t i = b->first_part; i < b->first_part + b->n_parts; i++) {
        const struct weight_part *p = &g.parts.items[i];
        for (uint32_t row = 0; row < p->rows; row++) {
            const uint64_t at = prog_part_row(p->at, p->run, p->stride, row);
            assert_true(at < b->rows && !taken[at]);
            taken[at] = true;
        }
    }
    assert_true(taken[0] && taken[8] && !taken[36] && !taken[47]);
    kgraph_fini(&g);
    arena_fini(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_evaluators_agree),
        cmocka_unit_test(operators_have_their_own_shapes),
        cmocka_unit_test(shapes_that_do_not_fit),
        cmocka_unit_test(lists_and_stacks_are_checked),
        cmocka_unit_test(lists_bound_what_is_read),
        cmocka_unit_test(parts_of_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

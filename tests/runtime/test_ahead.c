/* The weights that waiting workers fetch ahead: those of each task, all of an operator's together,
 * nothing twice, nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include "base/checked.h"
#include "runtime/cpu_ahead.h"
#include "runtime/rt_state.h"
#include "task/fixture.h"

/* Bytes of every weight matrix that some task of the operator asks for, marked in `seen`. */
static void spans_of_op(const struct prog_header *p, const struct cpu_core *core, uint32_t op,
                        char *seen, char *base) {
    const struct prog_variant *v = PROG(p, VARIANT);
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++) {
        struct cpu_ahead a = {0};
        if (PROG(p, TASK)[i].op != op) continue;
        cpu_ahead_step(core, &a, i);
        for (uint32_t s = 0; s < a.n; s++)
            for (uint64_t b = 0; b < a.span[s].bytes; b++) seen[a.span[s].base - base + b]++;
    }
}

static void all_weights_once(uint32_t cuts, uint32_t n_workers) {
    const struct model_spec spec = fixture_spec(1, 64, 4, 2, 16, 160, 300);
    struct task_options o = {.device.n_workers = n_workers, .tasks_per_worker = 1};
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    assert_int_equal(fixture_compile(&d, &f, &spec, 1, 256, cuts, &o), QN_OK);
    assert_int_equal(fixture_program(&d, &f, 256, &p), QN_OK);
    const uint64_t n_tensors = p->section[SECTION_TENSOR].count;
    uint64_t total = 0;
    for (uint64_t i = 0; i < n_tensors; i++) total += PROG(p, TENSOR)[i].bytes;
    char *base = malloc(total), *seen = malloc(total);
    void **tensors = calloc(n_tensors, sizeof *tensors);
    total = 0;
    for (uint64_t i = 0; i < n_tensors; i++) {
        tensors[i] = base + total;
        total += PROG(p, TENSOR)[i].bytes;
    }
    struct cpu_core core = {.config = {.program = p}, .tensors = tensors};
    assert_int_equal(program_maps_make(&d, p, &core.maps), QN_OK);
    for (uint32_t op = 0; op < p->section[SECTION_OP].count; op++) {
        const struct prog_op *k = &PROG(p, OP)[op];
        memset(seen, 0, total);
        spans_of_op(p, &core, op, seen, base);
        for (uint64_t i = 0; i < n_tensors; i++) {
            const struct prog_tensor *t = &PROG(p, TENSOR)[i];
            bool wanted = false;
            for (int n = 0; n < OP_MAX_IN && k->kind != OP_EMBED; n++)
                wanted = wanted || (k->in[n] == i && t->role == PROG_WEIGHT && t->n_dims == 2);
            const char *at = seen + ((char *)tensors[i] - base);
            for (uint64_t b = 0; b < t->bytes; b++) assert_int_equal(at[b], wanted);
        }
    }
    free(base);
    free(seen);
    free(tensors);
    program_maps_fini(&core.maps);
    free(p);
    fixture_fini(&f);
}

static void every_weight_once(void **state) {
    (void)state;
    for (uint32_t workers = 1; workers <= 7; workers += 2)
        for (uint32_t cuts = 0; cuts <= KGRAPH_CUT_QKV; cuts += KGRAPH_CUT_QKV)
            all_weights_once(cuts, workers);
}

/* Not more than the cache holds, and nothing without a task. */
static void it_ends(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(1, 1024, 4, 2, 64, 4096, 300);
    struct task_options o = {.device.n_workers = 1, .tasks_per_worker = 1};
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    assert_int_equal(fixture_compile(&d, &f, &spec, 1, 256, 0, &o), QN_OK);
    assert_int_equal(fixture_program(&d, &f, 256, &p), QN_OK);
    const uint64_t n_tensors = p->section[SECTION_TENSOR].count;
    char *base = malloc(64 << 20);
    void **tensors = calloc(n_tensors, sizeof *tensors);
    for (uint64_t i = 0; i < n_tensors; i++) tensors[i] = base;
    struct cpu_core core = {.config = {.program = p}, .tensors = tensors};
    assert_int_equal(program_maps_make(&d, p, &core.maps), QN_OK);
    const struct prog_variant *v = PROG(p, VARIANT);
    struct cpu_ahead a = {0};
    cpu_ahead_step(&core, &a, RT_NONE);
    assert_int_equal(a.task, 0);
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++) {
        const bool mlp = PROG(p, TASK)[i].kind == OP_GATED_MLP;
        for (int k = 0; k < 100000; k++) cpu_ahead_step(&core, &a, i);
        assert_int_equal(a.task, i + 1);
        assert_true(a.asked <= CPU_AHEAD_BYTES);
        if (mlp) assert_int_equal(a.asked, CPU_AHEAD_BYTES);
    }
    free(base);
    free(tensors);
    program_maps_fini(&core.maps);
    free(p);
    fixture_fini(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_once),
        cmocka_unit_test(it_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

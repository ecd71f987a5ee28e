/* How many requests the KV cache is planned for, on a GPU that is only told of. */
#include "engine/engine.h"

#include "base/checked.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#undef fail

static const uint64_t H100_BYTES = (uint64_t)80994 << 20; /* what its driver says */

static int told_device(struct diag *d, const struct backend_config *config,
                       struct backend_device *out) {
    (void)d, (void)config;
    *out = (struct backend_device){.compute = device_cuda(90, 132, 25), .memory_bytes = H100_BYTES};
    return QN_OK;
}

static void ok(const struct diag *d, int rc) {
    if (rc != QN_OK) print_error("%s\n", d->message);
    assert_int_equal(rc, QN_OK);
}

/* Plans Qwen3-8B before compiling and, if `whole`, compiles and adds up what CUDA takes. */
static void make_plan(const qn_engine_params *given, bool whole, struct engine_plan *plan,
                      qn_engine_info *info) {
    struct backend told = backend_cuda;
    struct diag d = {0};
    struct prog_header *program;
    struct model *model;
    qn_engine_params p = *given, full;
    told.device = told_device;
    p.struct_size = sizeof p;
    p.model = "tests/gpu/configs/qwen3-8b";
    p.load_format = "dummy";
    ok(&d, engine_params(&d, &p, &full));
    ok(&d, engine_model(&d, &full, &model));
    if (whole) {
        ok(&d, engine_program(&d, &full, model, &told, NULL, NULL, plan, &program));
        ok(&d, plan_memory(&d, &told, program, plan, info));
        free(program);
    } else {
        ok(&d, plan_before(&d, &full, model, &told, plan));
    }
    model_free(model);
}

/* quern bench latency --batch-size 64 --input-len 64 --output-len 512 */
static void as_many_requests_as_were_asked_for_run_together(void **state) {
    (void)state;
    const qn_engine_params p = {.max_num_seqs = 64, .max_model_len = 576};
    struct engine_plan plan;
    qn_engine_info info;
    make_plan(&p, true, &plan, &info);
    const uint32_t each = CEIL_DIV(p.max_model_len, plan.compile.kv_block);
    assert_true(info.kv_blocks >= 64 * each);
    assert_true(info.total_bytes <= plan.memory_limit);
    assert_true(info.total_bytes + 4 * plan.kv_block_bytes > plan.memory_limit);
}

/* On a GPU the cache takes what is left; what the user says is what it takes. */
static void what_was_left_open_takes_the_rest_of_the_memory(void **state) {
    (void)state;
    const uint64_t low = (uint64_t)50 << 30, high = (uint64_t)60 << 30;
    const struct {
        qn_engine_params p;
        uint64_t low, high; /* bytes of the cache */
    } cases[] = {
        {{0}, low, high},
        {{.max_num_seqs = 64}, low, high},
        {{.max_model_len = 32768}, low, high},
        {{.max_num_seqs = 8, .max_model_len = 512}, low, high},
        {{.max_num_seqs = 1024, .max_model_len = 8192}, low, high},
        {{.gpu_memory_utilization = 0.5}, (uint64_t)18 << 30, (uint64_t)24 << 30},
        {{.kv_cache_memory_bytes = (uint64_t)6 << 30}, (uint64_t)5 << 30, (uint64_t)6 << 30},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct engine_plan plan;
        make_plan(&cases[i].p, false, &plan, NULL);
        const uint64_t bytes = plan.config.n_kv_blocks * plan.kv_block_bytes;
        assert_in_range(bytes, cases[i].low, cases[i].high);
        assert_true(plan.weight_bytes + bytes <= plan.memory_limit);
        assert_true((uint64_t)plan.config.n_kv_blocks * plan.compile.kv_block >=
                    plan.compile.max_model_len);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_requests_as_were_asked_for_run_together),
        cmocka_unit_test(what_was_left_open_takes_the_rest_of_the_memory),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}

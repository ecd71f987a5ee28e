/* test_routed_experts.c - qn_request_routed_experts: of requests that end early, of requests that
 * give way to others, of engines that keep none. test_engine compares the experts with the
 * reference's. */
#include "quern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MODEL "tests/golden/models/qwen3-moe-sparse" /* of five layers only layer 1 has experts */

enum { N_LAYERS = 5, SPARSE_LAYER = 1, N_PROMPT = 40, N_OUT = 80 };

/* Attention's sums depend on the block size, so all engines have the same. */
static qn_engine *open_engine(int keep, uint64_t kv_bytes) {
    qn_engine_params p;
    qn_engine *e = NULL;
    qn_error error;
    qn_engine_params_init(&p);
    p.model = MODEL;
    p.backend = "cpu";
    p.threads = 2;
    p.max_num_seqs = 4;
    p.max_model_len = 128;
    p.compile_options = "kv-block=16";
    p.enable_return_routed_experts = keep;
    p.kv_cache_memory_bytes = kv_bytes;
    if (qn_engine_open(&p, &e, &error) != QN_OK) fail_msg("%s", error.message);
    return e;
}

/* stop NULL: the length ends it. */
static qn_request *submit(qn_engine *e, const int32_t *stop) {
    int32_t ids[N_PROMPT];
    qn_sampling_params s;
    qn_request *r = NULL;
    qn_error error;
    for (int32_t i = 0; i < N_PROMPT; i++) ids[i] = (35 + i * 31) % 300;
    const qn_prompt p = {.struct_size = sizeof p, .ids = ids, .n_ids = N_PROMPT};
    qn_sampling_params_init(&s, NULL);
    s.temperature = 0;
    s.ignore_eos = 1;
    s.max_tokens = N_OUT;
    s.stop_token_ids = stop;
    s.n_stop_token_ids = stop != NULL;
    if (qn_request_submit(e, &p, &s, &r, &error) != QN_OK) fail_msg("%s", error.message);
    return r;
}

struct result {
    int32_t ids[N_OUT];
    size_t n;
    int finish;
    const uint16_t *experts; /* the request's */
    size_t n_positions;
};

/* Reads a request to its end. */
static struct result read_all(qn_request *r) {
    struct result out = {0};
    qn_output o = {.struct_size = sizeof o};
    qn_error error;
    do {
        if (qn_request_next(r, 30000, &o, &error) != QN_OK) fail_msg("%s", error.message);
        if (o.id >= 0) out.ids[out.n++] = o.id;
    } while (o.finish_reason == QN_RUNNING);
    out.finish = o.finish_reason;
    assert_int_equal(qn_request_routed_experts(r, &out.experts, &out.n_positions, NULL), QN_OK);
    assert_int_equal(out.n_positions, out.n > 0 ? N_PROMPT + out.n - 1 : 0);
    return out;
}

static void test_ends(void **state) {
    (void)state;
    const uint16_t *experts;
    size_t n;
    qn_engine *e = open_engine(1, 0);
    qn_request *whole = submit(e, NULL);
    assert_int_equal(qn_request_routed_experts(whole, &experts, &n, NULL), QN_EBUSY);
    const struct result all = read_all(whole);
    assert_int_equal(all.n, N_OUT);
    for (size_t i = 0; i < all.n_positions * N_LAYERS; i++)
        assert_int_equal(all.experts[i] == QN_NO_EXPERT, i % N_LAYERS != SPARSE_LAYER);

    qn_request *stopped = submit(e, &all.ids[20]);
    const struct result cut = read_all(stopped);
    assert_int_equal(cut.finish, QN_FINISH_STOP);
    assert_in_range(cut.n, 1, 21);
    assert_memory_equal(cut.experts, all.experts, cut.n_positions * N_LAYERS * sizeof *all.experts);

    qn_request *canceled = submit(e, NULL);
    qn_request_cancel(canceled);
    const struct result none = read_all(canceled);
    assert_int_equal(none.finish, QN_FINISH_ABORT);
    assert_int_equal(none.n, 0);
    qn_request_free(canceled);
    qn_request_free(stopped);
    qn_request_free(whole);
    qn_engine_close(e);
}

static void test_preempted(void **state) {
    (void)state;
    enum { N = 6 };
    uint32_t n_preempted = 0;
    qn_request *alone, *r[N];
    qn_request_stats stats = {.struct_size = sizeof stats};
    qn_engine_info info = {.struct_size = sizeof info};
    qn_engine *roomy = open_engine(1, 0);
    qn_engine_get_info(roomy, &info);
    const struct result want = read_all(alone = submit(roomy, NULL));
    qn_engine *small = open_engine(1, 160 * info.kv_bytes_per_token); /* 1.25 requests of 128 */
    for (int i = 0; i < N; i++) r[i] = submit(small, NULL);
    for (int i = 0; i < N; i++) {
        const struct result have = read_all(r[i]);
        assert_memory_equal(have.ids, want.ids, sizeof want.ids);
        assert_memory_equal(have.experts, want.experts,
                            want.n_positions * N_LAYERS * sizeof *want.experts);
        assert_int_equal(qn_request_get_stats(r[i], &stats), QN_OK);
        n_preempted += stats.preemptions;
    }
    assert_true(n_preempted > 0);
    for (int i = 0; i < N; i++) qn_request_free(r[i]);
    qn_request_free(alone);
    qn_engine_close(small);
    qn_engine_close(roomy);
}

static void test_not_kept(void **state) {
    (void)state;
    const uint16_t *experts;
    size_t n;
    qn_engine *e = open_engine(0, 0);
    qn_request *r = submit(e, NULL);
    assert_int_equal(qn_request_routed_experts(r, &experts, &n, NULL), QN_EINVAL);
    qn_request_free(r);
    qn_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_preempted),
        cmocka_unit_test(test_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

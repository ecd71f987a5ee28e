/* test_masks.c - masks from the host to SAMPLE, on the CPU and, where there is one or an emulated
 * one, on a GPU: a guided request has the tokens that its masks allow, the same bits alone, in
 * company and from a host that is late; a host that is late delays nobody else. QN_TEST: tests by a
 * pattern of names; QN_TEST_SHORT (any value): few tokens. */
#include "engine/cuda_rig.h"

#define ANY "tests/golden/models/qwen3-tied" /* supported by every backend */

enum { N_TOKENS = 10, N_SHORT = 4, N_COMPANY = 4, LONGEST_DELAY = 3 };

/* What the test's host does for one request. */
struct guided {
    struct request q;
    uint32_t delay; /* looks at it that find a new token and do nothing */
    bool held;      /* from its second mask on it gets none */
    uint32_t slot, n_masks, waited;
};

/* Output tokens of each request. */
static uint32_t n_tokens(void) {
    return getenv("QN_TEST_SHORT") ? N_SHORT : N_TOKENS;
}

static uint32_t vocab_of(const struct rig *r) {
    return r->model->spec.vocab;
}

/* A fifth of the vocabulary, another one after each token. */
static bool allowed(int32_t last, uint32_t n, uint32_t id) {
    return (id * 7 + n * 3 + (uint32_t)last) % 5 == 0;
}

static void make_mask(int32_t last, uint32_t n, uint32_t vocab, uint32_t *mask) {
    memset(mask, 0, ((vocab + 31) / 32) * sizeof *mask);
    for (uint32_t id = 0; id < vocab; id++)
        if (allowed(last, n, id)) mask[id / 32] |= 1u << id % 32;
}

static void submit_guided(struct rig *r, struct guided *g) {
    struct diag d = {0};
    uint32_t *mask = calloc(vocab_of(r) / 32 + 1, sizeof *mask);
    const struct rt_extras extras = {.mask = mask};
    struct rt_request runtime = runtime_request(&g->q);
    runtime.guided = 1;
    make_mask(0, 0, vocab_of(r), mask);
    g->n_masks = 1;
    if (r->backend->submit(&d, r->instance, &runtime, &extras, g->q.prompt, &g->slot) != QN_OK)
        DIE("%s", d.message);
    free(mask);
}

/* The next mask, if its time has come. Whether the request may still have tokens. */
static bool serve(struct rig *r, struct guided *g) {
    struct mailbox *m = r->backend->mailbox(r->instance);
    const int32_t *tokens;
    const uint32_t n = mailbox_given(m, g->slot, &tokens);
    if (n == g->q.max_tokens) return false;
    if (n < g->n_masks || g->held || g->waited++ < g->delay) return true;
    uint32_t *mask = calloc(vocab_of(r) / 32 + 1, sizeof *mask);
    make_mask(tokens[n - 1], n, vocab_of(r), mask);
    mailbox_mask(m, g->slot, n, mask);
    free(mask);
    g->n_masks++;
    g->waited = 0;
    return true;
}

static void serve_all(struct rig *r, struct guided *g, size_t n) {
    struct diag d = {0};
    uint32_t seen = 0;
    for (bool more = true; more;) {
        more = false;
        if (r->backend->wait(&d, r->instance, &seen, 0.001) != QN_OK) DIE("%s", d.message);
        for (size_t i = 0; i < n; i++) more |= serve(r, &g[i]);
    }
}

static void finish(struct rig *r, uint32_t slot, struct result *out) {
    struct diag d = {0};
    if (collect(&d, r, slot, out) != QN_OK) DIE("%s", d.message);
}

static void assert_allowed(const struct result *out) {
    assert_int_equal(out->n, n_tokens());
    for (uint32_t i = 0; i < out->n; i++)
        if (!allowed(i > 0 ? out->ids[i - 1] : 0, i, (uint32_t)out->ids[i]))
            DIE("token %u is %d, which the mask does not allow", i, out->ids[i]);
}

static struct guided guided(const struct rig *r, uint32_t seed) {
    /* The prompt of 64 is one whole block: its last row must not be shared while it may be
     * computed again. */
    return (struct guided){
        .q = made_up(seed, seed % 2 ? 64 : 9, n_tokens(), vocab_of(r), seed % 3 ? 0.8f : 0)};
}

/* Alone and on time; then together with others, masked and not, from a host that is late. */
static void check_same(const struct backend *backend) {
    struct rig r;
    struct guided g[N_COMPANY], free_one;
    struct result alone[N_COMPANY], together;
    open_well(backend, &(struct rig_options){.dir = ANY, .prefix_cache = true}, &r);
    for (uint32_t i = 0; i < N_COMPANY; i++) {
        g[i] = guided(&r, i);
        submit_guided(&r, &g[i]);
        serve_all(&r, &g[i], 1);
        finish(&r, g[i].slot, &alone[i]);
        assert_allowed(&alone[i]);
    }
    free_one = guided(&r, 1);
    struct diag d = {0};
    if (submit(&d, &r, &free_one.q, &free_one.slot) != QN_OK) DIE("%s", d.message);
    for (uint32_t i = 0; i < N_COMPANY; i++) {
        g[i] = guided(&r, i);
        g[i].delay = i % (LONGEST_DELAY + 1);
        submit_guided(&r, &g[i]);
    }
    serve_all(&r, g, N_COMPANY);
    for (uint32_t i = 0; i < N_COMPANY; i++) {
        finish(&r, g[i].slot, &together);
        assert_same(&alone[i], &together, "in company");
    }
    finish(&r, free_one.slot, &together);
    rig_close(&r);
}

/* One request has no second mask until all others have ended. */
static void check_late(const struct backend *backend) {
    struct rig r;
    struct guided g[2], free_one;
    struct result late, out;
    struct diag d = {0};
    open_well(backend, &(struct rig_options){.dir = ANY}, &r);
    g[0] = guided(&r, 1);
    g[0].held = true;
    g[1] = guided(&r, 2);
    free_one = guided(&r, 3);
    for (int i = 0; i < 2; i++) submit_guided(&r, &g[i]);
    if (submit(&d, &r, &free_one.q, &free_one.slot) != QN_OK) DIE("%s", d.message);
    serve_all(&r, &g[1], 1);
    finish(&r, g[1].slot, &out);
    assert_allowed(&out);
    finish(&r, free_one.slot, &out);
    assert_int_equal(out.n, n_tokens());
    const int32_t *tokens;
    assert_in_range(mailbox_given(r.backend->mailbox(r.instance), g[0].slot, &tokens), 0, 1);
    g[0].held = false;
    serve_all(&r, g, 1);
    finish(&r, g[0].slot, &late);
    assert_allowed(&late);
    rig_close(&r);
}

/* A request that waits for a mask can be cancelled. */
static void check_cancel(const struct backend *backend) {
    struct rig r;
    struct result out;
    struct diag d = {0};
    open_well(backend, &(struct rig_options){.dir = ANY}, &r);
    struct guided g = guided(&r, 1);
    g.held = true;
    submit_guided(&r, &g);
    const int32_t *tokens;
    uint32_t seen = 0;
    while (mailbox_given(r.backend->mailbox(r.instance), g.slot, &tokens) == 0)
        if (r.backend->wait(&d, r.instance, &seen, 0.01) != QN_OK) DIE("%s", d.message);
    if (r.backend->cancel(&d, r.instance, g.slot) != QN_OK) DIE("%s", d.message);
    finish(&r, g.slot, &out);
    assert_int_equal(out.n, 1);
    struct rt_request unmasked = runtime_request(&g.q);
    unmasked.guided = 1;
    assert_int_equal(r.backend->submit(&d, r.instance, &unmasked, NULL, g.q.prompt, &g.slot),
                     QN_EINVAL);
    rig_close(&r);
}

static void on_cpu(void (*check)(const struct backend *backend)) {
    check(&backend_cpu);
}

static void on_gpu(void (*check)(const struct backend *backend)) {
    struct diag d = {0};
    if (backend_cuda.available(&d) != QN_OK) {
        print_message("skipped: %s\n", d.message);
        skip();
    }
    check(&backend_cuda);
}

#define TESTS_OF(check)                                                                            \
    static void test_##check##_cpu(void **state) {                                                 \
        (void)state;                                                                               \
        on_cpu(check_##check);                                                                     \
    }                                                                                              \
    static void test_##check##_gpu(void **state) {                                                 \
        (void)state;                                                                               \
        on_gpu(check_##check);                                                                     \
    }
TESTS_OF(same)
TESTS_OF(late)
TESTS_OF(cancel)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_cpu),   cmocka_unit_test(test_same_gpu),
        cmocka_unit_test(test_late_cpu),   cmocka_unit_test(test_late_gpu),
        cmocka_unit_test(test_cancel_cpu), cmocka_unit_test(test_cancel_gpu),
    };
    const char *filter = getenv("QN_TEST");
    if (filter != NULL) cmocka_set_test_filter(filter);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

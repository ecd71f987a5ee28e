/* Two GPUs that run one program, each for itself: the requests of a group go to both ranks, which
 * give the same tokens; a rank that cannot open or that breaks is named, and nothing is left
 * behind. Skips where there are no two GPUs; tests/emulator pretends them. */
#include "engine/cuda_rig.h"

#include "engine/cuda_group.h"

#define ANY "tests/golden/models/qwen3-tied"

enum { N_RANKS = 2, N_MIX = 4, ROUNDS = 2 };

static void need_two_gpus(void) {
    struct diag d = {0};
    struct cuda_api api;
    int n = 0, rc = backend_cuda.available(&d);
    if (rc == QN_OK) rc = cuda_api_open(&d, NULL, &api);
    if (rc == QN_OK) {
        rc = cuda_device_count(&d, &api, &n);
        cuda_api_close(&api);
    }
    if (rc == QN_OK && n >= N_RANKS) return;
    print_message("skipped: %s\n", rc != QN_OK ? d.message : "one GPU");
    skip();
}

static struct cuda_group *group_of(struct rig *r) {
    return backend_cuda_group(r->instance);
}

/* What a rank itself has given of a request. */
static void read_rank(struct rig *r, uint32_t rank, uint32_t slot, const struct request *q,
                      struct result *out) {
    const struct rt *rt = &group_of(r)->ranks[rank].host_rt;
    const uint64_t first = (uint64_t)slot * r->program->max_model_len + q->n_prompt;
    memset(out, 0, sizeof *out);
    assert_int_not_equal(rt_host_load_acquire(&rt->posts[slot].finish), RT_RUNNING);
    out->n = rt_host_load_acquire(&rt->posts[slot].n_out);
    memcpy(out->ids, rt->out_tokens + first, out->n * sizeof *out->ids);
    memcpy(out->logprobs, rt->out_logprobs + first, out->n * sizeof *out->logprobs);
}

static void mix(struct request q[N_MIX], uint32_t vocab) {
    static const uint32_t n_prompt[N_MIX] = {1, 5, 17, 40};
    for (uint32_t i = 0; i < N_MIX; i++)
        q[i] = made_up(i + 1, n_prompt[i], 4 + 2 * i, vocab, i % 2 ? 0.8f : 0);
}

/* Waits until a request has ended on all ranks. */
static void await_end(struct rig *r, uint32_t slot, struct mailbox_view *view) {
    struct diag d = {0};
    uint32_t seen = 0;
    double waited = 0;
    do {
        if (r->backend->poll(&d, r->instance, slot, view) != QN_OK ||
            r->backend->wait(&d, r->instance, &seen, 0.05) != QN_OK)
            DIE("%s", d.message);
        waited += 0.05;
    } while (view->finish == RT_RUNNING && waited < PATIENCE_S);
    assert_int_not_equal(view->finish, RT_RUNNING);
}

/* All requests at once, twice, with an idle time in between: each rank has the tokens that one GPU
 * alone gives. */
static void test_ranks_agree(void **state) {
    (void)state;
    need_two_gpus();
    static struct request q[N_MIX];
    static struct result want[N_MIX], have;
    struct diag d = {0};
    struct rig r;
    open_well(&backend_cuda, &(struct rig_options){.dir = ANY}, &r);
    mix(q, r.model->spec.vocab);
    for (uint32_t i = 0; i < N_MIX; i++) generate(&r, &q[i], 1, &want[i]);
    rig_close(&r);
    open_well(&backend_cuda, &(struct rig_options){.dir = ANY, .n_ranks = N_RANKS}, &r);
    for (int round = 1; round <= ROUNDS; round++) {
        uint32_t slots[N_MIX];
        for (uint32_t i = 0; i < N_MIX; i++)
            assert_int_equal(submit(&d, &r, &q[i], &slots[i]), QN_OK);
        for (uint32_t i = 0; i < N_MIX; i++) {
            struct mailbox_view view;
            await_end(&r, slots[i], &view);
            for (uint32_t rank = 0; rank < N_RANKS; rank++) {
                read_rank(&r, rank, slots[i], &q[i], &have);
                assert_same(&want[i], &have, rank == 0 ? "rank 0" : "rank 1");
            }
            assert_int_equal(view.n_out, have.n);
            assert_int_equal(r.backend->release(&d, r.instance, slots[i]), QN_OK);
        }
        assert_int_equal(cuda_group_wait_idle(&d, group_of(&r)), QN_OK);
        for (uint32_t rank = 0; rank < N_RANKS; rank++)
            assert_in_range(cuda_run_launches(&group_of(&r)->ranks[rank].run), round, 2 * round);
    }
    rig_close(&r);
}

/* A cancel reaches both; the slot is free when both have let go of it, and of the same number
 * again. */
static void test_cancel(void **state) {
    (void)state;
    need_two_gpus();
    struct diag d = {0};
    struct mailbox_view view;
    static struct result have[N_RANKS];
    struct rig r;
    open_well(&backend_cuda, &(struct rig_options){.dir = ANY, .n_ranks = N_RANKS}, &r);
    const struct request long_one = made_up(1, 3, MAX_LEN - 3, r.model->spec.vocab, 0),
                         next = made_up(2, 3, 5, r.model->spec.vocab, 0);
    uint32_t slot, again;
    assert_int_equal(submit(&d, &r, &long_one, &slot), QN_OK);
    assert_int_equal(r.backend->release(&d, r.instance, slot), QN_EBUSY);
    assert_int_equal(r.backend->cancel(&d, r.instance, slot), QN_OK);
    await_end(&r, slot, &view);
    assert_int_equal(view.finish, RT_FINISH_ABORT);
    assert_int_equal(r.backend->release(&d, r.instance, slot), QN_OK);
    assert_int_equal(submit(&d, &r, &next, &again), QN_OK);
    assert_int_equal(again, slot);
    await_end(&r, again, &view);
    for (uint32_t rank = 0; rank < N_RANKS; rank++) read_rank(&r, rank, again, &next, &have[rank]);
    assert_int_equal(have[0].n, 5);
    assert_same(&have[0], &have[1], "rank 1");
    rig_close(&r);
}

/* On one rank's GPU the tasks that wait for an event want a trigger that never comes. */
static void break_rank(struct rig *r, uint32_t rank) {
    const struct cuda_rank *of = &group_of(r)->ranks[rank];
    const struct cuda_api *api = of->shared->api;
    const struct prog_header *p = r->program;
    const struct prog_variant *v = PROG(p, VARIANT);
    uint32_t at = v->first_event + v->n_events / 2;
    while (PROG(p, EVENT)[at].transport != TRANSPORT_COUNTER || PROG(p, EVENT)[at].n_tasks == 0)
        at++;
    const struct prog_event *event = &PROG(p, EVENT)[at];
    cuda_rank_enter(of);
    for (uint32_t i = event->first_task; i < event->first_task + event->n_tasks; i++) {
        const cu_pointer there = of->blocks[CUDA_BLOCK_TASKS] + i * sizeof(struct cuda_task);
        struct cuda_task task;
        assert_int_equal(api->cuMemcpyDtoHAsync_v2(&task, there, sizeof task, of->stream), 0);
        assert_int_equal(api->cuStreamSynchronize(of->stream), 0);
        task.wait_triggers++;
        assert_int_equal(api->cuMemcpyHtoDAsync_v2(there, &task, sizeof task, of->stream), 0);
        assert_int_equal(api->cuStreamSynchronize(of->stream), 0);
    }
    cuda_rank_leave(of);
}

/* One rank stalls: the request does not end although the other rank has all of it, and whoever
 * asks hears which rank it was. */
static void test_one_rank_stalls(void **state) {
    (void)state;
    need_two_gpus();
    static struct result out;
    struct diag d = {0};
    struct rig r;
    uint32_t slot;
    setenv("QN_DEADLINE_MS", "2000", 1);
    open_well(&backend_cuda, &(struct rig_options){.dir = ANY, .n_ranks = N_RANKS}, &r);
    break_rank(&r, 1);
    const struct request q = made_up(1, 1, 3, r.model->spec.vocab, 0);
    assert_int_equal(submit(&d, &r, &q, &slot), QN_OK);
    assert_int_equal(collect(&d, &r, slot, &out), QN_ESTALL);
    print_message("%s\n", d.message);
    assert_non_null(strstr(d.message, "rank 1 of 2 (GPU 1): "));
    assert_non_null(strstr(d.message, "event"));
    read_rank(&r, 0, slot, &q, &out);
    assert_int_equal(out.n, 3);
    rig_close(&r);
    setenv("QN_DEADLINE_MS", "30000", 1);
}

static int open_fails(struct diag *d) {
    struct rig r;
    diag_clear(d);
    const int rc =
        rig_open(d, &backend_cuda, &(struct rig_options){.dir = ANY, .n_ranks = N_RANKS}, &r);
    assert_null(r.instance);
    rig_close(&r);
    print_message("%s\n", d->message);
    return rc;
}

/* What the second GPU lacks is said, and what the first one had taken is given back. */
static void test_opening_fails(void **state) {
    (void)state;
    need_two_gpus();
    struct diag d = {0};
    struct cuda_api api;
    struct cuda_device second;
    cu_context context;
    cu_pointer block;
    size_t before = 0, after = 0, total;
    assert_int_equal(cuda_api_open(&d, NULL, &api), QN_OK);
    assert_int_equal(cuda_device_find(&d, &api, 1, &second), QN_OK);
    setenv("QN_CUDA_DEVICE", "1", 1);
    assert_int_equal(open_fails(&d), QN_EDEVICE);
    assert_non_null(strstr(d.message, "for 2 GPUs, from GPU 1 on"));
    unsetenv("QN_CUDA_DEVICE");
    assert_int_equal(api.cuCtxCreate_v2(&context, 0, second.handle), CU_SUCCESS);
    assert_int_equal(api.cuMemGetInfo_v2(&before, &total), CU_SUCCESS);
    assert_int_equal(api.cuMemAlloc_v2(&block, before - ((size_t)64 << 20)), CU_SUCCESS);
    assert_int_not_equal(open_fails(&d), QN_OK); /* a card may lack room for the context already */
    assert_int_equal(api.cuMemFree_v2(block), CU_SUCCESS);
    assert_int_equal(api.cuMemGetInfo_v2(&after, &total), CU_SUCCESS);
    if (getenv("QN_EMU_DEVICES") != NULL) assert_int_equal(before, after);
    api.cuCtxDestroy_v2(context);
    cuda_api_close(&api);
}

/* Only the emulated driver can pretend this. */
static void test_kinds_differ(void **state) {
    (void)state;
    need_two_gpus();
    struct diag d = {0};
    if (getenv("QN_EMU_DEVICES") == NULL) skip();
    setenv("QN_EMU_ARCH", "90,80", 1);
    assert_int_equal(open_fails(&d), QN_EDEVICE);
    assert_non_null(strstr(d.message, "GPU 1 an sm_80"));
    unsetenv("QN_EMU_ARCH");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_agree),     cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_one_rank_stalls), cmocka_unit_test(test_opening_fails),
        cmocka_unit_test(test_kinds_differ),
    };
    if (tests_listed(tests, COUNT_OF(tests))) return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

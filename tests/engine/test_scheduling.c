/* Many requests on one engine, by the public interface: what they share, what they take from each
 * other, in which order they run, and how an event loop hears of them. On the CPU. */
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/fair_queue.h"
#include "runtime/cpu_backend.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>
#undef fail

#define TINY   "models/tiny"
#define GOLDEN "tests/golden/models/"
enum { MOST = 32, TOKENS = 4 };

struct answer {
    int32_t ids[256];
    float logprobs[256];
    size_t n;
    int finish;
    qn_request_stats stats;
};

static qn_engine_params params(void) {
    qn_engine_params p;
    qn_engine_params_init(&p);
    p.model = TINY;
    p.threads = 2;
    return p;
}

static qn_engine *open_engine(const qn_engine_params *p) {
    qn_engine *e;
    qn_error error;
    if (qn_engine_open(p, &e, &error) != QN_OK) print_error("%s\n", error.message);
    assert_non_null(e);
    return e;
}

static qn_sampling_params sampling(uint32_t max_tokens, uint64_t seed) {
    qn_sampling_params s;
    qn_sampling_params_init(&s, NULL);
    s.max_tokens = max_tokens;
    s.temperature = seed % 2 ? 0.8f : 0;
    s.ignore_eos = 1;
    s.has_seed = 1;
    s.seed = seed;
    return s;
}

/* Text `seed`, n tokens. */
static void text(int32_t *ids, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(10 + (seed * 7919 + i * 104729 + i * i * 31) % 2400);
}

static qn_request *submit(qn_engine *e, const int32_t *ids, size_t n, const qn_sampling_params *s,
                          int32_t priority, uint32_t space) {
    qn_error error;
    qn_request *r;
    const qn_prompt prompt = {.struct_size = sizeof prompt,
                              .ids = ids,
                              .n_ids = n,
                              .priority = priority,
                              .cache_space = space};
    if (qn_request_submit(e, &prompt, s, &r, &error) != QN_OK) print_error("%s\n", error.message);
    assert_non_null(r);
    return r;
}

/* All of its tokens; frees it. */
static void finish(qn_request *r, struct answer *a) {
    qn_error error;
    qn_output out = {.struct_size = sizeof out};
    a->n = 0;
    do {
        if (qn_request_next(r, 60000, &out, &error) != QN_OK) print_error("%s\n", error.message);
        if (out.id < 0) break;
        a->ids[a->n] = out.id;
        a->logprobs[a->n++] = out.logprob;
    } while (out.finish_reason == QN_RUNNING);
    a->finish = out.finish_reason;
    a->stats.struct_size = sizeof a->stats;
    assert_int_equal(qn_request_get_stats(r, &a->stats), QN_OK);
    assert_int_equal(a->stats.output_tokens, a->n);
    qn_request_free(r);
}

static void assert_same(const struct answer *a, const struct answer *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
    assert_memory_equal(a->logprobs, b->logprobs, a->n * sizeof *a->logprobs);
}

static qn_engine_stats stats_of(qn_engine *e) {
    qn_engine_stats s = {.struct_size = sizeof s};
    qn_engine_info info = {.struct_size = sizeof info};
    assert_int_equal(qn_engine_get_stats(e, &s), QN_OK);
    assert_int_equal(qn_engine_get_info(e, &info), QN_OK);
    assert_int_equal(s.kv_blocks_held + s.kv_blocks_cached + s.kv_blocks_free, info.kv_blocks);
    return s;
}

/* The engine once nothing runs, which is a moment after the last request was freed. */
static qn_engine_stats idle_stats(qn_engine *e) {
    qn_engine_stats s = stats_of(e);
    for (int i = 0; i < 5000 && s.kv_blocks_held + s.requests_running > 0; i++) {
        usleep(1000);
        s = stats_of(e);
    }
    assert_int_equal(s.kv_blocks_held, 0);
    assert_int_equal(s.requests_running, 0);
    assert_int_equal(s.requests_waiting, 0);
    return s;
}

/* ---- sharing ---- */

static struct answer answers[2][MOST];

/* 32 prompts of 250 tokens that share 230. Returns the rows that were computed. */
static uint64_t run_shared(bool cached, struct answer *to, uint32_t *n_cached) {
    qn_engine_params p = params();
    int32_t ids[250];
    qn_request *r[MOST];
    p.no_prefix_caching = !cached;
    p.max_num_seqs = 16;
    p.max_num_batched_tokens = 64;
    qn_engine *e = open_engine(&p);
    for (uint32_t i = 0; i < MOST; i++) {
        const qn_sampling_params s = sampling(TOKENS, i);
        text(ids, 230, 1);
        text(ids + 230, 20, 100 + i);
        r[i] = submit(e, ids, 250, &s, 0, 0);
    }
    *n_cached = 0;
    for (uint32_t i = 0; i < MOST; i++) {
        finish(r[i], &to[i]);
        *n_cached += to[i].stats.cached_tokens;
    }
    const qn_engine_stats now = idle_stats(e);
    assert_int_equal(now.prefix_cache_queries, MOST * 250);
    assert_int_equal(now.prefix_cache_hits, *n_cached);
    assert_true((now.kv_blocks_cached > 0) == cached);
    struct cpu_backend_stats stats; /* an instance begins with the backend */
    cpu_backend_stats(*(struct cpu_backend *const *)(void *)e->instance, &stats);
    qn_engine_close(e);
    return stats.n_rows;
}

/* What they have in common is computed once, and every bit is as without. */
static void prompts_that_begin_alike_are_computed_once(void **state) {
    (void)state;
    uint32_t n_cached;
    const uint64_t without = run_shared(false, answers[0], &n_cached);
    assert_int_equal(n_cached, 0);
    assert_int_equal(without, MOST * (250 + TOKENS - 1));
    const uint64_t rows = run_shared(true, answers[1], &n_cached);
    assert_int_equal(n_cached, (MOST - 1) * 192); /* whole blocks of 64 */
    assert_int_equal(rows, without - n_cached);
    const uint64_t distinct = 230 + MOST * (20 + 64 + TOKENS); /* a block's rest each */
    assert_true(rows <= distinct * 11 / 10);
    for (uint32_t i = 0; i < MOST; i++) assert_same(&answers[0][i], &answers[1][i]);
}

static void spaces_share_nothing(void **state) {
    (void)state;
    const qn_engine_params p = params();
    const qn_sampling_params s = sampling(4, 1);
    struct answer first, again, other;
    int32_t ids[200];
    qn_engine *e = open_engine(&p);
    text(ids, 200, 3);
    finish(submit(e, ids, 200, &s, 0, 1), &first);
    finish(submit(e, ids, 200, &s, 0, 1), &again);
    finish(submit(e, ids, 200, &s, 0, 2), &other);
    assert_int_equal(first.stats.cached_tokens, 0);
    assert_int_equal(again.stats.cached_tokens, 192);
    assert_int_equal(other.stats.cached_tokens, 0);
    assert_same(&first, &again);
    assert_same(&first, &other);
    qn_prompt bad = {.struct_size = sizeof bad, .ids = ids, .n_ids = 3, .cache_space = UINT32_MAX};
    qn_request *r;
    qn_error error;
    assert_int_equal(qn_request_submit(e, &bad, &s, &r, &error), QN_EINVAL);
    assert_non_null(strstr(error.message, "cache_space"));
    qn_engine_close(e);
}

/* ---- blocks run out ---- */

enum { GROWING = 8 };

static uint32_t run_growing(const qn_engine_params *p, struct answer *to) {
    qn_request *r[GROWING];
    int32_t ids[100];
    uint32_t n_preempted = 0;
    qn_engine *e = open_engine(p);
    for (uint32_t i = 0; i < GROWING; i++) {
        const qn_sampling_params s = sampling(130 + 8 * i, i);
        text(ids, 10 + 7 * i, i);
        r[i] = submit(e, ids, 10 + 7 * i, &s, 0, 0);
    }
    for (uint32_t i = 0; i < GROWING; i++) {
        finish(r[i], &to[i]);
        assert_int_equal(to[i].finish, QN_FINISH_LENGTH);
        n_preempted += to[i].stats.preemptions;
    }
    assert_int_equal(idle_stats(e).preemptions, n_preempted);
    qn_engine_close(e);
    return n_preempted;
}

/* A cache for a quarter of the need, and for one request: all finish, with the bits that they have
 * with room for all, whether what they gave up is still there or computed again. */
static void requests_give_way_and_go_on(void **state) {
    (void)state;
    qn_engine_params p = params();
    qn_engine_info info = {.struct_size = sizeof info};
    p.max_model_len = 320;
    p.max_num_seqs = GROWING;
    qn_engine *e = open_engine(&p);
    qn_engine_get_info(e, &info);
    qn_engine_close(e);
    assert_int_equal(run_growing(&p, answers[0]), 0);
    const uint64_t block = info.kv_bytes_per_token * info.kv_block;
    const uint64_t n_blocks[] = {7, 5}; /* of 25 or so; 5: max_model_len */
    for (size_t i = 0; i < 2; i++)
        for (int cached = 0; cached < 2; cached++) {
            p.kv_cache_memory_bytes = n_blocks[i] * block;
            p.no_prefix_caching = !cached;
            p.max_inter_token_latency_ms = cached ? 0.5 : 0; /* changes no bit */
            const uint32_t n_preempted = run_growing(&p, answers[1]);
            if (i == 0) assert_true(n_preempted > 0);
            for (uint32_t k = 0; k < GROWING; k++) assert_same(&answers[0][k], &answers[1][k]);
        }
}

/* Three requests for two places. */
static void an_engine_says_how_full_it_is(void **state) {
    (void)state;
    qn_engine_params p = params();
    p.max_num_seqs = 2;
    qn_engine *e = open_engine(&p);
    const qn_sampling_params s = sampling(0, 1);
    int32_t ids[100];
    qn_request *r[3];
    text(ids, 100, 5);
    qn_engine_stats now = idle_stats(e);
    assert_int_equal(now.kv_blocks_cached, 0);
    for (int i = 0; i < 3; i++) r[i] = submit(e, ids, 100, &s, 0, (uint32_t)i);
    qn_output out = {.struct_size = sizeof out};
    for (int i = 0; i < 2; i++) assert_int_equal(qn_request_next(r[i], 60000, &out, NULL), QN_OK);
    now = stats_of(e);
    assert_int_equal(now.requests_running, 2);
    assert_int_equal(now.requests_waiting, 1);
    assert_true(now.kv_blocks_held >= 4);
    assert_int_equal(now.prefix_cache_queries, 200);
    for (int i = 0; i < 3; i++) qn_request_free(r[i]);
    now = idle_stats(e);
    assert_true(now.kv_blocks_cached >= 2);
    now = (qn_engine_stats){.struct_size = offsetof(qn_engine_stats, kv_blocks_held),
                            .kv_blocks_held = 77};
    assert_int_equal(qn_engine_get_stats(e, &now), QN_OK);
    assert_int_equal(now.kv_blocks_held, 77);
    now.struct_size = 0;
    assert_int_equal(qn_engine_get_stats(e, &now), QN_EINVAL);
    qn_engine_close(e);
}

/* ---- any schedule ---- */

enum { N_SPECS = 12, N_DRAWN = 30 };

/* Fewer with QN_TEST_SHORT. */
static uint32_t n_specs = N_SPECS, n_drawn = N_DRAWN;

static uint32_t draw(uint64_t *seed, uint32_t n) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 33) % n);
}

/* Request number `spec`: some begin alike, some are sampled. */
static qn_request *submit_spec(qn_engine *e, uint32_t spec, int32_t priority) {
    const uint32_t n = 20 + spec * 53 % 170, shared = spec % 3 == 0 ? 0 : n * 3 / 4;
    const qn_sampling_params s = sampling(5 + spec * 29 % 90, spec);
    int32_t ids[200];
    text(ids, shared, 7);
    text(ids + shared, n - shared, 50 + spec);
    for (uint32_t i = 0; i < n; i++) ids[i] %= 300;
    return submit(e, ids, n, &s, priority, 0);
}

static void run_schedule(uint64_t seed, const struct answer *alone, uint32_t *n_cached,
                         uint32_t *n_preempted) {
    qn_engine_params p = params();
    qn_request *r[N_DRAWN];
    uint32_t spec[N_DRAWN];
    bool canceled[N_DRAWN];
    p.model = GOLDEN "qwen3";
    p.max_model_len = 320;
    p.max_num_seqs = 2 + draw(&seed, 8);
    p.max_num_batched_tokens = 1u << draw(&seed, 8);
    const uint32_t left = draw(&seed, 8); /* beside a request's blocks; half of the runs have few */
    p.kv_cache_memory_bytes = (5 + (left < 4 ? 0 : left)) * (uint64_t)64 * 512;
    p.no_prefix_caching = draw(&seed, 4) == 0;
    p.max_inter_token_latency_ms = draw(&seed, 2) ? 0.1 : 0;
    qn_engine *e = open_engine(&p);
    for (uint32_t i = 0; i < n_drawn; i++) {
        spec[i] = draw(&seed, n_specs);
        r[i] = submit_spec(e, spec[i], (int32_t)draw(&seed, 3));
        canceled[i] = draw(&seed, 5) == 0;
        const uint32_t other = draw(&seed, i + 1);
        if (draw(&seed, 3) == 0) (void)qn_engine_wait(e, (int)draw(&seed, 20), NULL);
        if (canceled[other]) qn_request_cancel(r[other]);
    }
    for (uint32_t i = 0; i < n_drawn; i++) {
        struct answer a;
        finish(r[i], &a);
        *n_cached += a.stats.cached_tokens;
        *n_preempted += a.stats.preemptions;
        if (a.finish == QN_FINISH_ABORT)
            assert_true(canceled[i]);
        else
            assert_same(&alone[spec[i]], &a);
    }
    (void)idle_stats(e);
    qn_engine_close(e);
}

/* With the real kernels: each request has the bits that it has alone. */
static void schedules_change_no_bit(void **state) {
    (void)state;
    const char *runs = getenv("QN_TEST_RUNS");
    const int n = runs != NULL ? atoi(runs) : 8;
    if (getenv("QN_TEST_SHORT") != NULL) n_specs = 4, n_drawn = 10;
    uint32_t n_cached = 0, n_preempted = 0;
    qn_engine_params p = params();
    p.model = GOLDEN "qwen3";
    p.max_model_len = 320;
    p.max_num_seqs = 1;
    p.no_prefix_caching = 1;
    qn_engine *e = open_engine(&p);
    for (uint32_t i = 0; i < n_specs; i++) finish(submit_spec(e, i, 0), &answers[0][i]);
    qn_engine_close(e);
    /* Who comes when is time's choice, too: so many schedules that both have happened. */
    for (int i = 0; i < n || (n >= 8 && i < 4 * n && (n_cached == 0 || n_preempted == 0)); i++)
        run_schedule(31 + (uint64_t)i, answers[0], &n_cached, &n_preempted);
    assert_true(n < 8 || (n_cached > 0 && n_preempted > 0));
}

/* ---- order ---- */

/* One place: priority first, then the spaces in turns, then arrival. */
static void the_queue_is_fair(void **state) {
    (void)state;
    enum { N = 9 };
    qn_engine_params p = params();
    p.max_num_seqs = 1;
    qn_engine *e = open_engine(&p);
    const qn_sampling_params s = sampling(4, 0);
    int32_t ids[8];
    text(ids, 8, 1);
    /* The first has the place at once. */
    const int32_t priority[N] = {0, 0, 0, 0, 0, 0, 5, -1, 0};
    const uint32_t space[N] = {1, 1, 1, 1, 2, 2, 2, 1, 1};
    const int order[N] = {0, 7, 1, 4, 2, 5, 3, 8, 6};
    qn_request *r[N], *ready[N];
    int n_ended = 0;
    for (int i = 0; i < N; i++) r[i] = submit(e, ids, 8, &s, priority[i], space[i]);
    while (n_ended < N) {
        size_t n;
        assert_int_equal(qn_engine_wait_any(e, 60000, ready, 1, &n, NULL), QN_OK);
        qn_output out = {.struct_size = sizeof out};
        assert_int_equal(qn_request_next(ready[0], 0, &out, NULL), QN_OK);
        if (out.finish_reason != QN_RUNNING) assert_ptr_equal(ready[0], r[order[n_ended++]]);
    }
    for (int i = 0; i < N; i++) qn_request_free(r[i]);
    qn_engine_close(e);
}

/* A space that always has one or two requests in the queue, as a client that waits for answers has,
 * does not keep another space's longer request from its turn. */
static void a_closed_loop_takes_turns(void **state) {
    (void)state;
    for (int n_loop = 1; n_loop <= 2; n_loop++) {
        struct fair_queue q = {0};
        struct fair_place loop[2] = {{.space = 1, .n_tokens = 8}, {.space = 1, .n_tokens = 8}};
        struct fair_place longer = {.space = 2, .n_tokens = 80}, *first;
        int n_taken = 0;
        for (int i = 0; i < n_loop; i++)
            assert_int_equal(fair_queue_add(NULL, &q, &loop[i]), QN_OK);
        assert_int_equal(fair_queue_add(NULL, &q, &longer), QN_OK);
        while ((first = fair_queue_first(&q)) != &longer) {
            fair_queue_take(&q);
            assert_int_equal(fair_queue_add(NULL, &q, first), QN_OK);
            assert_true(++n_taken <= n_loop);
        }
        /* Its next one waits for as many tokens as it has had. */
        fair_queue_take(&q);
        assert_int_equal(fair_queue_add(NULL, &q, &longer), QN_OK);
        for (n_taken = 0; (first = fair_queue_first(&q)) != &longer; n_taken++) {
            fair_queue_take(&q);
            assert_int_equal(fair_queue_add(NULL, &q, first), QN_OK);
        }
        assert_in_range(n_taken, 8, 11);
        fair_queue_fini(&q);
    }
}

/* Each request of another space: the queue remembers few of them. A request that gives up its turn
 * does not count. */
static void spaces_are_forgotten(void **state) {
    (void)state;
    enum { N = 5000 };
    struct fair_queue q = {0};
    struct fair_place waiting = {.space = 1, .n_tokens = 5}, other = {.space = N, .n_tokens = 5};
    static struct fair_place once[N];
    assert_int_equal(fair_queue_add(NULL, &q, &waiting), QN_OK);
    for (uint32_t i = 0; i < N; i++) {
        once[i] = (struct fair_place){.space = 2 + i, .n_tokens = 3, .priority = -1};
        assert_int_equal(fair_queue_add(NULL, &q, &once[i]), QN_OK);
        assert_ptr_equal(fair_queue_first(&q), &once[i]);
        fair_queue_take(&q);
        assert_true(q.n_idle <= FAIR_IDLE_MOST);
    }
    assert_int_equal(fair_queue_add(NULL, &q, &other), QN_OK);
    const uint64_t tag = other.tag;
    fair_queue_remove(&q, &other);
    fair_queue_remove(&q, &other);
    assert_int_equal(fair_queue_add(NULL, &q, &other), QN_OK);
    assert_int_equal(other.tag, tag);
    fair_queue_take(&q);
    fair_queue_take(&q);
    assert_null(fair_queue_first(&q));
    assert_int_equal(q.n_idle, 0);
    fair_queue_fini(&q);
}

/* KV blocks for two requests at a time, and many places: a space with one request does not wait for
 * all of a space with many, whether these have places or not. */
static void short_blocks_are_fair(void **state) {
    (void)state;
    enum { N = 24 };
    qn_engine_params p = params();
    p.max_num_seqs = 64;
    p.max_model_len = 256;
    p.no_prefix_caching = 1;
    p.kv_cache_memory_bytes = 8 * 393216; /* 8 blocks of 64 positions */
    qn_engine *e = open_engine(&p);
    const qn_sampling_params s = sampling(40, 0);
    int32_t ids[200];
    qn_request *r[N + 1], *ready[1];
    text(ids, 200, 1);
    for (int i = 0; i < N; i++) r[i] = submit(e, ids, 200, &s, 0, 1);
    r[N] = submit(e, ids, 200, &s, 0, 2);
    int n_before = 0;
    while (qn_request_finish_reason(r[N]) == QN_RUNNING) {
        size_t n;
        assert_int_equal(qn_engine_wait_any(e, 60000, ready, 1, &n, NULL), QN_OK);
        qn_output out = {.struct_size = sizeof out};
        assert_int_equal(qn_request_next(ready[0], 0, &out, NULL), QN_OK);
        n_before += ready[0] != r[N] && out.finish_reason != QN_RUNNING;
    }
    assert_in_range(n_before, 1, 13); /* two, eight that waited in places, two beside it */
    for (int i = 0; i <= N; i++) qn_request_free(r[i]);
    idle_stats(e);
    qn_engine_close(e);
}

/* A request that scores its prompt computes few positions at a time; another one of the same prompt
 * does not wait for it. */
static void a_scored_prompt_is_no_brake(void **state) {
    (void)state;
    enum { N = 900 };
    qn_engine_params p = params();
    p.max_num_seqs = 2;
    p.max_model_len = 1000;
    qn_engine *e = open_engine(&p);
    qn_sampling_params s = sampling(1, 0);
    int32_t ids[N];
    text(ids, N, 1);
    s.has_prompt_logprobs = 1;
    qn_request *scored = submit(e, ids, N, &s, 0, 0);
    s.has_prompt_logprobs = 0;
    const uint64_t start = clock_ns();
    qn_request *plain = submit(e, ids, N, &s, 0, 0);
    static struct answer a, b;
    finish(plain, &a);
    const uint64_t of_plain = clock_ns() - start;
    finish(scored, &b);
    assert_true(2 * of_plain < clock_ns() - start);
    assert_same(&a, &b);
    idle_stats(e);
    qn_engine_close(e);
}

static void the_queue_is_bounded(void **state) {
    (void)state;
    qn_engine_params p = params();
    p.max_num_seqs = 1;
    p.max_queue = 3;
    qn_engine *e = open_engine(&p);
    const qn_sampling_params s = sampling(200, 0);
    int32_t ids[8];
    qn_error error;
    qn_request *r[4], *more;
    text(ids, 8, 1);
    for (int i = 0; i < 4; i++) r[i] = submit(e, ids, 8, &s, 0, 0);
    const qn_prompt prompt = {.struct_size = sizeof prompt, .ids = ids, .n_ids = 8};
    assert_int_equal(qn_request_submit(e, &prompt, &s, &more, &error), QN_EBUSY);
    assert_non_null(strstr(error.message, "max_queue is 3"));
    assert_null(more);
    qn_request_cancel(r[2]); /* one that waits leaves room at once */
    assert_int_equal(qn_request_submit(e, &prompt, &s, &more, &error), QN_OK);
    qn_request_free(more);
    for (int i = 0; i < 4; i++) qn_request_free(r[i]);
    qn_engine_close(e);
}

/* ---- event loops ---- */

static bool is_readable(int fd, int timeout_ms) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, timeout_ms) == 1;
}

/* The descriptor is readable exactly while some request has something to give. */
static void an_event_loop_hears_of_output(void **state) {
    (void)state;
    const qn_engine_params p = params();
    qn_engine *e = open_engine(&p);
    const qn_sampling_params s = sampling(6, 0);
    int32_t ids[8];
    qn_error error;
    const int fd = qn_engine_fd(e, &error);
    assert_true(fd >= 0);
    assert_int_equal(qn_engine_fd(e, &error), fd);
    text(ids, 8, 1);
    assert_false(is_readable(fd, 20));
    qn_request *r[3];
    for (int i = 0; i < 3; i++) r[i] = submit(e, ids, 8, &s, 0, 0);
    for (int n_ended = 0; n_ended < 3;) {
        qn_request *ready[3];
        size_t n;
        assert_true(is_readable(fd, 60000)); /* and nobody else waits */
        assert_int_equal(qn_engine_wait_any(e, 0, ready, 3, &n, NULL), QN_OK);
        assert_in_range(n, 1, 3);
        qn_output out = {.struct_size = sizeof out};
        assert_int_equal(qn_request_next(ready[0], 0, &out, NULL), QN_OK);
        n_ended += out.finish_reason != QN_RUNNING;
    }
    assert_false(is_readable(fd, 0));
    for (int i = 0; i < 3; i++) qn_request_free(r[i]);
    qn_request *gone = submit(e, ids, 8, &s, 0, 0);
    assert_true(is_readable(fd, 60000));
    qn_request_free(gone);
    assert_false(is_readable(fd, 0));
    qn_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_that_begin_alike_are_computed_once),
        cmocka_unit_test(spaces_share_nothing),
        cmocka_unit_test(requests_give_way_and_go_on),
        cmocka_unit_test(an_engine_says_how_full_it_is),
        cmocka_unit_test(schedules_change_no_bit),
        cmocka_unit_test(the_queue_is_fair),
        cmocka_unit_test(a_closed_loop_takes_turns),
        cmocka_unit_test(spaces_are_forgotten),
        cmocka_unit_test(short_blocks_are_fair),
        cmocka_unit_test(a_scored_prompt_is_no_brake),
        cmocka_unit_test(the_queue_is_bounded),
        cmocka_unit_test(an_event_loop_hears_of_output),
    };
    return cmocka_run_group_tests_name("scheduling", tests, NULL, NULL);
}

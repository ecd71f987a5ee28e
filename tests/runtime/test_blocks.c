/* KV blocks: on demand, shared between requests that begin alike, evicted, taken away and computed
 * again; and how the rows of an iteration are shared out. On the interpreter, with tasks that keep
 * a cache of their own: its row of a position has the fingerprint of all tokens up to there, so
 * that a block that is not what a request takes it for shows at once. */
#include "base/checked.h"
#include "runtime/rt_boundary.h"
#include "runtime/rt_test.h"

enum { KV_BLOCK = 8, MAX_LEN = 64, N_SLOTS = 6, MAX_BLOCKS = 64, MAX_ROWS = 256, N_REQUESTS = 14 };

/* A request as the test knows it. */
struct asked {
    struct rt_request q;
    int32_t prompt[MAX_LEN];
    uint32_t slot, arrives, cancels; /* iterations; cancels 0: never */
    bool submitted, ended;
    struct mailbox_view end;
};

struct trial {
    struct prog_header *program;
    struct watch watch;
    struct task_sim sim;
    uint64_t rows[MAX_BLOCKS][KV_BLOCK]; /* the cache */
    struct asked asked[N_REQUESTS];
    uint32_t n_asked, n_iterations, n_rows;
    uint32_t first_slot, first_arrival; /* the running request that is first in order */
    uint32_t n_prompt_rows[N_SLOTS];    /* of the last iteration */
};

static uint64_t mix(uint64_t x, uint64_t y) {
    x = (x ^ y) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

/* ---- what tasks would read and write ---- */

static const int32_t *tokens_of(const struct rt_batch *b, uint32_t slot) {
    return b->tokens + (uint64_t)slot * b->max_model_len;
}

static uint64_t *row_of(struct trial *t, const struct rt_batch *b, uint32_t slot, uint32_t p) {
    const int32_t block = b->block_table[slot * b->max_blocks + p / KV_BLOCK];
    assert_true(block >= 0 && block < MAX_BLOCKS);
    return &t->rows[block][p % KV_BLOCK];
}

/* What lies in the cache before the iteration must be right for all positions before a request's
 * first row, and none of its rows may be one that another request has. */
static void read_cache(struct trial *t, const struct rt_batch *b, uint32_t row) {
    const struct rt *rt = &t->sim.core.rt;
    const uint32_t slot = (uint32_t)b->rows.slot[row], from = (uint32_t)b->rows.position[row];
    uint64_t print = 0;
    for (uint32_t p = 0; p < from; p++) {
        print = mix(print, (uint32_t)tokens_of(b, slot)[p]);
        assert_true(*row_of(t, b, slot, p) == print);
    }
    for (uint32_t i = row; i < b->rows.n_rows && b->rows.slot[i] == b->rows.slot[row]; i++) {
        const uint32_t p = (uint32_t)b->rows.position[i];
        const uint32_t k = (uint32_t)b->block_table[slot * b->max_blocks + p / KV_BLOCK];
        assert_int_equal(p, from + i - row);
        assert_true(rt_block_of(rt, k)->refs == 1 || rt_block_of(rt, k)->writer == slot);
        assert_true(!rt_block_registered(rt_block_of(rt, k)) || rt_block_of(rt, k)->writer == slot);
    }
}

static void write_cache(struct trial *t, const struct rt_batch *b, uint32_t row) {
    const uint32_t slot = (uint32_t)b->rows.slot[row], p = (uint32_t)b->rows.position[row];
    uint64_t print = 0;
    for (uint32_t i = 0; i <= p; i++) print = mix(print, (uint32_t)tokens_of(b, slot)[i]);
    *row_of(t, b, slot, p) = print;
}

/* The running request that is first in order does not give way. */
static void watch_first(struct trial *t) {
    const struct rt *rt = &t->sim.core.rt;
    const struct rt_turn *was = rt_turn_of(rt, t->first_slot);
    if (t->first_slot != RT_NONE && was->arrival == t->first_arrival)
        assert_int_not_equal(rt->batch->slots[t->first_slot].state, SLOT_WAITING);
    t->first_slot = rt->running[0];
    for (uint32_t i = 1; i < rt->control->n_running; i++)
        if (rt_comes_before(rt, rt->running[i], t->first_slot)) t->first_slot = rt->running[i];
    t->first_arrival = rt_turn_of(rt, t->first_slot)->arrival;
}

static void come_and_go(struct trial *t);

static void look(void *user, const struct rt_batch *b) {
    struct trial *t = user;
    const struct rt_rows *rows = &b->rows;
    assert_true(rows->n_rows > 0 && rows->n_rows <= MAX_ROWS);
    assert_true(rt_blocks_sound(&t->sim.core.rt));
    watch_first(t);
    for (uint32_t i = 0; i < t->sim.core.rt.control->n_running; i++) {
        const struct rt_slot *s = &b->slots[t->sim.core.rt.running[i]];
        assert_true(s->n_blocks >= rt_blocks_wanted(b, s, 0));
    }
    for (uint32_t i = 0; i < rows->n_rows; i++) {
        assert_int_equal(rows->token[i], tokens_of(b, (uint32_t)rows->slot[i])[rows->position[i]]);
        if (i == 0 || rows->slot[i] != rows->slot[i - 1]) read_cache(t, b, i);
    }
    memset(t->n_prompt_rows, 0, sizeof t->n_prompt_rows);
    for (uint32_t i = 0; i < rows->n_rows; i++) {
        write_cache(t, b, i);
        t->n_prompt_rows[rows->slot[i]]++;
    }
    t->n_iterations++;
    t->n_rows += rows->n_rows;
    come_and_go(t);
}

/* ---- requests ---- */

static bool follows(const struct asked *a, const struct mailbox_view *v) {
    int32_t token = a->prompt[a->q.n_prompt - 1];
    for (uint32_t i = 0; i < v->n_out; i++) {
        token = watch_next_token(token, a->q.n_prompt + i);
        if (v->tokens[i] != token || v->logprobs[i] != -(float)token) return false;
    }
    for (uint32_t i = 0; v->n_out > 0 && i < v->n_scored; i++) {
        const uint32_t p = a->q.n_prompt - v->n_scored + i;
        if (v->scored[i] != watch_score(a->prompt[p], p)) return false;
    }
    return true;
}

/* Takes the result, and gives the slot back. */
static void take(struct trial *t, struct asked *a) {
    struct diag d = {0};
    EXPECT_OK(&d, mailbox_poll(&d, &t->sim.core.mailbox, a->slot, &a->end));
    if (a->end.finish == RT_RUNNING) return;
    assert_true(follows(a, &a->end));
    assert_true(a->end.finish == RT_FINISH_LENGTH ? a->end.n_out == a->q.max_tokens
                                                  : a->cancels > 0);
    EXPECT_OK(&d, mailbox_release(&d, &t->sim.core.mailbox, a->slot));
    a->ended = true;
}

static void submit_one(struct trial *t, struct asked *a) {
    struct diag d = {0};
    const int rc = mailbox_submit(&d, &t->sim.core.mailbox, &a->q, a->prompt, &a->slot);
    a->submitted = rc == QN_OK;
    if (rc != QN_EBUSY) EXPECT_OK(&d, rc);
}

/* What the host does while an iteration runs. */
static void come_and_go(struct trial *t) {
    struct diag d = {0};
    for (uint32_t i = 0; i < t->n_asked; i++) {
        struct asked *a = &t->asked[i];
        if (a->submitted && !a->ended) take(t, a);
        if (!a->submitted && a->arrives <= t->n_iterations) submit_one(t, a);
        if (a->submitted && !a->ended && a->cancels > 0 && a->cancels <= t->n_iterations)
            (void)mailbox_cancel(&d, &t->sim.core.mailbox, a->slot);
    }
}

static uint32_t ask(struct trial *t, const int32_t *prompt, uint32_t n_prompt,
                    uint32_t max_tokens) {
    struct asked *a = &t->asked[t->n_asked];
    assert_true(t->n_asked < N_REQUESTS);
    *a = (struct asked){.q = make_request(n_prompt, max_tokens)};
    memcpy(a->prompt, prompt, n_prompt * sizeof *prompt);
    return t->n_asked++;
}

/* ---- a run ---- */

struct setting {
    uint32_t n_kv_blocks, max_batched;
    bool prefix_cache;
    uint64_t max_step_ns;
};

/* Variants of 1, 4, 16 and, if `large`, 64 and 256 rows, with as many logit rows as slots. */
static void begin(struct trial *t, const struct setting *s, bool large) {
    struct diag d = {0};
    struct gen_graph graphs[5];
    const uint32_t rows[] = {1, 4, 16, 64, 256}, n = large ? 5 : 3;
    for (uint32_t v = 0; v < n; v++) {
        graphs[v] = gen_layers(1, 2);
        graphs[v].n_rows = rows[v];
        graphs[v].n_logit_rows = MIN(rows[v], (uint32_t)N_SLOTS);
    }
    struct gen_limits limits = {1, N_SLOTS, large ? 4096 : MAX_LEN, KV_BLOCK};
    *t = (struct trial){.program = gen_program(graphs, n, &limits), .first_slot = RT_NONE};
    watch_init(&t->watch, t->program);
    t->watch.rows = look;
    t->watch.user = t;
    struct cpu_config config = {.program = t->program,
                                .run_task = watch_run,
                                .user = &t->watch,
                                .n_kv_blocks = s->n_kv_blocks,
                                .max_batched_tokens = s->max_batched,
                                .choices = {.max_step_ns = s->max_step_ns,
                                            .prefix_cache = s->prefix_cache,
                                            .hash_seed = 7}};
    EXPECT_OK(&d, task_sim_open(&d, &config, &t->sim));
}

/* Until every request has ended. */
static void run(struct trial *t) {
    struct diag d = {0};
    for (uint32_t left = 1, rounds = 0; left > 0; rounds++) {
        assert_true(rounds < 1000);
        come_and_go(t);
        EXPECT_OK(&d, task_sim_run(&d, &t->sim));
        t->first_slot = RT_NONE;
        t->n_iterations++; /* what arrives later comes to an idle runtime */
        left = 0;
        for (uint32_t i = 0; i < t->n_asked; i++) left += !t->asked[i].ended;
    }
}

static void end(struct trial *t) {
    const struct rt_control *c = t->sim.core.rt.control;
    assert_int_equal(t->watch.n_wrong, 0);
    assert_int_equal(c->n_free, t->sim.core.batch->n_kv_blocks);
    assert_true(c->n_running == 0 && c->n_waiting == 0 && c->n_dropped == 0);
    assert_true(rt_blocks_sound(&t->sim.core.rt));
    task_sim_close(&t->sim);
    watch_fini(&t->watch);
    free(t->program);
}

static void text(int32_t *to, uint32_t n, uint32_t seed) {
    for (uint32_t i = 0; i < n; i++) to[i] = (int32_t)(mix(seed, i) % 1000);
}

/* ---- sharing ---- */

/* The same prompt again: whole blocks of it are there, but the last token is always computed. */
static void test_hit(void **state) {
    (void)state;
    const struct setting s = {40, 0, true, 0};
    struct trial t;
    int32_t prompt[MAX_LEN];
    begin(&t, &s, false);
    text(prompt, 32, 1);
    const uint32_t a = ask(&t, prompt, 32, 4);
    run(&t);
    assert_int_equal(t.n_rows, 32 + 3);
    t.n_rows = 0;
    const uint32_t b = ask(&t, prompt, 32, 4), c = ask(&t, prompt, 27, 2);
    run(&t);
    assert_int_equal(t.asked[a].end.n_cached, 0);
    assert_int_equal(t.asked[b].end.n_cached, 24); /* of 32, as 31 may be */
    assert_int_equal(t.asked[c].end.n_cached, 24);
    assert_int_equal(t.n_rows, 8 + 3 + 3 + 1);
    end(&t);
}

/* Output is cached, too: a conversation goes on from its last whole block. */
static void test_hit_of_output(void **state) {
    (void)state;
    const struct setting s = {40, 0, true, 0};
    struct trial t;
    int32_t prompt[MAX_LEN];
    begin(&t, &s, false);
    text(prompt, 16, 1); /* a whole number of blocks: the second has one of its own, then shares */
    ask(&t, prompt, 16, 20);
    ask(&t, prompt, 16, 20);
    run(&t);
    int32_t token = prompt[15];
    for (uint32_t i = 16; i < 36; i++) prompt[i] = token = watch_next_token(token, i);
    const uint32_t again = ask(&t, prompt, 36, 2);
    run(&t);
    assert_int_equal(t.asked[again].end.n_cached, 32);
    end(&t);
}

/* Nobody else's: other space, other tokens somewhere before. */
static void test_no_hit(void **state) {
    (void)state;
    const struct setting s = {60, 0, true, 0};
    struct trial t;
    int32_t prompt[MAX_LEN];
    begin(&t, &s, false);
    text(prompt, 40, 1);
    ask(&t, prompt, 40, 2);
    run(&t);
    t.asked[ask(&t, prompt, 40, 2)].q.cache_space = 5;
    prompt[10]++;
    const uint32_t early = ask(&t, prompt, 40, 2);
    prompt[10]--;
    prompt[30]++;
    const uint32_t late = ask(&t, prompt, 40, 2);
    run(&t);
    assert_int_equal(t.asked[1].end.n_cached, 0);
    assert_int_equal(t.asked[early].end.n_cached, 8);
    assert_int_equal(t.asked[late].end.n_cached, 24);
    end(&t);
}

/* Requests that come together compute what they have in common once. */
static void test_together(void **state) {
    (void)state;
    const struct setting s = {60, 0, true, 0};
    struct trial t;
    int32_t prompt[MAX_LEN];
    begin(&t, &s, false);
    text(prompt, 50, 1);
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        text(prompt + 48, 2, i + 2);
        ask(&t, prompt, 50, 3);
    }
    run(&t);
    assert_int_equal(t.n_rows, 48 + N_SLOTS * (2 + 2));
    end(&t);
}

/* The one that computes for the others is cancelled: another one goes on. */
static void test_writer_leaves(void **state) {
    (void)state;
    const struct setting s = {60, 4, true, 0};
    struct trial t;
    int32_t prompt[MAX_LEN];
    begin(&t, &s, false);
    text(prompt, 50, 1);
    for (uint32_t i = 0; i < 3; i++) ask(&t, prompt, 50, 3);
    t.asked[0].cancels = 5;
    run(&t);
    assert_int_equal(t.asked[0].end.finish, RT_FINISH_ABORT);
    assert_true(t.asked[1].end.n_cached < 32 && t.asked[2].end.n_cached == 48);
    assert_true(t.n_rows < 50 + 8 + 2 * (2 + 2) + 4);
    end(&t);
}

/* Scores need logits, so rows: only what lies before them is shared. */
static void test_scores_are_computed(void **state) {
    (void)state;
    const struct setting s = {60, 0, true, 0};
    struct trial t;
    int32_t prompt[MAX_LEN];
    begin(&t, &s, false);
    text(prompt, 40, 1);
    ask(&t, prompt, 40, 2);
    run(&t);
    t.asked[ask(&t, prompt, 40, 2)].q.n_scored = 39;
    t.asked[ask(&t, prompt, 40, 2)].q.n_scored = 10;
    run(&t);
    assert_int_equal(t.asked[1].end.n_cached, 0);
    assert_int_equal(t.asked[2].end.n_cached, 24);
    end(&t);
}

/* Least recently used blocks go first, and a text's end before its beginning. */
static void test_eviction(void **state) {
    (void)state;
    const struct setting s = {12, 0, true, 0};
    struct trial t;
    int32_t one[MAX_LEN], two[MAX_LEN], other[MAX_LEN];
    begin(&t, &s, false);
    text(one, 33, 1);
    text(two, 33, 2);
    text(other, 33, 3);
    ask(&t, one, 33, 1);
    run(&t);
    ask(&t, two, 33, 1);
    run(&t);
    ask(&t, one, 33, 1); /* is used again */
    run(&t);
    assert_int_equal(t.asked[2].end.n_cached, 32);
    ask(&t, other, 33, 1); /* five blocks, four are empty */
    run(&t);
    ask(&t, one, 33, 1);
    run(&t);
    assert_int_equal(t.asked[4].end.n_cached, 32);
    ask(&t, two, 33, 1);
    run(&t);
    assert_int_equal(t.asked[5].end.n_cached, 24);
    end(&t);
}

/* ---- blocks run out ---- */

/* Blocks for a quarter of the need: all finish, some after giving way, the first in order never. */
static void test_preemption(void **state) {
    (void)state;
    for (int cached = 0; cached < 2; cached++) {
        const struct setting s = {9, 0, cached != 0, 0};
        struct trial t;
        int32_t prompt[MAX_LEN];
        uint32_t n_preempted = 0;
        begin(&t, &s, false);
        for (uint32_t i = 0; i < N_SLOTS; i++) {
            text(prompt, 5, i + 1);
            ask(&t, prompt, 5, 45);
        }
        run(&t);
        for (uint32_t i = 0; i < N_SLOTS; i++) {
            assert_int_equal(t.asked[i].end.finish, RT_FINISH_LENGTH);
            n_preempted += t.asked[i].end.n_preempted;
        }
        assert_int_equal(t.asked[0].end.n_preempted, 0);
        assert_true(n_preempted > 0);
        assert_int_equal(n_preempted, t.sim.core.rt.control->n_preempted);
        end(&t);
    }
}

/* Blocks for one request: one after the other. */
static void test_one_at_a_time(void **state) {
    (void)state;
    const struct setting s = {8, 0, true, 0};
    struct trial t;
    int32_t prompt[MAX_LEN];
    begin(&t, &s, false);
    for (uint32_t i = 0; i < 4; i++) {
        text(prompt, 30, i + 1);
        ask(&t, prompt, 30, 34);
    }
    run(&t);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(t.asked[i].end.finish, RT_FINISH_LENGTH);
    end(&t);
}

/* The lowest priority number is admitted first and gives way last. */
static void test_priority(void **state) {
    (void)state;
    const struct setting s = {10, 0, false, 0};
    struct trial t;
    int32_t prompt[MAX_LEN];
    const int32_t priority[] = {3, 2, 1, -4};
    begin(&t, &s, false);
    for (uint32_t i = 0; i < 4; i++) {
        text(prompt, 20, i + 1);
        t.asked[ask(&t, prompt, 20, 30)].q.priority = priority[i];
    }
    run(&t);
    assert_int_equal(t.asked[3].end.n_preempted, 0);
    assert_true(t.asked[0].end.n_preempted + t.asked[1].end.n_preempted > 0);
    end(&t);
}

/* ---- rows of prompts ---- */

/* A long prompt and a short one share the budget; the short one has its first token soon. */
static void test_short_beside_long(void **state) {
    (void)state;
    const struct setting s = {MAX_BLOCKS, 128, false, 0};
    struct trial t;
    struct diag d = {0};
    static int32_t prompt[4096];
    begin(&t, &s, true);
    t.watch.rows = NULL;
    text(prompt, 400, 1);
    struct rt_request q = make_request(400, 2);
    uint32_t slot, other;
    EXPECT_OK(&d, mailbox_submit(&d, &t.sim.core.mailbox, &q, prompt, &slot));
    q = make_request(60, 1);
    EXPECT_OK(&d, mailbox_submit(&d, &t.sim.core.mailbox, &q, prompt + 7, &other));
    const struct rt *rt = &t.sim.core.rt;
    struct rt_worker w = {0};
    assert_true(rt_boundary_ask(rt, &w) && rt_boundary_prepare(rt, &w));
    assert_int_equal(rt->batch->rows.n_rows, 128);
    assert_int_equal(rt->batch->slots[other].in_flight, 60);
    assert_int_equal(rt->batch->slots[slot].in_flight, 68);
    task_sim_close(&t.sim);
    watch_fini(&t.watch);
    free(t.program);
}

/* The rows that prompts get beside a decoding request, by what variants have been seen to take. */
static void test_budget(void **state) {
    (void)state;
    const struct setting s = {MAX_BLOCKS, 0, false, 1000};
    struct trial t;
    begin(&t, &s, true);
    const struct rt *rt = &t.sim.core.rt;
    const struct {
        uint32_t took[5]; /* of each variant; 0: it is not known */
        uint32_t budget;
    } cases[] = {
        {{0, 0, 0, 0, 0}, 65},            /* nothing is known: the least chunk */
        {{100, 0, 0, 0, 0}, 65},          /* 64 rows would take 6,400 as far as is known */
        {{100, 120, 200, 300, 0}, 65},    /* 256 would take 1,200 */
        {{100, 120, 200, 240, 0}, 256},   /* 960: worth a try */
        {{100, 120, 200, 240, 990}, 256}, /* fast enough */
        {{100, 120, 200, 240, 1010}, 65}, /* not */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (uint32_t v = 0; v < 5; v++) *rt_duration(rt, v, 10) = cases[i].took[v];
        assert_int_equal(rt_budget(rt, 1, 10), cases[i].budget);
        assert_int_equal(rt_budget(rt, 0, 10), 256); /* nobody waits */
    }
    *rt_duration(rt, 4, 4000) = 5000; /* another quarter */
    *rt_duration(rt, 4, 10) = 990;
    assert_int_equal(rt_budget(rt, 1, 10), 256);
    assert_int_equal(rt_budget(rt, 1, 4000), 65);
    /* One slow run does not bar a variant for ever. */
    *rt_duration(rt, 4, 10) = 1500;
    for (int i = 0; i < 400 && rt_budget(rt, 1, 10) != 256; i++) continue;
    assert_int_equal(rt_budget(rt, 1, 10), 256);
    task_sim_close(&t.sim);
    watch_fini(&t.watch);
    free(t.program);
}

/* ---- memory ---- */

/* What 1,024 requests of 32,000 positions take beside weights, cache and activations. */
static void test_memory_of_many(void **state) {
    (void)state;
    struct diag d = {0};
    struct gen_graph g = gen_chain(2);
    struct gen_limits limits = {1, PROG_MAX_SEQS, 32000, 64};
    struct prog_header *p = gen_program(&g, 1, &limits);
    for (int separate = 0; separate < 2; separate++) {
        struct rt_memory m;
        const struct rt_options o = {
            .n_kv_blocks = 6000, .choices = {.prefix_cache = true}, .separate = separate != 0};
        EXPECT_OK(&d, rt_memory_plan(&d, p, &o, &m));
        assert_in_range(m.state_bytes + m.mail_bytes, (uint64_t)PROG_MAX_SEQS * 32000 * 8,
                        (uint64_t)700000000);
    }
    free(p);
}

/* ---- random schedules ---- */

static uint32_t draw(uint64_t *seed, uint32_t n) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 33) % n);
}

/* Prompts that begin alike, of three texts in two spaces. */
static void ask_any(struct trial *t, uint64_t *seed) {
    int32_t prompt[MAX_LEN];
    const uint32_t n = 1 + draw(seed, 50), shared = draw(seed, n + 1);
    text(prompt, n, 100 + draw(seed, 3));
    text(prompt + shared, n - shared, (uint32_t)*seed);
    struct asked *a = &t->asked[ask(t, prompt, n, 1 + draw(seed, MAX_LEN - n))];
    a->q.priority = (int32_t)draw(seed, 3) - 1;
    a->q.cache_space = draw(seed, 5) == 0;
    a->q.n_scored = draw(seed, 6) == 0 ? draw(seed, n) : 0;
    a->arrives = draw(seed, 40);
    a->cancels = draw(seed, 4) == 0 ? a->arrives + draw(seed, 30) + 1 : 0;
}

/* Every request has the tokens that it has alone, whatever comes, goes and is taken away. */
static void test_random(void **state) {
    (void)state;
    const char *runs = getenv("QN_TEST_RUNS");
    const int n = runs != NULL ? atoi(runs) : 1000;
    uint64_t n_preempted = 0, n_cached = 0;
    for (int i = 0; i < n; i++) {
        uint64_t seed = 77 + (uint64_t)i;
        struct trial t;
        const struct setting s = {.n_kv_blocks = 8 + draw(&seed, draw(&seed, 2) ? 6 : 40),
                                  .max_batched = draw(&seed, 17),
                                  .prefix_cache = draw(&seed, 4) > 0,
                                  .max_step_ns = draw(&seed, 3) == 0 ? draw(&seed, 100000) : 0};
        begin(&t, &s, false);
        for (uint32_t k = 0; k < N_REQUESTS; k++) ask_any(&t, &seed);
        run(&t);
        n_preempted += t.sim.core.rt.control->n_preempted;
        n_cached += t.sim.core.rt.control->n_cached;
        end(&t);
    }
    assert_true(n < 100 || (n_preempted > 0 && n_cached > 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hit),
        cmocka_unit_test(test_hit_of_output),
        cmocka_unit_test(test_no_hit),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_writer_leaves),
        cmocka_unit_test(test_scores_are_computed),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_priority),
        cmocka_unit_test(test_short_beside_long),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_memory_of_many),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

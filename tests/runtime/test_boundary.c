/* Between iterations: admission, chunks of prompts, choice of variant, KV blocks, ends and cancels.
 * Run on the interpreter, where every step can be looked at. */
#include "base/checked.h"
#include "runtime/rt_boundary.h"
#include "runtime/rt_test.h"

enum { MAX_SEEN = 256 };

/* One iteration as the tasks saw it. */
struct seen {
    uint32_t n_rows, n_logit_rows, variant, steady, published;
    int32_t slot[32], position[32], logit_row[8];
};

struct trial {
    struct prog_header *program;
    struct watch watch;
    struct task_sim sim;
    struct seen seen[MAX_SEEN];
    uint32_t n_seen;
    uint32_t cancel_at, cancel_slot; /* cancel a slot while iteration number cancel_at runs */
    bool overlap;                    /* two requests shared a KV block, or a block was wrong */
};

/* The first n_alone rows are of requests that have one, in steady iterations all. */
static void look_at_rows(const struct rt_rows *rows) {
    assert_true(rows->n_alone <= rows->n_rows);
    if (rows->steady) assert_int_equal(rows->n_alone, rows->n_rows);
    for (uint32_t i = 0; i < rows->n_alone; i++)
        for (uint32_t j = 0; j < rows->n_rows; j++)
            assert_true(i == j || rows->slot[i] != rows->slot[j]);
}

/* No block may be in two running requests' tables. */
static void look_at_blocks(struct trial *t, const struct rt_batch *b) {
    uint8_t used[256] = {0};
    for (uint32_t s = 0; s < b->n_slots; s++) {
        if (b->slots[s].state != SLOT_RUNNING) continue;
        uint32_t needed = (b->slots[s].n_known + b->kv_block - 1) / b->kv_block;
        if (b->slots[s].n_known < b->slots[s].n_limit && b->slots[s].n_blocks < needed)
            t->overlap = true;
        for (uint32_t i = 0; i < b->slots[s].n_blocks; i++) {
            int32_t block = b->block_table[s * b->max_blocks + i];
            if (block < 0 || (uint32_t)block >= b->n_kv_blocks || used[block]++) t->overlap = true;
        }
    }
}

static void look(void *user, const struct rt_batch *b) {
    struct trial *t = user;
    struct seen *s = &t->seen[t->n_seen++];
    assert_true(t->n_seen < MAX_SEEN && b->rows.n_rows <= 32 && b->rows.n_logit_rows <= 8);
    s->n_rows = b->rows.n_rows;
    s->n_logit_rows = b->rows.n_logit_rows;
    s->variant = t->sim.core.rt.control->variant;
    s->steady = b->rows.steady;
    s->published = rt_boundary_published(t->sim.core.rt.control);
    memcpy(s->slot, b->rows.slot, s->n_rows * 4);
    memcpy(s->position, b->rows.position, s->n_rows * 4);
    memcpy(s->logit_row, b->rows.logit_row, s->n_logit_rows * 4);
    for (uint32_t i = 0; i < s->n_rows; i++) /* the rows carry the request's own tokens */
        assert_int_equal(
            b->rows.token[i],
            b->tokens[(uint32_t)s->slot[i] * b->max_model_len + (uint32_t)s->position[i]]);
    look_at_rows(&b->rows);
    look_at_blocks(t, b);
    if (t->n_seen == t->cancel_at) {
        struct diag d = {0};
        EXPECT_OK(&d, mailbox_cancel(&d, &t->sim.core.mailbox, t->cancel_slot));
    }
}

/* Variants of 1, 4 and 16 rows with 1, 4 and 4 logit rows; 6 slots; blocks of 8 positions. */
/* Variants of 1, 4 and 16 rows; of 4 another one first, for contexts of up to `context`, unless 0;
 * decode_only: and of rows of different requests. */
static void begin_with(struct trial *t, uint32_t n_kv_blocks, uint32_t max_batched,
                       uint32_t context, bool decode_only) {
    struct diag d = {0};
    struct gen_graph graphs[4];
    const uint32_t rows[] = {1, 4, 4, 16}, n = context > 0 ? 4 : 3;
    for (uint32_t v = 0; v < n; v++) {
        graphs[v] = gen_layers(2, 2);
        graphs[v].n_rows = rows[v == 0 ? 0 : v + 4 - n];
        graphs[v].n_logit_rows = v == 0 ? 1 : 4;
        graphs[v].context = v == 1 ? context : 0;
        graphs[v].decode_only = v == 1 && decode_only;
    }
    struct gen_limits limits = {1, 6, 64, 8};
    *t = (struct trial){.program = gen_program(graphs, n, &limits)};
    watch_init(&t->watch, t->program);
    t->watch.rows = look;
    t->watch.user = t;
    struct cpu_config config = {.program = t->program,
                                .run_task = watch_run,
                                .user = &t->watch,
                                .n_kv_blocks = n_kv_blocks,
                                .max_batched_tokens = max_batched};
    EXPECT_OK(&d, task_sim_open(&d, &config, &t->sim));
}

static void begin(struct trial *t, uint32_t n_kv_blocks, uint32_t max_batched) {
    begin_with(t, n_kv_blocks, max_batched, 0, false);
}

static void end(struct trial *t) {
    assert_false(t->overlap);
    assert_int_equal(t->watch.n_wrong, 0);
    assert_int_equal(t->sim.core.rt.control->n_free, t->sim.core.batch->n_kv_blocks);
    assert_int_equal(t->sim.core.rt.control->n_running, 0);
    task_sim_close(&t->sim);
    watch_fini(&t->watch);
    free(t->program);
}

static void run(struct trial *t) {
    struct diag d = {0};
    EXPECT_OK(&d, task_sim_run(&d, &t->sim));
}

static uint32_t put(struct trial *t, uint32_t request, uint32_t n_prompt, uint32_t max_tokens) {
    struct diag d = {0};
    uint32_t slot = 0;
    EXPECT_OK(&d, submit(&d, &t->sim.core.mailbox, request, n_prompt, max_tokens, &slot));
    return slot;
}

static struct mailbox_view get(struct trial *t, uint32_t slot) {
    struct diag d = {0};
    struct mailbox_view v;
    EXPECT_OK(&d, mailbox_poll(&d, &t->sim.core.mailbox, slot, &v));
    return v;
}

/* A prompt of 37 tokens in rows of 16: 16, 16, 5, then one at a time, each in its variant. */
static void test_chunks(void **state) {
    (void)state;
    struct trial t;
    begin(&t, 20, 0);
    uint32_t slot = put(&t, 3, 37, 4);
    run(&t);
    const uint32_t rows[] = {16, 16, 5, 1, 1, 1}, variants[] = {2, 2, 2, 0, 0, 0};
    const uint32_t logits[] = {0, 0, 1, 1, 1, 1};
    assert_int_equal(t.n_seen, 6);
    uint32_t position = 0;
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(t.seen[i].n_rows, rows[i]);
        assert_int_equal(t.seen[i].variant, variants[i]);
        assert_int_equal(t.seen[i].n_logit_rows, logits[i]);
        if (logits[i]) assert_int_equal(t.seen[i].logit_row[0], rows[i] - 1);
        for (uint32_t k = 0; k < rows[i]; k++) assert_int_equal(t.seen[i].position[k], position++);
    }
    struct mailbox_view v = get(&t, slot);
    assert_int_equal(v.finish, RT_FINISH_LENGTH);
    assert_int_equal(v.n_out, 4);
    assert_true(tokens_follow(&v, 37, 3));
    end(&t);
}

/* Decoding rows come first, prompts fill what max_batched leaves. */
static void test_mixed(void **state) {
    (void)state;
    struct trial t;
    begin(&t, 40, 6);
    uint32_t a = put(&t, 1, 1, 6), b = put(&t, 2, 13, 2), c = put(&t, 3, 7, 2);
    run(&t);
    /* row budget 6, of which a has one; b and c take turns at the first chunk */
    const struct {
        uint32_t n_rows, n_a, n_b, n_c, n_logits;
    } want[] = {{6, 1, 5, 0, 1}, {6, 1, 0, 5, 1}, {6, 1, 5, 0, 1},
                {6, 1, 3, 2, 3}, {3, 1, 1, 1, 3}, {1, 1, 0, 0, 1}};
    assert_int_equal(t.n_seen, 6);
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t n[6] = {0};
        for (uint32_t k = 0; k < t.seen[i].n_rows; k++) n[t.seen[i].slot[k]]++;
        assert_int_equal(t.seen[i].n_rows, want[i].n_rows);
        assert_int_equal(n[a], want[i].n_a);
        assert_int_equal(n[b], want[i].n_b);
        assert_int_equal(n[c], want[i].n_c);
        assert_int_equal(t.seen[i].n_logit_rows, want[i].n_logits);
        assert_int_equal(t.seen[i].slot[0], a);
    }
    struct mailbox_view va = get(&t, a), vb = get(&t, b), vc = get(&t, c);
    assert_true(tokens_follow(&va, 1, 1) && va.n_out == 6);
    assert_true(tokens_follow(&vb, 13, 2) && vb.n_out == 2);
    assert_true(tokens_follow(&vc, 7, 3) && vc.n_out == 2);
    end(&t);
}

/* Rows whose contexts fit run the variant for short ones; one that does not takes all to the other.
 */
static void look_at_contexts(bool decode_only, uint32_t limit) {
    struct trial t;
    begin_with(&t, 40, 0, limit, decode_only);
    const uint32_t a = put(&t, 1, 3, 12), b = put(&t, 2, 16, 8);
    run(&t);
    assert_int_equal(t.n_seen, 12);
    for (uint32_t i = 0; i < t.n_seen; i++) {
        uint32_t context = 0;
        for (uint32_t k = 0; k < t.seen[i].n_rows; k++)
            context = MAX(context, (uint32_t)t.seen[i].position[k] + 1);
        const uint32_t rows = t.seen[i].n_rows;
        const bool fits = context <= limit && (!decode_only || rows == t.seen[i].n_logit_rows);
        assert_int_equal(t.seen[i].variant, rows > 4 ? 3 : rows == 1 ? 0 : fits ? 1 : 2);
    }
    assert_int_equal(t.seen[1].n_rows, 4); /* three of them of a prompt */
    assert_int_equal(t.seen[1].variant, decode_only ? 2 : 1);
    assert_int_equal(t.seen[4].variant, 1);
    assert_int_equal(t.seen[7].variant, limit > 20 ? 1 : 2);
    struct mailbox_view va = get(&t, a), vb = get(&t, b);
    assert_true(tokens_follow(&va, 3, 1) && va.n_out == 12);
    assert_true(tokens_follow(&vb, 16, 2) && vb.n_out == 8);
    end(&t);
}

static void test_contexts(void **state) {
    (void)state;
    look_at_contexts(false, 20);
}

/* The same of rows of different requests only; also where it is for all contexts, as the other. */
static void test_decode_only(void **state) {
    (void)state;
    look_at_contexts(true, 20);
    look_at_contexts(true, 64);
}

/* Six requests, four logit rows: four run at a time, in order of arrival. */
static void test_more_than_rows(void **state) {
    (void)state;
    struct trial t;
    begin(&t, 40, 0);
    uint32_t slots[6];
    for (uint32_t i = 0; i < 6; i++) slots[i] = put(&t, i, 1, 3);
    run(&t);
    assert_int_equal(t.n_seen, 6);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(t.seen[i].n_rows, 4);
        assert_int_equal(t.seen[i].variant, 1);
        for (uint32_t k = 0; k < 4; k++) assert_int_equal(t.seen[i].slot[k], slots[k]);
        assert_int_equal(t.seen[i + 3].n_rows, 2);
    }
    for (uint32_t i = 0; i < 6; i++) {
        struct mailbox_view v = get(&t, slots[i]);
        assert_true(tokens_follow(&v, 1, i) && v.n_out == 3);
    }
    end(&t);
}

/* Four blocks of 8: the second needs all of them and waits; the third would fit but may not pass.
 */
static void test_blocks_run_out(void **state) {
    (void)state;
    struct trial t;
    begin(&t, 4, 0);
    uint32_t a = put(&t, 1, 8, 3), b = put(&t, 2, 30, 3), c = put(&t, 3, 2, 2);
    run(&t);
    uint32_t first[6] = {0}, last[6] = {0};
    for (uint32_t i = 0; i < t.n_seen; i++)
        for (uint32_t k = 0; k < t.seen[i].n_rows; k++) {
            uint32_t s = (uint32_t)t.seen[i].slot[k];
            if (first[s] == 0) first[s] = i + 1;
            last[s] = i + 1;
        }
    assert_true(first[a] == 1 && first[b] == last[a] + 1 && first[c] == last[b] + 1);
    struct mailbox_view v = get(&t, c);
    assert_true(v.n_out == 2 && v.finish == RT_FINISH_LENGTH);
    end(&t);
}

/* The last token is never computed on: 17 tokens in all need two blocks of 8, 18 need three. */
static void test_exact_blocks(void **state) {
    (void)state;
    struct trial t;
    begin(&t, 2, 0);
    struct diag d = {0};
    uint32_t slot;
    put(&t, 1, 10, 7);
    EXPECT_FAIL(&d, QN_ELIMIT, "need 3 KV blocks, there are 2",
                submit(&d, &t.sim.core.mailbox, 1, 10, 8, &slot));
    run(&t);
    end(&t);
}

static void test_stop(void **state) {
    (void)state;
    struct trial t;
    struct diag d = {0};
    begin(&t, 20, 0);
    int32_t prompt[4], token;
    fill_prompt(prompt, 4, 5);
    token = prompt[3];
    for (uint32_t i = 0; i < 3; i++) token = watch_next_token(token, 4 + i);
    struct rt_request q = make_request(4, 20);
    q.n_stop = 2;
    q.stop[0] = 1001;
    q.stop[1] = token;
    uint32_t slot;
    EXPECT_OK(&d, mailbox_submit(&d, &t.sim.core.mailbox, &q, prompt, &slot));
    run(&t);
    struct mailbox_view v = get(&t, slot);
    assert_int_equal(v.finish, RT_FINISH_STOP);
    assert_int_equal(v.n_out, 3);
    assert_int_equal(v.tokens[2], token);
    end(&t);
}

/* Cancelled while it runs: ends at the next boundary with the tokens it has; others go on. */
static void test_cancel_running(void **state) {
    (void)state;
    struct trial t;
    begin(&t, 20, 0);
    uint32_t a = put(&t, 1, 3, 30), b = put(&t, 2, 3, 8);
    t.cancel_at = 4;
    t.cancel_slot = a;
    run(&t);
    struct mailbox_view va = get(&t, a), vb = get(&t, b);
    assert_int_equal(va.finish, RT_FINISH_ABORT);
    assert_int_equal(va.n_out, 4); /* the iteration in which it was cancelled still counts */
    assert_true(tokens_follow(&va, 3, 1));
    assert_true(vb.finish == RT_FINISH_LENGTH && vb.n_out == 8);
    end(&t);
}

/* Nothing but decoding: from the second such iteration on SAMPLE lays out the next rows, until a
 * request ends, comes or is cancelled. That rows carry their requests' tokens `look` checks. */
static void run_steady(uint32_t first_iteration) {
    struct trial t;
    begin(&t, 40, 0);
    t.sim.core.rt.control->iteration = t.sim.core.rt.shared->posted = first_iteration;
    const uint32_t a = put(&t, 1, 1, 9), b = put(&t, 2, 3, 4), c = put(&t, 3, 2, 30);
    t.cancel_at = 14;
    t.cancel_slot = c;
    run(&t);
    /* 0 prompts; b has its last token of 3, a of 8; c is cancelled in 13 */
    const uint32_t n_rows[] = {6, 3, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1};
    const uint32_t steady[] = {0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1};
    assert_int_equal(t.n_seen, 14);
    for (uint32_t i = 0; i < 14; i++) {
        assert_int_equal(t.seen[i].n_rows, n_rows[i]);
        assert_int_equal(t.seen[i].steady, steady[i]);
        if (t.seen[i].steady)
            for (uint32_t k = 0; k < n_rows[i]; k++) assert_int_equal(t.seen[i].logit_row[k], k);
        assert_int_not_equal(t.seen[i].published >> RT_ITERATION_SHIFT, 0);
        /* Before 6 c gets its second block: that boundary is not a steady one. */
        const bool follows = i > 0 && i != 6 && steady[i - 1] && steady[i];
        assert_int_equal((t.seen[i].published & RT_STEADY) != 0, follows);
        for (uint32_t k = 0; follows && k < n_rows[i]; k++) {
            assert_int_equal(t.seen[i].slot[k], t.seen[i - 1].slot[k]);
            assert_int_equal(t.seen[i].position[k], t.seen[i - 1].position[k] + 1);
        }
    }
    assert_true(t.seen[3].slot[0] == (int32_t)a && t.seen[3].position[0] == 3);
    assert_true(t.seen[3].slot[1] == (int32_t)b && t.seen[3].position[1] == 5);
    assert_true(t.seen[8].slot[1] == (int32_t)c && t.seen[8].position[1] == 9);
    struct mailbox_view va = get(&t, a), vb = get(&t, b), vc = get(&t, c);
    assert_true(va.finish == RT_FINISH_LENGTH && va.n_out == 9 && tokens_follow(&va, 1, 1));
    assert_true(vb.finish == RT_FINISH_LENGTH && vb.n_out == 4 && tokens_follow(&vb, 3, 2));
    assert_true(vc.finish == RT_FINISH_ABORT && vc.n_out == 14 && tokens_follow(&vc, 2, 3));
    end(&t);
}

/* From the first iteration on, and where their numbers wrap. */
static void test_steady(void **state) {
    (void)state;
    run_steady(0);
    run_steady((1u << (32 - RT_ITERATION_SHIFT)) - 5);
    run_steady(UINT32_MAX - 3);
}

/* Cancelled while it waits for blocks: never runs, and does not hold up the next in line. */
static void test_cancel_waiting(void **state) {
    (void)state;
    struct trial t;
    begin(&t, 4, 0);
    uint32_t a = put(&t, 1, 8, 10), b = put(&t, 2, 30, 3), c = put(&t, 3, 2, 2);
    t.cancel_at = 3;
    t.cancel_slot = b;
    run(&t);
    struct mailbox_view va = get(&t, a), vb = get(&t, b), vc = get(&t, c);
    assert_true(va.finish == RT_FINISH_LENGTH && va.n_out == 10);
    assert_true(vb.finish == RT_FINISH_ABORT && vb.n_out == 0);
    assert_true(vc.finish == RT_FINISH_LENGTH && vc.n_out == 2);
    assert_int_equal(t.seen[3].slot[0], a);
    assert_int_equal(t.seen[3].slot[1], c); /* right after the cancel */
    end(&t);
}

/* A cancel that comes too late must not hit the slot's next request. */
static void test_cancel_late(void **state) {
    (void)state;
    struct trial t;
    struct diag d = {0};
    begin(&t, 20, 0);
    uint32_t a = put(&t, 1, 2, 2);
    t.cancel_at = 2; /* its last iteration */
    t.cancel_slot = a;
    run(&t);
    struct mailbox_view v = get(&t, a);
    assert_true(v.finish == RT_FINISH_LENGTH && v.n_out == 2);
    EXPECT_OK(&d, mailbox_release(&d, &t.sim.core.mailbox, a));
    assert_int_equal(put(&t, 2, 2, 3), a); /* the same slot again */
    run(&t);
    v = get(&t, a);
    assert_true(v.finish == RT_FINISH_LENGTH && v.n_out == 3 && tokens_follow(&v, 2, 2));
    end(&t);
}

static void test_bad_requests(void **state) {
    (void)state;
    struct trial t;
    struct diag d = {0};
    begin(&t, 20, 0);
    struct mailbox *m = &t.sim.core.mailbox;
    int32_t prompt[64] = {0};
    uint32_t slot = 0;
    struct rt_request q = make_request(0, 1);
    EXPECT_FAIL(&d, QN_EINVAL, "prompt", mailbox_submit(&d, m, &q, prompt, &slot));
    q = make_request(1, 0);
    EXPECT_FAIL(&d, QN_EINVAL, "max_tokens", mailbox_submit(&d, m, &q, prompt, &slot));
    q = make_request(60, 5);
    EXPECT_FAIL(&d, QN_ELIMIT, "limit of 64", mailbox_submit(&d, m, &q, prompt, &slot));
    q = make_request(UINT32_MAX, 2);
    EXPECT_FAIL(&d, QN_ELIMIT, "limit of 64", mailbox_submit(&d, m, &q, prompt, &slot));
    q = make_request(1, 1);
    q.n_stop = RT_MAX_STOP_IDS + 1;
    EXPECT_FAIL(&d, QN_ELIMIT, "stop_token_ids", mailbox_submit(&d, m, &q, prompt, &slot));
    q = make_request(2, 1);
    q.n_scored = 2;
    EXPECT_FAIL(&d, QN_EINVAL, "n_scored", mailbox_submit(&d, m, &q, prompt, &slot));
    q = make_request(2, 1);
    prompt[1] = 1000;
    EXPECT_FAIL(&d, QN_EINVAL, "token 1000 at 1", mailbox_submit(&d, m, &q, prompt, &slot));
    prompt[1] = -1;
    EXPECT_FAIL(&d, QN_EINVAL, "token -1 at 1", mailbox_submit(&d, m, &q, prompt, &slot));
    prompt[1] = 0;
    q.sampling.top_p = 0;
    EXPECT_FAIL(&d, QN_EINVAL, "top_p", mailbox_submit(&d, m, &q, prompt, &slot));
    q = make_request(2, 1);
    q.sampling.temperature = -1;
    EXPECT_FAIL(&d, QN_EINVAL, "temperature", mailbox_submit(&d, m, &q, prompt, &slot));
    q = make_request(2, 1);
    q.sampling.repetition_penalty = 0;
    EXPECT_FAIL(&d, QN_EINVAL, "repetition_penalty", mailbox_submit(&d, m, &q, prompt, &slot));
    struct mailbox_view v;
    EXPECT_FAIL(&d, QN_EINVAL, "request 3", mailbox_poll(&d, m, 3, &v));
    EXPECT_FAIL(&d, QN_EINVAL, "request 99", mailbox_cancel(&d, m, 99));
    EXPECT_FAIL(&d, QN_EINVAL, "request 0", mailbox_release(&d, m, 0));
    assert_int_equal(t.sim.core.mailbox.posted, 0); /* nothing reached the runtime */
    end(&t);
}

static void test_slots_run_out(void **state) {
    (void)state;
    struct trial t;
    struct diag d = {0};
    begin(&t, 40, 0);
    uint32_t slot, slots[6];
    for (uint32_t round = 0; round < 5; round++) { /* the command ring wraps */
        for (uint32_t i = 0; i < 6; i++) slots[i] = put(&t, i, 2, 2);
        EXPECT_FAIL(&d, QN_EBUSY, "all 6", submit(&d, &t.sim.core.mailbox, 7, 2, 2, &slot));
        EXPECT_FAIL(&d, QN_EBUSY, "not finished", mailbox_release(&d, &t.sim.core.mailbox, 2));
        run(&t);
        for (uint32_t i = 0; i < 6; i++) {
            struct mailbox_view v = get(&t, slots[i]);
            assert_true(v.n_out == 2 && tokens_follow(&v, 2, i));
            EXPECT_OK(&d, mailbox_release(&d, &t.sim.core.mailbox, slots[i]));
        }
    }
    end(&t);
}

static uint32_t put_scored(struct trial *t, uint32_t request, uint32_t n_prompt,
                           uint32_t max_tokens, uint32_t n_scored) {
    struct diag d = {0};
    int32_t prompt[256];
    uint32_t slot = 0;
    struct rt_request q = make_request(n_prompt, max_tokens);
    q.n_scored = n_scored;
    fill_prompt(prompt, n_prompt, request);
    EXPECT_OK(&d, mailbox_submit(&d, &t->sim.core.mailbox, &q, prompt, &slot));
    return slot;
}

/* Whether the prompt's last tokens have their log-probabilities. */
static bool scores_follow(const struct mailbox_view *v, uint32_t n_prompt, uint32_t request) {
    int32_t prompt[256];
    fill_prompt(prompt, n_prompt, request);
    for (uint32_t i = 0; i < v->n_scored; i++) {
        const uint32_t p = n_prompt - v->n_scored + i;
        if (v->scored[i] != watch_score(prompt[p], p)) return false;
    }
    return true;
}

/* The logit rows of a request: those of its last token rows, each of the position before the token
 * that it is of. */
static void look_at_logits(const struct seen *s, uint32_t slot, uint32_t count, uint32_t last) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_logit_rows; i++) {
        const uint32_t row = (uint32_t)s->logit_row[i];
        assert_true(row < s->n_rows);
        if ((uint32_t)s->slot[row] != slot) continue;
        n++;
        assert_int_equal(s->position[row], last + n - count);
    }
    assert_int_equal(n, count);
}

/* A prompt of 19 whose last 3 tokens are scored, in chunks of 16 and 3: the second one has logits
 * of positions 15 to 18, the first one of its last: 4 logit rows are all that there is room for. */
static void test_several_logit_rows(void **state) {
    (void)state;
    struct trial t;
    begin(&t, 20, 0);
    const uint32_t a = put_scored(&t, 3, 19, 4, 3);
    run(&t);
    const uint32_t rows[] = {16, 3, 1, 1, 1}, logits[] = {1, 3, 1, 1, 1};
    const uint32_t last[] = {15, 18, 19, 20, 21};
    assert_int_equal(t.n_seen, 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(t.seen[i].n_rows, rows[i]);
        assert_int_equal(t.seen[i].n_logit_rows, logits[i]);
        look_at_logits(&t.seen[i], a, logits[i], last[i]);
    }
    const struct mailbox_view v = get(&t, a);
    assert_true(v.n_out == 4 && tokens_follow(&v, 19, 3));
    assert_true(v.n_scored == 3 && scores_follow(&v, 19, 3));
    end(&t);
}

/* Three requests beside each other, with 2, 3 and 1 logit rows at a time; there is room for 4. */
static void test_logit_rows_of_a_batch(void **state) {
    (void)state;
    struct trial t;
    begin(&t, 40, 0);
    const uint32_t a = put_scored(&t, 1, 4, 3, 1), b = put_scored(&t, 2, 5, 3, 2),
                   c = put(&t, 3, 3, 3);
    run(&t);
    /* a has 4 rows, the last 2 with logits; b 4 of 5, as far as 2 logit rows go; c 2 of 3. */
    assert_int_equal(t.seen[0].n_rows, 4 + 4 + 2);
    assert_int_equal(t.seen[0].n_logit_rows, 4);
    look_at_logits(&t.seen[0], a, 2, 3);
    look_at_logits(&t.seen[0], b, 2, 3);
    look_at_logits(&t.seen[0], c, 0, 0);
    assert_int_equal(t.seen[1].n_rows, 3);
    for (uint32_t i = 1; i < t.n_seen; i++) assert_true(t.seen[i].n_logit_rows <= 3);
    look_at_logits(&t.seen[1], b, 1, 4);
    look_at_logits(&t.seen[1], c, 1, 2);
    const struct mailbox_view va = get(&t, a), vb = get(&t, b), vc = get(&t, c);
    assert_true(va.n_out == 3 && tokens_follow(&va, 4, 1) && scores_follow(&va, 4, 1));
    assert_true(vb.n_out == 3 && tokens_follow(&vb, 5, 2) && scores_follow(&vb, 5, 2));
    assert_true(vc.n_out == 3 && tokens_follow(&vc, 3, 3) && vc.n_scored == 0);
    end(&t);
}

/* Every token of a prompt but the first: as many rows at a time as there are logit rows, and beside
 * requests that decode, which keep theirs. Such rows are of one request, however many. */
static void test_whole_prompt_is_scored(void **state) {
    (void)state;
    struct trial t;
    begin_with(&t, 40, 0, 64, true);
    const uint32_t a = put(&t, 1, 1, 12), b = put_scored(&t, 2, 14, 2, 13);
    run(&t);
    uint32_t next = 0;
    for (uint32_t i = 0; i < t.n_seen; i++) {
        uint32_t n_a = 0, n_b = 0;
        for (uint32_t k = 0; k < t.seen[i].n_rows; k++) {
            n_a += t.seen[i].slot[k] == (int32_t)a;
            if (t.seen[i].slot[k] != (int32_t)b) continue;
            n_b++;
            assert_int_equal(t.seen[i].position[k], next++);
        }
        assert_int_equal(t.seen[i].n_logit_rows, t.seen[i].n_rows);
        assert_int_equal(n_a, i < 12);
        if (i < 4) assert_int_equal(n_b, 3);
        if (n_a + n_b == 4)
            assert_int_equal(t.seen[i].variant, 2); /* not the one for `decode_only` */
    }
    const struct mailbox_view va = get(&t, a), vb = get(&t, b);
    assert_true(va.n_out == 12 && tokens_follow(&va, 1, 1));
    assert_true(vb.n_out == 2 && tokens_follow(&vb, 14, 2));
    assert_true(vb.n_scored == 13 && scores_follow(&vb, 14, 2));
    end(&t);
}

/* Tokens are copied to the host's arrays when the mailbox lies in other memory. */
static void test_separate_mail(void **state) {
    (void)state;
    struct diag d = {0};
    struct gen_graph g = gen_chain(3);
    g.n_rows = 4;
    g.n_logit_rows = 2;
    struct gen_limits limits = {1, 2, 32, 8};
    struct prog_header *p = gen_program(&g, 1, &limits);
    struct rt_options options = {.n_kv_blocks = 8, .separate = true, .until_idle = true};
    struct rt_memory m;
    EXPECT_OK(&d, rt_memory_plan(&d, p, &options, &m));
    struct cpu_config config = {.program = p, .run_task = watch_run, .n_kv_blocks = 8};
    struct watch w;
    watch_init(&w, p);
    config.user = &w;
    struct task_sim sim;
    EXPECT_OK(&d, task_sim_open(&d, &config, &sim));
    /* Move the interpreter onto memory with a separate mailbox. */
    char *state_block = aligned_alloc(64, m.state_bytes), *mail = aligned_alloc(64, m.mail_bytes);
    memset(state_block, 0, m.state_bytes);
    memset(mail, 0, m.mail_bytes);
    struct rt_batch batch;
    rt_memory_bind(&m, p, p, state_block, mail, &sim.core.rt, &batch);
    rt_memory_init(&m, p, state_block, mail, &batch);
    sim.core.batch = sim.core.rt.batch;
    mailbox_close(&sim.core.mailbox);
    EXPECT_OK(&d, mailbox_open(&d, &sim.core.mailbox, &sim.core.rt, sim.core.batch, 1000));
    uint32_t a, b;
    EXPECT_OK(&d, submit(&d, &sim.core.mailbox, 1, 9, 5, &a));
    EXPECT_OK(&d, submit(&d, &sim.core.mailbox, 2, 3, 7, &b));
    EXPECT_OK(&d, task_sim_run(&d, &sim));
    struct mailbox_view va, vb;
    EXPECT_OK(&d, mailbox_poll(&d, &sim.core.mailbox, a, &va));
    EXPECT_OK(&d, mailbox_poll(&d, &sim.core.mailbox, b, &vb));
    assert_true(va.n_out == 5 && tokens_follow(&va, 9, 1));
    assert_true(vb.n_out == 7 && tokens_follow(&vb, 3, 2));
    assert_true((const char *)va.tokens >= mail && (const char *)va.tokens < mail + m.mail_bytes);
    EXPECT_OK(&d, mailbox_release(&d, &sim.core.mailbox, a));
    struct rt_request q = make_request(9, 4);
    int32_t prompt[9];
    q.n_scored = 8;
    fill_prompt(prompt, 9, 5);
    EXPECT_OK(&d, mailbox_submit(&d, &sim.core.mailbox, &q, prompt, &a));
    EXPECT_OK(&d, task_sim_run(&d, &sim));
    EXPECT_OK(&d, mailbox_poll(&d, &sim.core.mailbox, a, &va));
    assert_true(va.n_out == 4 && tokens_follow(&va, 9, 5) && va.n_scored == 8);
    assert_true(scores_follow(&va, 9, 5));
    task_sim_close(&sim);
    free(state_block);
    free(mail);
    watch_fini(&w);
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_more_than_rows),
        cmocka_unit_test(test_blocks_run_out),
        cmocka_unit_test(test_exact_blocks),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_cancel_running),
        cmocka_unit_test(test_cancel_waiting),
        cmocka_unit_test(test_cancel_late),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_slots_run_out),
        cmocka_unit_test(test_separate_mail),
        cmocka_unit_test(test_contexts),
        cmocka_unit_test(test_steady),
        cmocka_unit_test(test_decode_only),
        cmocka_unit_test(test_several_logit_rows),
        cmocka_unit_test(test_logit_rows_of_a_batch),
        cmocka_unit_test(test_whole_prompt_is_scored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

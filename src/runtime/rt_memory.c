#include "runtime/rt_memory.h"

#include "base/checked.h"
#include "runtime/rt_mask.h"

#include <assert.h>
#include <string.h>

enum {
    PADDED_EVENTS = 16384, /* up to here every counter has its own cache line (1 MiB) */
};

static uint32_t power_of_two(uint32_t n) {
    uint32_t p = 2;
    while (p < n && p < 1u << 30) p *= 2;
    return p;
}

static bool is_jit(const struct prog_header *p, uint32_t task) {
    return PROG(p, TASK)[task].worker == PROG_JIT;
}

static uint32_t count_jit(const struct prog_header *p, const struct prog_variant *v) {
    uint32_t n = 0;
    for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++) n += is_jit(p, t);
    return n;
}

static void choose(const struct prog_header *p, struct rt_memory *m) {
    struct rt_options *o = &m->options;
    m->n_jit = 0;
    for (uint64_t i = 0; i < p->section[SECTION_VARIANT].count; i++)
        m->n_jit += count_jit(p, &PROG(p, VARIANT)[i]);
    /* A slot has at most three commands under way: CANCEL, SUBMIT, CANCEL. One more command rings
     * at stop. */
    m->n_commands = power_of_two(p->n_slots * 3 + 1);
    m->n_buckets = power_of_two(o->n_kv_blocks);
    m->counter_shift = p->section[SECTION_EVENT].count <= PADDED_EVENTS ? 4 : 0;
    if (o->max_batched == 0) o->max_batched = PROG_MAX_ROWS;
}

static void part(struct rt_memory *m, enum rt_part which, uint64_t n, uint64_t size) {
    uint64_t *total = which < RT_FIRST_MAIL_PART ? &m->state_bytes : &m->mail_bytes;
    m->bytes[which] = n * size;
    m->offset[which] = *total;
    *total += align_up(n * size, 64);
}

static void parts_of_protocol(const struct prog_header *p, struct rt_memory *m) {
    uint64_t n_events = p->section[SECTION_EVENT].count;
    part(m, RT_PART_SHARED, 1, sizeof(struct rt_shared));
    part(m, RT_PART_STALL, 1, sizeof(struct rt_stall));
    part(m, RT_PART_CONTROL, 1, sizeof(struct rt_control));
    part(m, RT_PART_COUNTERS, n_events << m->counter_shift, 4);
    part(m, RT_PART_BEATS, p->n_workers, sizeof(struct rt_beat));
    part(m, RT_PART_JIT, m->n_jit, 4);
    part(m, RT_PART_RANKS, p->section[SECTION_AOT].count, 4);
    part(m, RT_PART_EPOCHS, p->section[SECTION_VARIANT].count, 4);
}

/* rt_batch.route_stride */
static uint32_t route_stride(const struct prog_header *p, const struct rt_options *o) {
    return o->choices.routes ? spec_route_ids(PROG(p, MODEL)) : 0;
}

static void parts_of_batch(const struct prog_header *p, struct rt_memory *m) {
    uint64_t positions = (uint64_t)p->n_slots * p->max_model_len;
    part(m, RT_PART_RUNNING, p->n_slots, 4);
    part(m, RT_PART_NEWS, p->n_slots, sizeof(struct rt_news));
    part(m, RT_PART_POOL, 1, sizeof(struct rt_pool));
    part(m, RT_PART_TURNS, p->n_slots, sizeof(struct rt_turn));
    part(m, RT_PART_BLOCKS, m->options.n_kv_blocks, sizeof(struct rt_block));
    part(m, RT_PART_BLOCK_TOKENS,
         m->options.choices.prefix_cache ? (uint64_t)m->options.n_kv_blocks * p->kv_block : 0, 4);
    part(m, RT_PART_BUCKETS, m->options.choices.prefix_cache ? m->n_buckets : 0, 4);
    part(m, RT_PART_DURATIONS, p->section[SECTION_VARIANT].count * RT_QUARTERS, 4);
    part(m, RT_PART_BATCH, 1, sizeof(struct rt_batch));
    part(m, RT_PART_SLOTS, p->n_slots, sizeof(struct rt_slot));
    part(m, RT_PART_REQUESTS, p->n_slots, sizeof(struct rt_request));
    part(m, RT_PART_ROW_TOKEN, m->max_rows, 4);
    part(m, RT_PART_ROW_SLOT, m->max_rows, 4);
    part(m, RT_PART_ROW_POSITION, m->max_rows, 4);
    part(m, RT_PART_LOGIT_ROW, MAX(m->max_rows, m->max_logit_rows), 4);
    part(m, RT_PART_BLOCK_TABLE, (uint64_t)p->n_slots * m->max_blocks, 4);
    part(m, RT_PART_TOKENS, positions, 4);
    part(m, RT_PART_LOGPROBS, positions, 4);
    part(m, RT_PART_READS, 1, sizeof(struct rt_reads));
    uint64_t separate = m->options.separate ? 1 : 0;
    part(m, RT_PART_LISTS, 1 - separate, sizeof(struct rt_lists));
    part(m, RT_PART_TOPS, positions * m->options.choices.n_top, sizeof(struct rt_token_value));
    part(m, RT_PART_BIASES, p->n_slots * RT_MAX_BIASES * (1 - separate),
         sizeof(struct rt_token_value));

    part(m, RT_PART_MAIL, 1, sizeof(struct rt_mail));
    part(m, RT_PART_COMMANDS, m->n_commands, sizeof(struct rt_command));
    part(m, RT_PART_POSTS, p->n_slots, sizeof(struct rt_post));
    part(m, RT_PART_MASKS, (uint64_t)p->n_slots * rt_mask_stride(PROG(p, MODEL)->vocab), 4);
    part(m, RT_PART_ROUTES, positions * route_stride(p, &m->options), sizeof(uint16_t));
    part(m, RT_PART_MAIL_REQUESTS, p->n_slots * separate, sizeof(struct rt_request));
    part(m, RT_PART_PROMPTS, positions * separate, 4);
    part(m, RT_PART_OUT_TOKENS, positions * separate, 4);
    part(m, RT_PART_OUT_LOGPROBS, positions * separate, 4);
}

int rt_memory_plan(struct diag *d, const struct prog_header *p, const struct rt_options *options,
                   struct rt_memory *m) {
    *m = (struct rt_memory){.options = *options};
    if (options->n_kv_blocks == 0 || options->n_kv_blocks > INT32_MAX)
        return fail(d, QN_EINVAL, "KV cache: want from 1 to %d blocks, have %u", INT32_MAX,
                    options->n_kv_blocks);
    if (p->n_workers == 0 || p->n_workers > PROG_MAX_WORKERS || p->n_slots == 0 ||
        p->n_slots > PROG_MAX_SEQS || p->kv_block == 0 || p->max_model_len < 2 ||
        p->max_model_len > SPEC_MAX_MODEL_LEN || p->section[SECTION_VARIANT].count == 0)
        return fail(d, QN_EINVAL, "program: header out of bounds");
    if (options->choices.n_top > RT_MAX_TOP || (options->separate && options->choices.n_top > 0))
        return fail(d, QN_EINVAL, "n_top: want at most %d, have %u",
                    options->separate ? 0 : RT_MAX_TOP, options->choices.n_top);
    m->max_blocks = CEIL_DIV(p->max_model_len, p->kv_block);
    for (uint64_t i = 0; i < p->section[SECTION_VARIANT].count; i++) {
        m->max_rows = MAX(m->max_rows, PROG(p, VARIANT)[i].n_rows);
        m->max_logit_rows = MAX(m->max_logit_rows, PROG(p, VARIANT)[i].n_logit_rows);
    }
    choose(p, m);
    parts_of_protocol(p, m);
    parts_of_batch(p, m);
    return QN_OK;
}

/* The variant with the most token rows, then the most logit rows, then the longest contexts; of
 * equals the last one, which takes any rows. */
static uint32_t largest_variant(const struct prog_header *p) {
    const struct prog_variant *v = PROG(p, VARIANT);
    uint32_t best = 0;
    for (uint32_t i = 1; i < p->section[SECTION_VARIANT].count; i++)
        if (v[i].n_rows != v[best].n_rows               ? v[i].n_rows > v[best].n_rows
            : v[i].n_logit_rows != v[best].n_logit_rows ? v[i].n_logit_rows > v[best].n_logit_rows
                                                        : v[i].context >= v[best].context)
            best = i;
    return best;
}

static void bind_program(const struct prog_header *layout, const void *program, struct rt *rt) {
    const char *base = program;
    rt->variants = (const void *)(base + layout->section[SECTION_VARIANT].offset);
    rt->tasks = (const void *)(base + layout->section[SECTION_TASK].offset);
    rt->events = (const void *)(base + layout->section[SECTION_EVENT].offset);
    rt->aot = (const void *)(base + layout->section[SECTION_AOT].offset);
    rt->lists = (const void *)(base + layout->section[SECTION_LIST].offset);
    rt->n_variants = (uint32_t)layout->section[SECTION_VARIANT].count;
    rt->n_workers = layout->n_workers;
    rt->largest = largest_variant(layout);
    const struct prog_variant *v = PROG(layout, VARIANT);
    for (uint32_t i = 0; i < rt->n_variants; i++) {
        rt->shapes[i] = v[i].n_rows | v[i].n_logit_rows << 16;
        rt->contexts[i] = v[i].context;
        rt->decode_only |= v[i].decode_only << i;
        rt->jit_first[i + 1] = rt->jit_first[i] + count_jit(layout, &v[i]);
    }
}

static void bind_choices(const struct rt_memory *m, struct rt *rt) {
    const struct rt_options *o = &m->options;
    rt->until_idle = o->until_idle;
    rt->spin_limit = o->spin_limit;
    rt->max_batched = o->max_batched;
    rt->deadline_ns = o->deadline_ns;
    rt->counter_shift = m->counter_shift;
    rt->command_mask = m->n_commands - 1;
}

static void bind_batch(const struct rt_memory *m, const struct prog_header *p, char *state,
                       struct rt_batch *b) {
    *b = (struct rt_batch){
        .rows = {.ended = (void *)(state + m->offset[RT_PART_CONTROL] +
                                   offsetof(struct rt_control, ended)),
                 .token = (void *)(state + m->offset[RT_PART_ROW_TOKEN]),
                 .slot = (void *)(state + m->offset[RT_PART_ROW_SLOT]),
                 .position = (void *)(state + m->offset[RT_PART_ROW_POSITION]),
                 .logit_row = (void *)(state + m->offset[RT_PART_LOGIT_ROW])},
        .slots = (void *)(state + m->offset[RT_PART_SLOTS]),
        .requests = (void *)(state + m->offset[RT_PART_REQUESTS]),
        .tokens = (void *)(state + m->offset[RT_PART_TOKENS]),
        .logprobs = (void *)(state + m->offset[RT_PART_LOGPROBS]),
        .block_table = (void *)(state + m->offset[RT_PART_BLOCK_TABLE]),
        .reads = (void *)(state + m->offset[RT_PART_READS]),
        .lists = m->options.separate ? NULL : (void *)(state + m->offset[RT_PART_LISTS]),
        .n_slots = p->n_slots,
        .max_model_len = p->max_model_len,
        .max_blocks = m->max_blocks,
        .kv_block = p->kv_block,
        .n_kv_blocks = m->options.n_kv_blocks,
        .route_stride = route_stride(p, &m->options),
    };
}

void rt_memory_bind(const struct rt_memory *m, const struct prog_header *layout,
                    const void *program, void *state, void *mail, struct rt *rt,
                    struct rt_batch *batch) {
    char *s = state, *l = mail;
    *rt = (struct rt){0};
    bind_program(layout, program, rt);
    bind_choices(m, rt);
    bind_batch(m, layout, s, batch);
    if (m->bytes[RT_PART_ROUTES] > 0) batch->routes = (void *)(l + m->offset[RT_PART_ROUTES]);
    rt->shared = (void *)(s + m->offset[RT_PART_SHARED]);
    rt->stall = (void *)(s + m->offset[RT_PART_STALL]);
    rt->control = (void *)(s + m->offset[RT_PART_CONTROL]);
    rt->counters = (void *)(s + m->offset[RT_PART_COUNTERS]);
    rt->beats = (void *)(s + m->offset[RT_PART_BEATS]);
    rt->jit = (void *)(s + m->offset[RT_PART_JIT]);
    rt->ranks = (void *)(s + m->offset[RT_PART_RANKS]);
    rt->epochs = (void *)(s + m->offset[RT_PART_EPOCHS]);
    rt->running = (void *)(s + m->offset[RT_PART_RUNNING]);
    rt->news = (void *)(s + m->offset[RT_PART_NEWS]);
    rt->pool = (void *)(s + m->offset[RT_PART_POOL]);
    rt->batch = (void *)(s + m->offset[RT_PART_BATCH]);
    rt->mail = (void *)(l + m->offset[RT_PART_MAIL]);
    rt->commands = (void *)(l + m->offset[RT_PART_COMMANDS]);
    rt->posts = (void *)(l + m->offset[RT_PART_POSTS]);
    assert((char *)rt_masks_of(rt->posts, layout->n_slots) == l + m->offset[RT_PART_MASKS]);
    rt->mail_requests = batch->requests;
    rt->prompts = batch->tokens;
    if (m->options.separate) {
        rt->mail_requests = (void *)(l + m->offset[RT_PART_MAIL_REQUESTS]);
        rt->prompts = (void *)(l + m->offset[RT_PART_PROMPTS]);
        rt->out_tokens = (void *)(l + m->offset[RT_PART_OUT_TOKENS]);
        rt->out_logprobs = (void *)(l + m->offset[RT_PART_OUT_LOGPROBS]);
    }
}

/* Lists a variant's JIT tasks, and the ranks of its AOT tasks among them. In a wrong program a list
 * may be out of order: its ranks then never fall. */
static void fill_jit(const struct prog_header *p, const struct rt *rt, uint32_t variant,
                     uint32_t *jit, uint32_t *ranks) {
    const struct prog_variant *v = &PROG(p, VARIANT)[variant];
    uint32_t n = 0;
    jit += rt->jit_first[variant];
    for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++)
        if (is_jit(p, t)) jit[n++] = t;
    for (uint32_t w = 0; w < p->n_workers; w++) {
        const struct prog_list *list = &PROG(p, LIST)[variant * p->n_workers + w];
        uint32_t rank = 0;
        for (uint32_t i = list->first; i < list->first + list->n; i++) {
            while (rank < n && jit[rank] < PROG(p, AOT)[i]) rank++;
            ranks[i] = rank;
        }
    }
}

static uint64_t distance(const struct rt_memory *m, enum rt_part which) {
    return m->offset[which] - m->offset[RT_PART_POOL];
}

static void init_pool(const struct rt_memory *m, const struct prog_header *program,
                      struct rt_pool *pool) {
    const struct rt_choices *o = &m->options.choices;
    *pool = (struct rt_pool){
        .blocks_at = distance(m, RT_PART_BLOCKS),
        .tokens_at = distance(m, RT_PART_BLOCK_TOKENS),
        .buckets_at = distance(m, RT_PART_BUCKETS),
        .turns_at = distance(m, RT_PART_TURNS),
        .durations_at = distance(m, RT_PART_DURATIONS),
        .hash_seed = o->hash_seed,
        .max_step_ns = o->max_step_ns,
        .linger_ns = o->linger_ns,
        .prefix_cache = o->prefix_cache,
        .bucket_mask = m->n_buckets - 1,
        .rope_switch = spec_rope_switch(PROG(program, MODEL), program->max_model_len),
    };
}

/* All blocks are empty, and in the idle list in order; no request waits. */
static void init_blocks(const struct rt_memory *m, const struct rt *rt) {
    const uint32_t n = m->options.n_kv_blocks;
    struct rt_control *c = rt->control;
    for (uint32_t i = 0; i < n; i++)
        *rt_block_of(rt, i) = (struct rt_block){.parent = RT_NONE,
                                                .before = i > 0 ? i - 1 : RT_NONE,
                                                .after = i + 1 < n ? i + 1 : RT_NONE};
    uint32_t *buckets = rt_pool_at(rt, rt->pool->buckets_at);
    for (uint32_t i = 0; m->options.choices.prefix_cache && i < m->n_buckets; i++)
        buckets[i] = RT_NONE;
    c->n_free = rt->mail->counts.n_free = n;
    c->idle_first = 0;
    c->idle_last = n - 1;
    c->wait_first = c->wait_last = c->refused = RT_NONE;
}

void rt_memory_init(const struct rt_memory *m, const struct prog_header *program, void *state,
                    void *mail, const struct rt_batch *batch) {
    struct rt rt;
    struct rt_batch unused;
    rt_memory_bind(m, program, program, state, mail, &rt, &unused);
    for (uint32_t i = 0; i < rt.n_workers; i++) rt.beats[i].task = rt.beats[i].head = RT_NONE;
    uint32_t *jit = (uint32_t *)((char *)state + m->offset[RT_PART_JIT]);
    uint32_t *ranks = (uint32_t *)((char *)state + m->offset[RT_PART_RANKS]);
    for (uint32_t i = 0; i < rt.n_variants; i++) fill_jit(program, &rt, i, jit, ranks);
    init_pool(m, program, rt.pool);
    init_blocks(m, &rt);
    rt.shared->claim = RT_CLAIM_NONE;
    *rt.batch = *batch;
    if (m->options.separate) return;
    *batch->lists = (struct rt_lists){
        .tops = (void *)((char *)state + m->offset[RT_PART_TOPS]),
        .biases = (void *)((char *)state + m->offset[RT_PART_BIASES]),
        .masks = rt_masks_of(rt.posts, batch->n_slots),
        .n_top = m->options.choices.n_top,
    };
}

void rt_memory_relaunch(struct rt_shared *shared) {
    rt_store_relaxed(&shared->phase, RT_PHASE_START);
    rt_store_release(&shared->stop, RT_GO);
}

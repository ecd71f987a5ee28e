#include "runtime/rt_memory.h"

#include "base/checked.h"

#include <string.h>

enum {
    JIT_CAPACITY = 16,     /* shallow: what does not fit stays with the scheduler, which hands it to
                            * whoever has room */
    SCHED_CAPACITY = 1024, /* at most; enough for every event of most programs */
    WORKERS_PER_SCHED = 32,
    PADDED_EVENTS = 16384, /* up to here every counter has its own cache line (1 MiB) */
};

static uint32_t power_of_two(uint32_t n) {
    uint32_t p = 2;
    while (p < n && p < 1u << 30) p *= 2;
    return p;
}

static uint32_t most_jit_events(const struct prog_header *p) {
    uint32_t most = 0;
    for (uint64_t i = 0; i < p->section[SECTION_VARIANT].count; i++)
        most = MAX(most, PROG(p, VARIANT)[i].n_jit_events);
    return most;
}

static void choose(const struct prog_header *p, struct rt_memory *m) {
    struct rt_options *o = &m->options;
    if (o->n_schedulers == 0) o->n_schedulers = CEIL_DIV(p->n_workers, WORKERS_PER_SCHED);
    o->n_schedulers = MIN(o->n_schedulers, p->n_workers);
    uint32_t jit = o->jit_capacity ? o->jit_capacity : JIT_CAPACITY;
    uint32_t sched =
        o->sched_capacity ? o->sched_capacity : MIN(most_jit_events(p), SCHED_CAPACITY);
#ifdef QN_STRESS
    jit = sched = 2;
#endif
    m->jit_capacity = power_of_two(jit);
    m->sched_capacity = power_of_two(sched);
    /* A slot has at most three commands under way: CANCEL, SUBMIT, CANCEL; one more rings at stop.
     */
    m->n_commands = power_of_two(p->n_slots * 3 + 1);
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
    part(m, RT_PART_LINKS, n_events, 4);
    part(m, RT_PART_BEATS, p->n_workers, sizeof(struct rt_beat));
    part(m, RT_PART_SCHEDS, m->options.n_schedulers, sizeof(struct rt_sched));
    part(m, RT_PART_SCHED_QUEUES, m->options.n_schedulers, RT_QUEUE_BYTES(m->sched_capacity));
    part(m, RT_PART_JIT_QUEUES, p->n_workers, RT_QUEUE_BYTES(m->jit_capacity));
    part(m, RT_PART_EPOCHS, p->section[SECTION_VARIANT].count, 4);
}

static void parts_of_batch(const struct prog_header *p, struct rt_memory *m) {
    uint64_t positions = (uint64_t)p->n_slots * p->max_model_len;
    part(m, RT_PART_RUNNING, p->n_slots, 4);
    part(m, RT_PART_WAITING, p->n_slots, 4);
    part(m, RT_PART_NEWS, p->n_slots, sizeof(struct rt_news));
    part(m, RT_PART_FREE_BLOCKS, m->options.n_kv_blocks, 4);
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

    uint64_t separate = m->options.separate ? 1 : 0;
    part(m, RT_PART_MAIL, 1, sizeof(struct rt_mail));
    part(m, RT_PART_COMMANDS, m->n_commands, sizeof(struct rt_command));
    part(m, RT_PART_POSTS, p->n_slots, sizeof(struct rt_post));
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
    if (options->jit_capacity > 1 << 20 || options->sched_capacity > 1 << 20)
        return fail(d, QN_ELIMIT, "queues: want at most %d entries", 1 << 20);
    if (p->n_workers == 0 || p->n_workers > PROG_MAX_WORKERS || p->n_slots == 0 ||
        p->n_slots > PROG_MAX_SEQS || p->kv_block == 0 || p->max_model_len < 2 ||
        p->max_model_len > SPEC_MAX_MODEL_LEN || p->section[SECTION_VARIANT].count == 0)
        return fail(d, QN_EINVAL, "program: header out of bounds");
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

/* The variant with the most token rows; of several the one with the most logit rows. */
static uint32_t largest_variant(const struct prog_header *p) {
    const struct prog_variant *v = PROG(p, VARIANT);
    uint32_t best = 0;
    for (uint32_t i = 1; i < p->section[SECTION_VARIANT].count; i++)
        if (v[i].n_rows > v[best].n_rows ||
            (v[i].n_rows == v[best].n_rows && v[i].n_logit_rows > v[best].n_logit_rows))
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
    for (uint32_t i = 0; i < rt->n_variants; i++)
        rt->shapes[i] = v[i].n_rows | v[i].n_logit_rows << 16;
}

static void bind_choices(const struct rt_memory *m, struct rt *rt) {
    const struct rt_options *o = &m->options;
    rt->n_schedulers = o->n_schedulers;
    rt->until_idle = o->until_idle;
    rt->steal = o->steal;
    rt->spin_limit = o->spin_limit;
    rt->max_batched = o->max_batched;
    rt->deadline_ns = o->deadline_ns;
    rt->counter_shift = m->counter_shift;
    rt->jit_mask = m->jit_capacity - 1;
    rt->sched_mask = m->sched_capacity - 1;
    rt->jit_bytes = RT_QUEUE_BYTES(m->jit_capacity);
    rt->sched_bytes = RT_QUEUE_BYTES(m->sched_capacity);
    rt->command_mask = m->n_commands - 1;
}

static void bind_batch(const struct rt_memory *m, const struct prog_header *p, char *state,
                       struct rt_batch *b) {
    *b = (struct rt_batch){
        .rows = {.token = (void *)(state + m->offset[RT_PART_ROW_TOKEN]),
                 .slot = (void *)(state + m->offset[RT_PART_ROW_SLOT]),
                 .position = (void *)(state + m->offset[RT_PART_ROW_POSITION]),
                 .logit_row = (void *)(state + m->offset[RT_PART_LOGIT_ROW])},
        .slots = (void *)(state + m->offset[RT_PART_SLOTS]),
        .requests = (void *)(state + m->offset[RT_PART_REQUESTS]),
        .tokens = (void *)(state + m->offset[RT_PART_TOKENS]),
        .logprobs = (void *)(state + m->offset[RT_PART_LOGPROBS]),
        .block_table = (void *)(state + m->offset[RT_PART_BLOCK_TABLE]),
        .n_slots = p->n_slots,
        .max_model_len = p->max_model_len,
        .max_blocks = m->max_blocks,
        .kv_block = p->kv_block,
        .kv_dtype = p->kv_dtype,
        .n_kv_blocks = m->options.n_kv_blocks,
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
    rt->shared = (void *)(s + m->offset[RT_PART_SHARED]);
    rt->stall = (void *)(s + m->offset[RT_PART_STALL]);
    rt->control = (void *)(s + m->offset[RT_PART_CONTROL]);
    rt->counters = (void *)(s + m->offset[RT_PART_COUNTERS]);
    rt->links = (void *)(s + m->offset[RT_PART_LINKS]);
    rt->beats = (void *)(s + m->offset[RT_PART_BEATS]);
    rt->scheds = (void *)(s + m->offset[RT_PART_SCHEDS]);
    rt->sched_queues = s + m->offset[RT_PART_SCHED_QUEUES];
    rt->jit_queues = s + m->offset[RT_PART_JIT_QUEUES];
    rt->epochs = (void *)(s + m->offset[RT_PART_EPOCHS]);
    rt->running = (void *)(s + m->offset[RT_PART_RUNNING]);
    rt->waiting = (void *)(s + m->offset[RT_PART_WAITING]);
    rt->news = (void *)(s + m->offset[RT_PART_NEWS]);
    rt->free_blocks = (void *)(s + m->offset[RT_PART_FREE_BLOCKS]);
    rt->batch = (void *)(s + m->offset[RT_PART_BATCH]);
    rt->mail = (void *)(l + m->offset[RT_PART_MAIL]);
    rt->commands = (void *)(l + m->offset[RT_PART_COMMANDS]);
    rt->posts = (void *)(l + m->offset[RT_PART_POSTS]);
    rt->mail_requests = batch->requests;
    rt->prompts = batch->tokens;
    if (m->options.separate) {
        rt->mail_requests = (void *)(l + m->offset[RT_PART_MAIL_REQUESTS]);
        rt->prompts = (void *)(l + m->offset[RT_PART_PROMPTS]);
        rt->out_tokens = (void *)(l + m->offset[RT_PART_OUT_TOKENS]);
        rt->out_logprobs = (void *)(l + m->offset[RT_PART_OUT_LOGPROBS]);
    }
}

void rt_memory_init(const struct rt_memory *m, const struct prog_header *program, void *state,
                    void *mail, const struct rt_batch *batch) {
    struct rt rt;
    struct rt_batch unused;
    rt_memory_bind(m, program, program, state, mail, &rt, &unused);
    for (uint32_t i = 0; i < rt.n_workers; i++) {
        rt_queue_init(rt_jit_queue(&rt, i), rt.jit_mask);
        rt.beats[i].task = rt.beats[i].head = RT_NONE;
    }
    for (uint32_t i = 0; i < rt.n_schedulers; i++) {
        rt_queue_init(rt_sched_queue(&rt, i), rt.sched_mask);
        rt.scheds[i].to = i; /* there are no more schedulers than workers */
    }
    uint32_t n = m->options.n_kv_blocks;
    for (uint32_t i = 0; i < n; i++) rt.free_blocks[i] = (int32_t)(n - 1 - i); /* 0 goes first */
    rt.control->n_free = n;
    *rt.batch = *batch;
}

void rt_memory_relaunch(struct rt_shared *shared) {
    rt_store_relaxed(&shared->phase, RT_PHASE_START);
    rt_store_release(&shared->stop, RT_GO);
}

#include "grammar/states.h"

#include "base/checked.h"

#include <string.h>

void states_fini(struct states *s) {
    free(s->items);
    free(s->steps);
    free(s->threads);
    free(s->frames);
    free(s->state_slots);
    free(s->frame_slots);
    free(s->seen);
    free(s->todo);
    free(s->found);
    *s = (struct states){0};
}

int states_init(struct diag *d, const struct code *code, struct states *s) {
    const uint32_t n_max = MIN(STATES_MAX, STATES_STEPS_MAX / code->n_classes);
    *s = (struct states){.code = code, .n_max = n_max, .n = STATE_FIRST, .n_frames = 1};
    s->items = calloc(n_max, sizeof *s->items);
    s->steps = calloc((size_t)n_max * code->n_classes, sizeof *s->steps);
    s->threads = calloc(STATES_THREADS_MAX, sizeof *s->threads);
    s->frames = calloc(STATES_FRAMES_MAX, sizeof *s->frames);
    s->state_slots = calloc(2 * (size_t)n_max, sizeof *s->state_slots);
    s->frame_slots = calloc(2 * STATES_FRAMES_MAX, sizeof *s->frame_slots);
    s->seen = calloc(2 * STATES_VISITS_MAX, sizeof *s->seen);
    s->todo = calloc(STATES_VISITS_MAX, sizeof *s->todo);
    s->found = calloc(STATES_VISITS_MAX, sizeof *s->found);
    if (s->items && s->steps && s->threads && s->frames && s->state_slots && s->frame_slots &&
        s->seen && s->todo && s->found)
        return QN_OK;
    states_fini(s);
    return fail_nomem(d, STATES_STEPS_MAX * sizeof(uint32_t), "the states of a grammar");
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

/* ---- frames ------------------------------------------------------------------------------- */

/* The frame; STATES_FRAMES_MAX: there is no room. */
static uint32_t frame_of(struct states *s, uint32_t pc, uint32_t under) {
    const uint32_t mask = 2 * STATES_FRAMES_MAX - 1;
    uint32_t at = (uint32_t)mix((uint64_t)pc << 32 | under) & mask;
    for (; s->frame_slots[at] != 0; at = (at + 1) & mask) {
        const struct frame *f = &s->frames[s->frame_slots[at]];
        if (f->pc == pc && f->under == under) return s->frame_slots[at];
    }
    if (s->n_frames == STATES_FRAMES_MAX) return STATES_FRAMES_MAX;
    s->frames[s->n_frames] = (struct frame){pc, under};
    return s->frame_slots[at] = s->n_frames++;
}

/* ---- closure: what can be reached without a byte ------------------------------------------- */

static void closure_begin(struct states *s) {
    s->n_todo = s->n_found = s->n_seen = 0;
    s->found_end = false;
    s->stamp++;
}

/* Errors: QN_ELIMIT. */
static int visit(struct diag *d, struct states *s, uint32_t pc, uint32_t frame) {
    const uint32_t mask = 2 * STATES_VISITS_MAX - 1;
    const uint64_t thread = (uint64_t)pc << 32 | frame;
    uint32_t at = (uint32_t)mix(thread) & mask;
    for (; s->seen[at].stamp == s->stamp; at = (at + 1) & mask)
        if (s->seen[at].thread == thread) return QN_OK;
    if (s->n_seen == STATES_VISITS_MAX)
        return fail(d, QN_ELIMIT,
                    "the grammar is too ambiguous: more than %d ways to go on at one place",
                    STATES_VISITS_MAX);
    s->seen[at] = (struct visit){thread, s->stamp};
    s->n_seen++;
    s->n_visits++;
    s->todo[s->n_todo++] = thread;
    return QN_OK;
}

static int call(struct diag *d, struct states *s, const struct instruction *i, uint32_t frame) {
    uint32_t under = frame;
    if (s->code->items.items[i->next].kind != CODE_RETURN) under = frame_of(s, i->next, frame);
    if (under == STATES_FRAMES_MAX)
        return fail(d, QN_ELIMIT, "the text is nested too deep: more than %d rules are open",
                    STATES_FRAMES_MAX);
    return visit(d, s, i->other, under);
}

/* Follows all that was visited to the instructions that want a byte. */
static int close_threads(struct diag *d, struct states *s) {
    while (s->n_todo > 0) {
        const uint64_t thread = s->todo[--s->n_todo];
        const struct instruction *i = &s->code->items.items[thread >> 32];
        const uint32_t frame = (uint32_t)thread;
        switch (i->kind) {
        case CODE_RANGE: s->found[s->n_found++] = thread; break;
        case CODE_CALL: TRY(call(d, s, i, frame)); break;
        case CODE_SPLIT:
            TRY(visit(d, s, i->next, frame));
            TRY(visit(d, s, i->other, frame));
            break;
        case CODE_RETURN:
            if (frame == 0)
                s->found_end = true;
            else
                TRY(visit(d, s, s->frames[frame].pc, s->frames[frame].under));
        }
    }
    return QN_OK;
}

/* ---- states ------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool is_found(const struct states *s, uint32_t state, uint64_t hash) {
    const struct state *t = &s->items[state];
    return t->hash == hash && t->n == s->n_found && t->accepts == s->found_end &&
           memcmp(s->threads + t->first, s->found, s->n_found * sizeof *s->found) == 0;
}

/* The state of the threads that a closure has found. */
static int state_of_found(struct diag *d, struct states *s, uint32_t *state) {
    const uint32_t n_slots = 2 * s->n_max;
    uint64_t hash = s->found_end;
    *state = STATE_DEAD;
    if (s->n_found == 0 && !s->found_end) return QN_OK;
    qsort(s->found, s->n_found, sizeof *s->found, by_number);
    for (uint32_t i = 0; i < s->n_found; i++) hash = mix(hash + s->found[i]);
    uint32_t at = (uint32_t)(hash % n_slots);
    for (; s->state_slots[at] != 0; at = at + 1 == n_slots ? 0 : at + 1)
        if (is_found(s, *state = s->state_slots[at], hash)) return QN_OK;
    if (s->n == s->n_max || s->n_threads + s->n_found > STATES_THREADS_MAX)
        return fail(d, QN_ELIMIT, "the grammar has too many states at one place: more than %u",
                    s->n);
    s->items[s->n] = (struct state){
        .first = s->n_threads, .n = s->n_found, .hash = hash, .accepts = s->found_end};
    memcpy(s->threads + s->n_threads, s->found, s->n_found * sizeof *s->found);
    s->n_threads += s->n_found;
    *state = s->state_slots[at] = s->n++;
    return QN_OK;
}

int states_start(struct diag *d, struct states *s, uint32_t *state) {
    closure_begin(s);
    TRY(visit(d, s, s->code->start, 0));
    TRY(close_threads(d, s));
    return state_of_found(d, s, state);
}

int states_step(struct diag *d, struct states *s, uint32_t from, uint32_t byte_class,
                uint32_t *to) {
    const uint8_t byte = s->code->byte_of[byte_class];
    closure_begin(s);
    for (uint32_t i = 0; i < s->items[from].n; i++) {
        const uint64_t thread = s->threads[s->items[from].first + i];
        const struct instruction *at = &s->code->items.items[thread >> 32];
        if (at->low <= byte && byte <= at->high) TRY(visit(d, s, at->next, (uint32_t)thread));
    }
    s->n_visits += s->items[from].n;
    TRY(close_threads(d, s));
    TRY(state_of_found(d, s, to));
    s->steps[(size_t)from * s->code->n_classes + byte_class] = *to;
    return QN_OK;
}

/* ---- forgetting --------------------------------------------------------------------------- */

bool states_crowded(const struct states *s) {
    return s->n > s->n_max / 2 || s->n_threads > STATES_THREADS_MAX / 2 ||
           s->n_frames > STATES_FRAMES_MAX / 2;
}

/* Frames that a state needs, in the order of their numbers: a frame's `under` is older than it. */
static void keep_frames(struct states *s, const uint64_t *threads, uint32_t n, uint32_t *renamed) {
    const uint32_t n_before = s->n_frames;
    memset(renamed, 0, n_before * sizeof *renamed);
    for (uint32_t i = 0; i < n; i++) renamed[(uint32_t)threads[i]] = 1;
    for (uint32_t i = n_before; i-- > 1;)
        if (renamed[i]) renamed[s->frames[i].under] = 1;
    memset(s->frame_slots, 0, 2 * STATES_FRAMES_MAX * sizeof *s->frame_slots);
    renamed[0] = 0;
    s->n_frames = 1;
    for (uint32_t i = 1; i < n_before; i++)
        if (renamed[i]) {
            const struct frame f = s->frames[i];
            renamed[i] = frame_of(s, f.pc, renamed[f.under]);
        }
}

int states_keep(struct diag *d, struct states *s, uint32_t *state) {
    const struct state kept = s->items[*state];
    uint32_t *renamed = malloc(s->n_frames * sizeof *renamed);
    if (!renamed) return fail_nomem(d, s->n_frames * sizeof *renamed, "a grammar's states");
    keep_frames(s, s->threads + kept.first, kept.n, renamed);
    closure_begin(s);
    s->found_end = kept.accepts;
    for (uint32_t i = 0; i < kept.n; i++) {
        const uint64_t thread = s->threads[kept.first + i];
        s->found[s->n_found++] = (thread & ~(uint64_t)UINT32_MAX) | renamed[(uint32_t)thread];
    }
    free(renamed);
    memset(s->state_slots, 0, 2 * (size_t)s->n_max * sizeof *s->state_slots);
    memset(s->steps, 0, (size_t)s->n * s->code->n_classes * sizeof *s->steps);
    s->n = STATE_FIRST;
    s->n_threads = 0;
    TRY(state_of_found(d, s, state));
    if (!states_crowded(s)) return QN_OK;
    return fail(d, QN_ELIMIT, "the text is nested too deep for its grammar");
}

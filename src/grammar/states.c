#include "grammar/states.h"

#include "base/checked.h"

#include <string.h>
#include <sys/mman.h>

/* ---- tables ------------------------------------------------------------------------------- */

enum { TABLE_FIRST = 256 };

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static void table_begin(struct table *t, uint32_t n_slots) {
    t->mask = n_slots - 1;
    memset(t->slots, 0, n_slots * sizeof *t->slots);
}

static void table_put(struct table *t, uint64_t hash, uint32_t number) {
    uint32_t at = (uint32_t)hash & t->mask;
    while (t->slots[at] != 0) at = (at + 1) & t->mask;
    t->slots[at] = number;
}

/* Whether a table of n numbers needs more slots before the next number is put. */
static bool table_is_full(const struct table *t, uint32_t n) {
    return 2 * (n + 1) > t->mask + 1;
}

/* ---- memory ------------------------------------------------------------------------------- */

/* Lays out the arrays one after the other in `map`; map NULL: only counts the bytes. */
static void place(struct states *s, char *map) {
    const size_t n = s->n_max, n_threads = STATES_THREADS_MAX, n_frames = STATES_FRAMES_MAX,
                 n_visits = STATES_VISITS_MAX;
    const struct {
        void **part;
        size_t bytes;
    } parts[] = {
        {(void **)&s->items, n * sizeof *s->items},
        {(void **)&s->steps, n * s->code->n_classes * sizeof *s->steps},
        {(void **)&s->threads, n_threads * sizeof *s->threads},
        {(void **)&s->frames, n_frames * sizeof *s->frames},
        {(void **)&s->normal_frames, n_frames * sizeof *s->normal_frames},
        {(void **)&s->state_table.slots, 2 * STATES_MAX * sizeof(uint32_t)},
        {(void **)&s->frame_table.slots, 2 * n_frames * sizeof(uint32_t)},
        {(void **)&s->visit_table.slots, 2 * n_visits * sizeof(uint32_t)},
        {(void **)&s->visits, n_visits * sizeof *s->visits},
        {(void **)&s->todo, n_visits * sizeof *s->todo},
        {(void **)&s->found, n_visits * sizeof *s->found},
    };
    s->bytes = 0;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (map) *parts[i].part = map + s->bytes;
        s->bytes += align_up(parts[i].bytes, 64);
    }
}

void states_fini(struct states *s) {
    if (s->map) munmap(s->map, s->bytes);
    *s = (struct states){0};
}

/* Maps all memory at once, zeroed. Parts that no state comes to are never touched and take none. */
int states_init(struct diag *d, const struct code *code, uint32_t margin, struct states *s) {
    const uint32_t n_max = MIN(STATES_MAX, STATES_STEPS_MAX / code->n_classes);
    *s = (struct states){.code = code,
                         .margin = margin,
                         .n_max = n_max,
                         .n = STATE_FIRST,
                         .n_frames = 1,
                         .n_normal = 1};
    place(s, NULL);
    void *map = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return fail_nomem(d, s->bytes, "the states of a grammar");
    place(s, s->map = map);
    table_begin(&s->state_table, TABLE_FIRST);
    table_begin(&s->frame_table, TABLE_FIRST);
    return QN_OK;
}

/* ---- frames ------------------------------------------------------------------------------- */

static uint64_t hash_of_frame(const struct frame *f) {
    return mix(mix((uint64_t)f->pc << 32 | f->under) + f->count);
}

static void grow_frames(struct states *s) {
    table_begin(&s->frame_table, 2 * (s->frame_table.mask + 1));
    for (uint32_t i = 1; i < s->n_frames; i++)
        table_put(&s->frame_table, hash_of_frame(&s->frames[i]), i);
}

/* The number of a frame. Errors: QN_ELIMIT. */
static int frame_of(struct diag *d, struct states *s, struct frame want, uint32_t *frame) {
    const struct table *t = &s->frame_table;
    const uint64_t hash = hash_of_frame(&want);
    for (uint32_t at = (uint32_t)hash & t->mask; t->slots[at] != 0; at = (at + 1) & t->mask) {
        const struct frame *f = &s->frames[t->slots[at]];
        *frame = t->slots[at];
        if (f->pc == want.pc && f->under == want.under && f->count == want.count) return QN_OK;
    }
    if (s->n_frames == STATES_FRAMES_MAX)
        return fail(d, QN_ELIMIT, "the text is nested too deep: more than %d rules are open",
                    STATES_FRAMES_MAX);
    if (table_is_full(t, s->n_frames)) grow_frames(s);
    s->frames[s->n_frames] = want;
    table_put(&s->frame_table, hash, *frame = s->n_frames++);
    return QN_OK;
}

static const struct instruction *bounds_of(const struct states *s, uint32_t repeat) {
    return &s->code->items.items[repeat + 1];
}

/* A count that behaves like f's for the next `margin` bytes. A body that may be the empty text may
 * come any number of times before the next byte, so its count stays. */
static uint32_t normal_count(const struct states *s, const struct frame *f) {
    if (f->count == FRAME_CALL) return f->count;
    const struct instruction *bounds = bounds_of(s, f->pc);
    const uint32_t least = bounds->next, most = bounds->other;
    if (bounds->low || most - f->count <= s->margin) return f->count;
    if (f->count >= least) return least;
    return least - f->count > s->margin ? 0 : f->count;
}

/* A frame's `under` is older and has a smaller number, so frames are handled in order. */
static int normal_frame(struct diag *d, struct states *s, uint32_t frame, uint32_t *normal) {
    for (; s->n_normal <= frame; s->n_normal++) {
        const struct frame *f = &s->frames[s->n_normal];
        const struct frame want = {f->pc, normal_count(s, f), s->normal_frames[f->under]};
        TRY(frame_of(d, s, want, &s->normal_frames[s->n_normal]));
    }
    *normal = s->normal_frames[frame];
    return QN_OK;
}

/* ---- closure: what can be reached without a byte ------------------------------------------- */

static void closure_begin(struct states *s) {
    s->n_todo = s->n_found = s->n_visited = 0;
    s->found_end = false;
    table_begin(&s->visit_table, TABLE_FIRST);
}

static void grow_visits(struct states *s) {
    table_begin(&s->visit_table, 2 * (s->visit_table.mask + 1));
    for (uint32_t i = 0; i < s->n_visited; i++)
        table_put(&s->visit_table, mix(s->visits[i]), i + 1);
}

/* Errors: QN_ELIMIT. */
static int visit(struct diag *d, struct states *s, uint32_t pc, uint32_t frame) {
    const struct table *t = &s->visit_table;
    const uint64_t thread = (uint64_t)pc << 32 | frame, hash = mix(thread);
    for (uint32_t at = (uint32_t)hash & t->mask; t->slots[at] != 0; at = (at + 1) & t->mask)
        if (s->visits[t->slots[at] - 1] == thread) return QN_OK;
    if (s->n_visited == STATES_VISITS_MAX)
        return fail(d, QN_ELIMIT,
                    "the grammar is too ambiguous: more than %d ways to go on at one place",
                    STATES_VISITS_MAX);
    if (table_is_full(t, s->n_visited)) grow_visits(s);
    s->visits[s->n_visited++] = thread;
    table_put(&s->visit_table, hash, s->n_visited);
    s->n_visits++;
    s->todo[s->n_todo++] = thread;
    return QN_OK;
}

static int call(struct diag *d, struct states *s, const struct instruction *i, uint32_t frame) {
    uint32_t under = frame;
    if (s->code->items.items[i->next].kind != CODE_RETURN)
        TRY(frame_of(d, s, (struct frame){i->next, FRAME_CALL, frame}, &under));
    return visit(d, s, i->other, under);
}

/* The body of the REPEAT at pc has come `count` times. Without an upper bound, all counts from
 * `least` on are alike. */
static int repeat(struct diag *d, struct states *s, uint32_t pc, uint32_t count, uint32_t under) {
    const struct instruction *i = &s->code->items.items[pc];
    const uint32_t least = bounds_of(s, pc)->next, most = bounds_of(s, pc)->other;
    uint32_t frame;
    if (most == EXPR_NO_LIMIT) count = MIN(count, least);
    if (count >= least) TRY(visit(d, s, i->next, under));
    if (count >= most) return QN_OK;
    TRY(frame_of(d, s, (struct frame){pc, count, under}, &frame));
    return visit(d, s, i->other, frame);
}

static int give_back(struct diag *d, struct states *s, uint32_t frame) {
    const struct frame f = s->frames[frame];
    if (frame == 0) {
        s->found_end = true;
        return QN_OK;
    }
    if (f.count != FRAME_CALL) return repeat(d, s, f.pc, f.count + 1, f.under);
    return visit(d, s, f.pc, f.under);
}

/* Follows all visited instructions to those that wait for a byte. */
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
        case CODE_REPEAT: TRY(repeat(d, s, (uint32_t)(thread >> 32), 0, frame)); break;
        case CODE_RETURN: TRY(give_back(d, s, frame));
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

static void grow_states(struct states *s) {
    table_begin(&s->state_table, 2 * (s->state_table.mask + 1));
    for (uint32_t i = STATE_FIRST; i < s->n; i++) table_put(&s->state_table, s->items[i].hash, i);
}

/* The state of the threads that a closure has found. */
static int state_of_found(struct diag *d, struct states *s, uint32_t *state) {
    const struct table *t = &s->state_table;
    uint64_t hash = s->found_end;
    *state = STATE_DEAD;
    if (s->n_found == 0 && !s->found_end) return QN_OK;
    qsort(s->found, s->n_found, sizeof *s->found, by_number);
    for (uint32_t i = 0; i < s->n_found; i++) hash = mix(hash + s->found[i]);
    for (uint32_t at = (uint32_t)hash & t->mask; t->slots[at] != 0; at = (at + 1) & t->mask)
        if (is_found(s, *state = t->slots[at], hash)) return QN_OK;
    if (s->n == s->n_max || s->n_threads + s->n_found > STATES_THREADS_MAX)
        return fail(d, QN_ELIMIT, "the grammar has too many states at one place: more than %u",
                    s->n);
    if (table_is_full(t, s->n)) grow_states(s);
    s->items[s->n] = (struct state){
        .first = s->n_threads, .n = s->n_found, .hash = hash, .accepts = s->found_end};
    memcpy(s->threads + s->n_threads, s->found, s->n_found * sizeof *s->found);
    s->n_threads += s->n_found;
    table_put(&s->state_table, hash, *state = s->n++);
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

/* ---- normal states ------------------------------------------------------------------------ */

/* Sorts the found threads and drops all but one of equal ones. */
static void drop_doubles(struct states *s) {
    uint32_t n = 0;
    qsort(s->found, s->n_found, sizeof *s->found, by_number);
    for (uint32_t i = 0; i < s->n_found; i++)
        if (i == 0 || s->found[i] != s->found[n - 1]) s->found[n++] = s->found[i];
    s->n_found = n;
}

int states_normal(struct diag *d, struct states *s, uint32_t state, uint32_t *normal) {
    const struct state from = s->items[state];
    *normal = from.normal;
    if (*normal != STATE_UNKNOWN) return QN_OK;
    closure_begin(s);
    s->found_end = from.accepts;
    for (uint32_t i = 0; i < from.n; i++) {
        const uint64_t thread = s->threads[from.first + i];
        uint32_t frame;
        TRY(normal_frame(d, s, (uint32_t)thread, &frame));
        s->found[s->n_found++] = (thread & ~(uint64_t)UINT32_MAX) | frame;
    }
    drop_doubles(s);
    TRY(state_of_found(d, s, normal));
    s->items[state].normal = s->items[*normal].normal = *normal;
    return QN_OK;
}

/* ---- forgetting --------------------------------------------------------------------------- */

bool states_crowded(const struct states *s) {
    return s->n > s->n_max / 2 || s->n_threads > STATES_THREADS_MAX / 2 ||
           s->n_frames > STATES_FRAMES_MAX / 2;
}

/* Copies the frames that the states need, in the order of their numbers: a frame's `under` is
 * older. renamed[i]: the number in `to` of frame i. */
static int copy_frames(struct diag *d, const struct states *from, struct states *to,
                       const uint32_t *states, uint32_t n, uint32_t *renamed) {
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < from->items[states[k]].n; i++)
            renamed[(uint32_t)from->threads[from->items[states[k]].first + i]] = 1;
    for (uint32_t i = from->n_frames; i-- > 1;)
        if (renamed[i]) renamed[from->frames[i].under] = 1;
    renamed[0] = 0;
    for (uint32_t i = 1; i < from->n_frames; i++) {
        const struct frame *f = &from->frames[i];
        const struct frame want = {f->pc, f->count, renamed[f->under]};
        if (renamed[i]) TRY(frame_of(d, to, want, &renamed[i]));
    }
    return QN_OK;
}

static int copy_states(struct diag *d, const struct states *from, struct states *to,
                       uint32_t *states, uint32_t n, const uint32_t *renamed) {
    for (uint32_t k = 0; k < n; k++) {
        const struct state *s = &from->items[states[k]];
        closure_begin(to);
        to->found_end = s->accepts;
        for (uint32_t i = 0; i < s->n; i++) {
            const uint64_t thread = from->threads[s->first + i];
            to->found[to->n_found++] = (thread & ~(uint64_t)UINT32_MAX) | renamed[(uint32_t)thread];
        }
        drop_doubles(to);
        TRY(state_of_found(d, to, &states[k]));
    }
    return QN_OK;
}

int states_copy(struct diag *d, const struct states *from, struct states *to, uint32_t *states,
                uint32_t n) {
    uint32_t *renamed = calloc(from->n_frames, sizeof *renamed);
    if (!renamed) return fail_nomem(d, from->n_frames * sizeof *renamed, "a grammar's states");
    int rc = copy_frames(d, from, to, states, n, renamed);
    if (rc == QN_OK) rc = copy_states(d, from, to, states, n, renamed);
    free(renamed);
    return rc;
}

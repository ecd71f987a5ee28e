/* Gangs: consecutive tasks of an operator that run together on consecutive workers. The stages keep
 * them whole, the proof refuses what would not run together, and random defects are judged by an
 * oracle that runs the lists with a rendezvous of each gang. */
#include "task/random.h"
#include "base/checked.h"
#include "task/fixture.h"
#include "task/stage_test.h"

#include <string.h>

enum { MUTANTS = 3000, MAX_WORKERS = 32 };

#define TASKS(p) ((struct prog_task *)PROG(p, TASK))
#define AOT(p)   ((uint32_t *)PROG(p, AOT))
#define LISTS(p) ((struct prog_list *)PROG(p, LIST))
#define OPS(p)   ((struct prog_op *)PROG(p, OP))

static void set_gangs(uint32_t n) {
    static const enum op_kind kinds[] = {OP_QKV,     OP_QKV_LINEAR,    OP_ATTENTION,
                                         OP_LINEAR,  OP_GATED_MLP,     OP_ATTENTION_SPLIT,
                                         OP_LM_HEAD, OP_LINEAR_SPLITK, OP_ATTENTION_MERGE};
    memset(fixture_gang, 0, sizeof fixture_gang);
    for (size_t i = 0; n > 1 && i < COUNT_OF(kinds); i++) fixture_gang[kinds[i]] = n;
}

static struct prog_header *compile(const struct model_spec *spec, uint32_t n_rows, uint32_t cuts,
                                   const struct task_options *o) {
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    ok(&d, fixture_compile(&d, &f, spec, n_rows, 256, cuts, o));
    ok(&d, fixture_program(&d, &f, 256, &p));
    fixture_fini(&f);
    return p;
}

/* The tasks of an operator in the program's order; returns how many. */
static uint32_t tasks_of(const struct prog_header *p, uint32_t op, uint32_t *list, uint32_t most) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->section[SECTION_TASK].count; i++)
        if (TASKS(p)[i].op == op && n < most) list[n++] = i;
    return n;
}

/* ---- the stages and the proof ---- */

/* Whatever the graph and the launch policy: gangs stand on aligned consecutive workers, with one
 * event before and one after, and the program is proved. */
static uint32_t look_at_gangs(const struct prog_header *p, uint32_t gang) {
    uint32_t list[512], n_gangs = 0;
    for (uint32_t op = 0; op < p->section[SECTION_OP].count; op++) {
        if (OPS(p)[op].gang == 1) continue;
        assert_int_equal(OPS(p)[op].gang, gang);
        const uint32_t n = tasks_of(p, op, list, COUNT_OF(list));
        assert_true(n > 0 && n % gang == 0);
        for (uint32_t i = 0; i < n; i++) {
            const struct prog_task *lead = &TASKS(p)[list[i - i % gang]], *t = &TASKS(p)[list[i]];
            assert_int_equal(list[i], list[i - i % gang] + i % gang);
            assert_int_equal(lead->worker % gang, 0);
            assert_int_equal(t->worker, lead->worker + i % gang);
            assert_int_equal(t->wait, lead->wait);
            assert_int_equal(t->trigger, lead->trigger);
        }
        n_gangs += n / gang;
    }
    return n_gangs;
}

static void gangs_stay_whole(void **state) {
    (void)state;
    const struct model_spec specs[] = {fixture_spec(2, 64, 4, 1, 16, 100, 301),
                                       fixture_spec(2, 256, 8, 4, 32, 512, 1000)};
    const uint32_t workers[] = {4, 7, 13}, rows[] = {1, 6, PACK_ROWS}, gangs[] = {2, 4};
    uint32_t n_gangs = 0;
    for (size_t s = 0; s < COUNT_OF(specs); s++)
        for (size_t w = 0; w < COUNT_OF(workers); w++)
            for (size_t r = 0; r < COUNT_OF(rows); r++)
                for (size_t k = 0; k < COUNT_OF(gangs); k++)
                    for (uint32_t variation = 0; variation < 8; variation++) {
                        struct diag d = {0};
                        struct task_options o = defaults;
                        o.device.n_workers = workers[w];
                        o.tasks_per_worker = 1 + variation % 2;
                        o.launch = (enum launch_policy)(variation % 4);
                        o.coarse_events = variation == 5;
                        o.no_event_fusion = variation == 6;
                        o.transport_bytes = variation == 2 || variation == 7 ? 1 << 20 : 0;
                        uint32_t cuts = variation % 3;
                        if (o.transport_bytes > 0) cuts |= KGRAPH_CUT_QKV;
                        set_gangs(gangs[k]);
                        struct prog_header *p = compile(&specs[s], rows[r], cuts, &o);
                        ok(&d, program_check(&d, "gangs", p, p->total_bytes));
                        ok(&d, task_verify(&d, p, NULL));
                        n_gangs += look_at_gangs(p, gangs[k]);
                        free(p);
                    }
    assert_true(n_gangs > 1000);
}

/* Gangs that cannot be made are refused with words. */
static void a_gang_needs_workers_and_parts(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(1, 64, 4, 1, 16, 100, 301);
    struct task_options o = defaults;
    o.device.n_workers = 3;
    for (int i = 0; i < 2; i++) {
        struct diag d = {0};
        struct fixture f;
        set_gangs(0);
        fixture_gang[i == 0 ? OP_LINEAR : OP_EMBED] = i == 0 ? 4 : 2;
        assert_int_equal(fixture_compile(&d, &f, &spec, 1, 256, 0, &o), QN_EINVAL);
        assert_non_null(strstr(d.message, i == 0 ? "want gangs of 4 tasks; there are 3 workers"
                                                 : "want gangs of 2 tasks"));
        fixture_fini(&f);
    }
}

/* ---- defects with a name ---- */

/* Lists as place makes them, after workers have changed. */
static void relist(struct prog_header *p) {
    uint32_t at = 0;
    for (uint32_t w = 0; w < p->n_workers; w++) {
        LISTS(p)[w].first = at;
        for (uint32_t i = 0; i < p->section[SECTION_TASK].count; i++)
            if (TASKS(p)[i].worker == w) AOT(p)[at++] = i;
        LISTS(p)[w].n = at - LISTS(p)[w].first;
    }
}

static uint32_t lead_of(const struct prog_header *p, enum op_kind kind) {
    for (uint32_t i = 0; i < p->section[SECTION_TASK].count; i++)
        if (TASKS(p)[i].kind == kind && OPS(p)[TASKS(p)[i].op].gang > 1) return i;
    return PROG_NONE;
}

static void misalign(struct prog_header *p, struct prog_task *t) {
    t[0].worker = 1, t[1].worker = 2;
    relist(p);
}
static void split(struct prog_header *p, struct prog_task *t) {
    t[1].worker = (uint16_t)((t[1].worker + 2) % p->n_workers);
    relist(p);
}
static void swap_workers(struct prog_header *p, struct prog_task *t) {
    const uint16_t w = t[0].worker;
    t[0].worker = t[1].worker, t[1].worker = w;
    relist(p);
}
static void swap_tiles(struct prog_header *p, struct prog_task *t) {
    const uint32_t unit0 = t[0].unit0, unit1 = t[0].unit1;
    (void)p;
    t[0].unit0 = t[1].unit0, t[0].unit1 = t[1].unit1;
    t[1].unit0 = unit0, t[1].unit1 = unit1;
}
static void trigger_another(struct prog_header *p, struct prog_task *t) {
    struct prog_event *events = (struct prog_event *)PROG(p, EVENT);
    const uint32_t end = PROG(p, VARIANT)->end_event;
    events[t[1].trigger].n_triggers--;
    events[end].n_triggers++;
    t[1].trigger = end;
}
static void hand_out(struct prog_header *p, struct prog_task *t) {
    struct prog_event *event = &((struct prog_event *)PROG(p, EVENT))[t->wait];
    struct prog_variant *v = (struct prog_variant *)PROG(p, VARIANT);
    v->n_jit_events += event->n_jit == 0;
    event->n_jit += 2;
    v->n_jit_tasks += 2;
    t[0].worker = t[1].worker = PROG_JIT;
    relist(p);
}
static void grow(struct prog_header *p, struct prog_task *t) {
    OPS(p)[t->op].gang = 4;
}

static void defects_are_named(void **state) {
    (void)state;
    static const struct {
        void (*apply)(struct prog_header *p, struct prog_task *gang);
        const char *want; /* in the message */
    } defects[] = {{misalign, "its first worker is no multiple of that"},
                   {split, "not on the worker after the one before"},
                   {swap_workers, "its first worker is no multiple of that"},
                   {swap_tiles, "not beside the one before"},
                   {trigger_another, "not with the gang's events"},
                   {hand_out, "it has no worker"},
                   {grow, "of a gang of 4"}};
    const struct model_spec spec = fixture_spec(2, 96, 4, 2, 16, 96, 301);
    struct task_options o = defaults;
    o.device.n_workers = 6;
    o.launch = LAUNCH_ALL_AOT;
    set_gangs(0);
    fixture_gang[OP_LINEAR] = 2;
    for (size_t i = 0; i < COUNT_OF(defects); i++) {
        struct diag d = {0};
        struct prog_header *p = compile(&spec, 2, 0, &o);
        ok(&d, task_verify(&d, p, NULL));
        defects[i].apply(p, &TASKS(p)[lead_of(p, OP_LINEAR)]);
        ok(&d, program_check(&d, "gangs", p, p->total_bytes));
        assert_int_equal(task_verify(&d, p, NULL), QN_EVERIFY);
        if (strstr(d.message, defects[i].want) == NULL) print_error("%s\n", d.message);
        assert_non_null(strstr(d.message, defects[i].want));
        free(p);
    }
    struct diag d = {0};
    struct prog_header *p = compile(&spec, 2, 0, &o);
    const uint32_t wrong[] = {0, PROG_MAX_GANG + 1, 7};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        OPS(p)[TASKS(p)[lead_of(p, OP_LINEAR)].op].gang = wrong[i];
        assert_int_equal(program_check(&d, "gangs", p, p->total_bytes), QN_EFORMAT);
        assert_non_null(strstr(d.message, "gang"));
        free(p);
        p = compile(&spec, 2, 0, &o);
        diag_clear(&d);
    }
    free(p);
}

/* Two gangs that may run at the same time, in opposite order on two workers: each task could run by
 * itself, the gangs never meet. */
static void gangs_in_opposite_order_deadlock(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(1, 128, 4, 2, 16, 96, 301);
    for (uint32_t gang = 1; gang <= 2; gang++) {
        struct diag d = {0};
        struct task_options o = {
            .device.n_workers = 2, .tasks_per_worker = 2, .launch = LAUNCH_ALL_AOT};
        set_gangs(0);
        fixture_gang[OP_LINEAR] = gang;
        struct prog_header *p = compile(&spec, 1, 0, &o);
        ok(&d, task_verify(&d, p, NULL));
        uint32_t list[8], swapped = 0;
        for (uint32_t op = 0; op < p->section[SECTION_OP].count && swapped == 0; op++) {
            if (OPS(p)[op].kind != OP_LINEAR) continue;
            assert_int_equal(tasks_of(p, op, list, 8), 4);
            for (uint32_t i = 0; i + 1 < LISTS(p)[1].n && swapped == 0; i++) {
                uint32_t *a = &AOT(p)[LISTS(p)[1].first + i];
                if (TASKS(p)[a[0]].op != op || TASKS(p)[a[1]].op != op) continue;
                const uint32_t first = a[0];
                a[0] = a[1], a[1] = first;
                swapped++;
            }
        }
        assert_int_equal(swapped, 1);
        assert_int_equal(task_verify(&d, p, NULL), gang == 1 ? QN_OK : QN_EVERIFY);
        if (gang == 2) {
            print_message("%s\n", d.message);
            assert_non_null(strstr(d.message, "waits for the others of its gang before"));
        }
        free(p);
    }
}

/* ---- random defects ---- */

/* The gang of a task, by its number among its operator's tasks: workers that must stand beside each
 * other. */
static bool stands_right(const struct prog_header *p, uint32_t op) {
    uint32_t list[256];
    const uint32_t gang = OPS(p)[op].gang, n = tasks_of(p, op, list, COUNT_OF(list));
    if (n % gang != 0) return false;
    for (uint32_t i = 0; i < n; i++) {
        const struct prog_task *a = &TASKS(p)[list[i - i % gang]], *b = &TASKS(p)[list[i]];
        if (a->worker == PROG_JIT || a->worker % gang != 0 || b->worker != a->worker + i % gang ||
            a->wait != b->wait || a->trigger != b->trigger)
            return false;
    }
    return true;
}

/* The others of a task's gang, itself among them. */
static uint32_t partners(const struct prog_header *p, uint32_t task, uint32_t *out) {
    uint32_t list[256];
    const uint32_t op = TASKS(p)[task].op, gang = op == PROG_NONE ? 1 : OPS(p)[op].gang;
    out[0] = task;
    if (gang == 1) return 1;
    const uint32_t n = tasks_of(p, op, list, COUNT_OF(list));
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == task)
            for (uint32_t m = 0; m < gang; m++) out[m] = list[i - i % gang + m];
    return gang;
}

/* Whether the lists come to their end if a gang runs only when all of it is at the head. */
static bool lists_finish(const struct prog_header *p) {
    static uint32_t have[1024];
    uint32_t next[MAX_WORKERS] = {0}, n_done = 0, gang[PROG_MAX_GANG];
    memset(have, 0, sizeof have);
    have[PROG(p, VARIANT)->start_event] = 1;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t w = 0; w < p->n_workers; w++) {
            if (next[w] == LISTS(p)[w].n) continue;
            const uint32_t task = AOT(p)[LISTS(p)[w].first + next[w]];
            const uint32_t n = partners(p, task, gang);
            bool meets =
                have[TASKS(p)[task].wait] >= PROG(p, EVENT)[TASKS(p)[task].wait].n_triggers;
            for (uint32_t m = 0; m < n; m++) {
                const uint32_t v = TASKS(p)[gang[m]].worker;
                meets = meets && v < p->n_workers && next[v] < LISTS(p)[v].n &&
                        AOT(p)[LISTS(p)[v].first + next[v]] == gang[m];
            }
            if (!meets) continue;
            for (uint32_t m = 0; m < n; m++) {
                next[TASKS(p)[gang[m]].worker]++;
                have[TASKS(p)[gang[m]].trigger]++;
                n_done++;
            }
            moved = true;
        }
    }
    return n_done == p->section[SECTION_TASK].count;
}

static bool harms(const struct prog_header *p) {
    for (uint32_t op = 0; op < p->section[SECTION_OP].count; op++)
        if (OPS(p)[op].gang > 1 && !stands_right(p, op)) return true;
    return !lists_finish(p);
}

static void swap_in_a_list(struct prog_header *p) {
    const struct prog_list *l = &LISTS(p)[random_below(p->n_workers)];
    if (l->n < 2) return;
    const uint32_t i = random_below(l->n - 1);
    const uint32_t k = random_below(2) ? i + 1 : random_below(l->n);
    uint32_t *a = &AOT(p)[l->first + i], *b = &AOT(p)[l->first + k], t = *a;
    *a = *b, *b = t;
}
static void move_a_task(struct prog_header *p) {
    TASKS(p)
    [random_below((uint32_t)p->section[SECTION_TASK].count)].worker =
        (uint16_t)random_below(p->n_workers);
    relist(p);
}
static void swap_two_tasks(struct prog_header *p) {
    const uint32_t n = (uint32_t)p->section[SECTION_TASK].count;
    struct prog_task *a = &TASKS(p)[random_below(n)], *b = &TASKS(p)[random_below(n)];
    const uint16_t w = a->worker;
    a->worker = b->worker, b->worker = w;
    relist(p);
}
/* A gang goes as a whole to other workers, aligned or not. */
static void move_a_gang(struct prog_header *p) {
    uint32_t gang[PROG_MAX_GANG];
    const uint32_t n = partners(p, random_below((uint32_t)p->section[SECTION_TASK].count), gang);
    const uint32_t to = random_below(p->n_workers - n + 1);
    for (uint32_t m = 0; m < n; m++) TASKS(p)[gang[m]].worker = (uint16_t)(to + m);
    relist(p);
}

static void harmful_defects_are_caught(void **state) {
    (void)state;
    static void (*const defects[])(struct prog_header *) = {swap_in_a_list, move_a_task,
                                                            swap_two_tasks, move_a_gang};
    const struct model_spec spec = fixture_spec(1, 96, 4, 2, 16, 64, 301);
    uint32_t caught = 0, missed = 0, harmless = 0, cautious = 0;
    random_state = 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < MUTANTS; i++) {
        struct diag d = {0};
        struct task_options o = {
            .device.n_workers = 4 + i % 5, .tasks_per_worker = 1 + i % 2, .launch = LAUNCH_ALL_AOT};
        set_gangs(i % 3 == 0 ? 4 : 2);
        struct prog_header *p = compile(&spec, 2, 0, &o);
        assert_false(harms(p));
        for (uint32_t k = 0; k < 1 + i % 2; k++) defects[random_below(COUNT_OF(defects))](p);
        const bool harm = harms(p), taken = task_verify(&d, p, NULL) == QN_OK;
        caught += harm && !taken;
        missed += harm && taken;
        harmless += !harm && taken;
        cautious += !harm && !taken;
        free(p);
    }
    print_message("%u caught, %u missed, %u harmless, %u cautious\n", caught, missed, harmless,
                  cautious);
    assert_int_equal(missed, 0);
    assert_int_equal(cautious, 0);
    assert_true(caught > MUTANTS / 4 && harmless > MUTANTS / 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gangs_stay_whole),
        cmocka_unit_test(a_gang_needs_workers_and_parts),
        cmocka_unit_test(defects_are_named),
        cmocka_unit_test(gangs_in_opposite_order_deadlock),
        cmocka_unit_test(harmful_defects_are_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

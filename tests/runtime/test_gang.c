/* Gangs on threads: the tasks of a gang meet, give each other something and look at it, as the
 * blocks of a cluster will. The runtime needs nothing for that but the placement: a program that
 * the proof takes always meets, one that it refuses as a deadlock does not. */
#include "task/fixture.h"
#include "runtime/rt_test.h"

#include <sched.h>

enum { MAX_LEN = 64, MAX_TASKS = 2048 };

struct meeting {
    struct watch watch;
    const struct prog_header *program;
    uint32_t lead[MAX_TASKS]; /* first task of a task's gang; itself: it is alone */
    struct {
        _Alignas(64) atomic_uint arrived; /* in all iterations, by lead */
        uint32_t given;                   /* plain: by its task, before it arrives */
    } of[MAX_TASKS];
    uint64_t patience_ns;
    atomic_uint n_met, n_alone, n_wrong;
};

static uint32_t gang_of(const struct prog_header *p, uint32_t task) {
    const uint32_t op = PROG(p, TASK)[task].op;
    return op == PROG_NONE ? 1 : PROG(p, OP)[op].gang;
}

static uint32_t gift(uint32_t task, uint32_t iteration) {
    return task * 2654435761u + iteration;
}

/* Waits until all members are here; false: they do not come. */
static bool meet(struct meeting *m, uint32_t lead, uint32_t n, uint32_t iteration) {
    const uint64_t start = rt_now_ns();
    atomic_fetch_add_explicit(&m->of[lead].arrived, 1, memory_order_acq_rel);
    while (atomic_load_explicit(&m->of[lead].arrived, memory_order_acquire) < n * iteration) {
        if (rt_now_ns() - start > m->patience_ns) return false;
        sched_yield();
    }
    return true;
}

/* Half of a result each: a member is done when it has seen what the others have. */
static void run_member(struct meeting *m, uint32_t task, uint32_t n) {
    const uint32_t lead = m->lead[task], iteration = m->watch.iteration;
    m->of[task].given = gift(task, iteration);
    if (!meet(m, lead, n, iteration)) {
        atomic_fetch_add(&m->n_alone, 1);
        return;
    }
    for (uint32_t k = lead; k < lead + n; k++)
        if (m->of[k].given != gift(k, iteration)) atomic_fetch_add(&m->n_wrong, 1);
    atomic_fetch_add(&m->n_met, 1);
}

static void run_task(void *user, const struct rt_batch *batch, uint32_t worker, uint32_t task) {
    struct meeting *m = user;
    const uint32_t n = gang_of(m->program, task);
    if (n > 1) run_member(m, task, n);
    watch_run(&m->watch, batch, worker, task);
}

static struct prog_header *compile(uint32_t gang, uint32_t n_workers, enum launch_policy launch,
                                   uint32_t tasks_per_worker) {
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    const struct model_spec spec = fixture_spec(2, 128, 4, 2, 16, 96, 1000);
    const struct task_options o = {
        .device.n_workers = n_workers, .tasks_per_worker = tasks_per_worker, .launch = launch};
    fixture_gang[OP_LINEAR] = fixture_gang[OP_GATED_MLP] = gang;
    EXPECT_OK(&d, fixture_compile(&d, &f, &spec, 1, MAX_LEN, 0, &o));
    EXPECT_OK(&d, fixture_program(&d, &f, MAX_LEN, &p));
    EXPECT_OK(&d, program_check(&d, "gangs", p, p->total_bytes));
    fixture_fini(&f);
    return p;
}

static struct meeting *new_meeting(const struct prog_header *p, double patience_s) {
    struct meeting *m = aligned_alloc(64, (sizeof *m + 63) / 64 * 64);
    assert_non_null(m);
    memset(m, 0, sizeof *m);
    assert_true(p->section[SECTION_TASK].count <= MAX_TASKS);
    watch_init(&m->watch, p);
    m->program = p;
    m->patience_ns = (uint64_t)(patience_s * 1e9);
    for (uint32_t i = 0, n; i < p->section[SECTION_TASK].count; i += n) {
        n = gang_of(p, i);
        for (uint32_t k = i; k < i + n; k++) m->lead[k] = i;
    }
    return m;
}

/* One request of n_out tokens; returns iterations. */
static void run_program(const struct prog_header *p, struct meeting *m, uint32_t n_out) {
    struct diag d = {0};
    struct cpu_backend *b;
    struct mailbox_view view;
    uint32_t slot;
    const struct cpu_config config = {
        .program = p, .run_task = run_task, .user = m, .deadline_s = 60};
    EXPECT_OK(&d, cpu_backend_open(&d, &config, &b));
    EXPECT_OK(&d, submit(&d, cpu_backend_mailbox(b), 1, 1, n_out, &slot));
    EXPECT_OK(&d, cpu_backend_run(&d, b));
    EXPECT_OK(&d, cpu_backend_check(&d, b));
    EXPECT_OK(&d, cpu_backend_poll(&d, b, slot, &view));
    assert_true(view.n_out == n_out && tokens_follow(&view, 1, 1));
    cpu_backend_close(b);
    assert_int_equal(m->watch.n_wrong, 0);
    assert_int_equal(m->n_wrong, 0);
}

static void free_meeting(struct meeting *m) {
    watch_fini(&m->watch);
    free(m);
}

/* Gangs of two and four threads, beside tasks that are handed out, too. */
static void gangs_meet(void **state) {
    (void)state;
    static const struct {
        uint32_t gang, n_workers, tasks_per_worker;
        enum launch_policy launch;
    } cases[] = {{2, 2, 1, LAUNCH_ALL_AOT}, {2, 5, 2, LAUNCH_ALL_AOT}, {2, 4, 1, LAUNCH_HYBRID},
                 {2, 3, 1, LAUNCH_ALL_JIT}, {4, 4, 1, LAUNCH_PAPER},   {4, 7, 1, LAUNCH_ALL_AOT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct diag d = {0};
        struct prog_header *p =
            compile(cases[i].gang, cases[i].n_workers, cases[i].launch, cases[i].tasks_per_worker);
        EXPECT_OK(&d, task_verify(&d, p, NULL));
        struct meeting *m = new_meeting(p, 30);
        uint32_t n_members = 0;
        for (uint32_t t = 0; t < p->section[SECTION_TASK].count; t++)
            n_members += gang_of(p, t) > 1;
        assert_true(n_members >= 6 * cases[i].gang); /* three operators in two layers */
        run_program(p, m, 12);
        assert_int_equal(m->n_alone, 0);
        assert_int_equal(m->n_met, 12 * n_members);
        free_meeting(m);
        free(p);
    }
}

/* Two gangs in opposite order on two workers: the proof says deadlock, and so it is. (Here members
 * give up, so that the test ends.) */
static void what_the_proof_refuses_does_not_meet(void **state) {
    (void)state;
    struct diag d = {0};
    struct prog_header *p = compile(2, 2, LAUNCH_ALL_AOT, 2);
    const struct prog_list *l = &PROG(p, LIST)[1];
    bool swapped = false;
    for (uint32_t i = 0; i + 1 < l->n && !swapped; i++) {
        uint32_t *a = (uint32_t *)PROG(p, AOT) + l->first + i;
        if (PROG(p, TASK)[a[0]].op != PROG(p, TASK)[a[1]].op || gang_of(p, a[0]) == 1) continue;
        const uint32_t first = a[0];
        a[0] = a[1], a[1] = first;
        swapped = true;
    }
    assert_true(swapped);
    EXPECT_FAIL(&d, QN_EVERIFY, "waits for the others of its gang", task_verify(&d, p, NULL));
    struct meeting *m = new_meeting(p, 0.2);
    run_program(p, m, 1);
    assert_true(m->n_alone > 0);
    free_meeting(m);
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gangs_meet),
        cmocka_unit_test(what_the_proof_refuses_does_not_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* expect.c - see expect.h. */
#include "engine/expect.h"

#include "base/checked.h"

enum {
    EXPECT_EARLY_NS = 300 * 1000,
    EXPECT_LONGEST_NS = 50 * 1000 * 1000, /* longer steps are no pace: no thread polls for them */
};

/* Sleeps until shortly before the next step should end, then polls until shortly after. */
static void look(const struct expect *e, struct mailbox *m, uint32_t seen, uint64_t end) {
    const uint64_t due = MIN(e->last_ns + e->step_ns, end),
                   give_up = MIN(due + EXPECT_EARLY_NS, end);
    if (e->step_ns == 0) return;
    for (uint64_t now; mailbox_progress(m) == seen && (now = rt_now_ns()) < give_up;) {
        if (now + EXPECT_EARLY_NS < due)
            mailbox_wait(m, seen, due - EXPECT_EARLY_NS - now); /* may end before */
        else
            rt_cpu_relax();
    }
}

/* Updates the pace from the progress since the last note. */
static void note(struct expect *e, uint32_t progress) {
    const uint64_t now = rt_now_ns();
    const uint32_t n = progress - e->seen;
    if (n == 0) return;
    const uint64_t step_ns = (now - e->last_ns) / n;
    e->step_ns = step_ns <= EXPECT_LONGEST_NS ? step_ns : 0;
    e->last_ns = now;
    e->seen = progress;
}

void expect_wait(struct expect *e, struct mailbox *m, uint32_t seen, uint64_t timeout_ns) {
    if (__atomic_exchange_n(&e->taken, 1, __ATOMIC_ACQUIRE) != 0) {
        mailbox_wait(m, seen, timeout_ns);
        return;
    }
    const uint64_t start = rt_now_ns(), end = start + MIN(timeout_ns, UINT64_MAX - start);
    look(e, m, seen, end);
    const uint64_t now = rt_now_ns();
    if (mailbox_progress(m) == seen && now < end) mailbox_wait(m, seen, end - now);
    note(e, mailbox_progress(m));
    __atomic_store_n(&e->taken, 0, __ATOMIC_RELEASE);
}

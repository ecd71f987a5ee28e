#include "engine/mask_thread.h"

#include "base/checked.h"

#include <string.h>
#include <sys/prctl.h>

enum {
    WAIT_NS = 20 * 1000 * 1000, /* between two looks at guides whose requests are over */
    TIMER_SLACK_NS = 1000,
};
#define SLEEP_NS ((uint64_t)1000000000)

/* ---- a guide's turn ----------------------------------------------------------------------- */

/* Changes the turn to `to` if it is `from`. Returns whether it was. */
static bool turn(struct guide *g, uint32_t from, uint32_t to) {
    return __atomic_compare_exchange_n(&g->turn, &from, to, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

bool mask_thread_let_go(struct guide *g) {
    for (;;) {
        if (turn(g, GUIDE_IDLE, GUIDE_GONE)) return true;
        if (turn(g, GUIDE_BUSY, GUIDE_LEAVING)) return false;
        const uint32_t now = __atomic_load_n(&g->turn, __ATOMIC_ACQUIRE);
        if (now == GUIDE_LEAVING) return false;
        if (now != GUIDE_GONE) continue;
        guide_free(g);
        return true;
    }
}

bool mask_thread_failed(const struct guide *g) {
    return __atomic_load_n(&g->failed, __ATOMIC_ACQUIRE) != 0;
}

/* ---- the thread --------------------------------------------------------------------------- */

/* Makes the mask after the tokens that have arrived since the last one. */
static void make_mask(const struct mask_thread *t, struct guide *g) {
    const int32_t *output;
    const uint32_t *mask, n = mailbox_given(t->mailbox, g->slot, &output);
    if (n == g->n_read || g->failed) return;
    const int rc = guide_read(&g->failure, g, t->texts, output, n, &mask);
    if (rc == QN_OK && mask) mailbox_mask(t->mailbox, g->slot, n, mask);
    if (rc != QN_OK) __atomic_store_n(&g->failed, 1, __ATOMIC_RELEASE);
}

/* Looks at the guide at *place, or takes it out. Returns the place of the guide that follows. */
static struct guide **look(const struct mask_thread *t, struct guide **place) {
    struct guide *g = *place;
    if (!turn(g, GUIDE_IDLE, GUIDE_BUSY)) { /* the session has let it go */
        *place = g->next;
        guide_free(g);
        return place;
    }
    make_mask(t, g);
    if (turn(g, GUIDE_BUSY, GUIDE_IDLE)) return &g->next;
    *place = g->next;
    matcher_free(g->matcher); /* here, since other matchers share its memo */
    g->matcher = NULL;
    (void)turn(g, GUIDE_LEAVING, GUIDE_GONE); /* the session's from here */
    return place;
}

static void take_coming(struct mask_thread *t) {
    struct guide *g = __atomic_exchange_n(&t->coming, NULL, __ATOMIC_ACQUIRE);
    while (g) {
        struct guide *next = g->next;
        g->next = t->guides;
        t->guides = g;
        g = next;
    }
}

static void *make_masks(void *arg) {
    struct mask_thread *t = arg;
    prctl(PR_SET_NAME, "quern-masks");
    prctl(PR_SET_TIMERSLACK, (unsigned long)TIMER_SLACK_NS);
    while (!__atomic_load_n(&t->closing, __ATOMIC_ACQUIRE)) {
        const uint32_t bell = rt_load_acquire(&t->bell), seen = mailbox_progress(t->mailbox);
        take_coming(t);
        for (struct guide **place = &t->guides; *place;) place = look(t, place);
        if (t->guides)
            mailbox_wait(t->mailbox, seen, WAIT_NS);
        else
            rt_host_sleep(&t->bell, bell, SLEEP_NS);
    }
    return NULL;
}

/* ---- its other side ----------------------------------------------------------------------- */

static void ring(struct mask_thread *t) {
    rt_add_acq_rel(&t->bell, 1);
    rt_host_wake_all(&t->bell);
}

int mask_thread_start(struct diag *d, struct mask_thread *t, struct mailbox *mailbox,
                      const struct guide_texts *texts) {
    if (t->running) return QN_OK;
    t->mailbox = mailbox;
    t->texts = texts;
    const int rc = pthread_create(&t->id, NULL, make_masks, t);
    if (rc != 0) return fail(d, QN_ENOMEM, "the thread that makes masks: %s", strerror(rc));
    t->running = true;
    return QN_OK;
}

void mask_thread_stop(struct mask_thread *t) {
    if (!t->running) return;
    __atomic_store_n(&t->closing, 1, __ATOMIC_RELEASE);
    ring(t);
    pthread_join(t->id, NULL);
    t->running = false;
}

void mask_thread_fini(struct mask_thread *t) {
    take_coming(t);
    for (struct guide *g = t->guides, *next; g; g = next) {
        next = g->next;
        guide_free(g);
    }
    t->guides = NULL;
}

void mask_thread_add(struct mask_thread *t, struct guide *g) {
    g->next = __atomic_load_n(&t->coming, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&t->coming, &g->next, g, true, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
        ;
    ring(t);
}

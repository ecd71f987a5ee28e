/* expect.h - waiting for tokens that come at a steady pace.
 *
 * A thread that sleeps until it is woken gets its token late by the time that waking takes: on an
 * H200's virtual machine by 100 to 300 us for one token in a hundred, most of the jitter that a
 * reader saw (bench/measurements.md, "Boundary and host"). So a waiting thread sleeps until shortly
 * before the next iteration ends, judged by the length of the last one, and then polls without
 * pause. One thread at a time does so, whatever the number of readers; it keeps a core busy for at
 * most 2 * EXPECT_EARLY_NS an iteration. The other threads sleep, and are woken as ever.
 */
#ifndef QN_ENGINE_EXPECT_H
#define QN_ENGINE_EXPECT_H

#include "runtime/mailbox.h"

#include <stdint.h>

/* All zero to begin with. The fields belong to the thread that has `taken`. */
struct expect {
    uint32_t taken; /* atomic */
    uint32_t seen;  /* progress at last_ns */
    uint64_t last_ns, step_ns;
};

/* Waits until the mailbox's progress is not `seen` any more, or timeout_ns are over. */
void expect_wait(struct expect *e, struct mailbox *m, uint32_t seen, uint64_t timeout_ns);

#endif

/* launch.h - from the driver to the machine: one launch of one kernel. */
#ifndef QN_TESTS_EMULATOR_LAUNCH_H
#define QN_TESTS_EMULATOR_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

struct launch {
    void (*entry)(void **arguments); /* calls the kernel with its arguments */
    void **arguments;
    uint32_t grid, block_threads, shared_bytes;
    bool together; /* all blocks run at once (a cooperative launch); else one after the other */
    uint64_t seed;
};

/* Runs it to its end on the calling thread. False: out of memory. */
bool launch_run(const struct launch *l);

#endif

/* machine.h - a GPU on the CPU: enough of one to run quern's kernels as they are, without a card.
 *
 *   libcuda.so.1  (driver.c)   the driver's calls that quern makes; a launch is a host thread
 *   libnvrtc.so   (nvrtc.c)    compiles the kernels' own text with the host's C++ compiler, beside
 *                              device/, whose headers stand in for the files with all of the PTX:
 *                              kernels/cuda/ptx and runtime/rt_sync_cuda.h
 *   machine.c                  threads, warps, blocks, barriers: what those headers call
 *
 * Every CUDA thread of a launch is a fiber; one host thread runs them, a few at a time interleaved
 * wherever they wait. What is asynchronous on a card (bulk copies, cp.async) arrives as late as the
 * program allows or at a moment drawn from a seed. Under ThreadSanitizer every fiber is a thread to
 * it and only what orders memory on a card orders it here, so a race between two warps is reported
 * with both lines, even where this machine happened to run them in a good order.
 *
 * What it is not: a measure of speed; a test of weak memory (accesses happen in program order); the
 * tensor core's rounding (sums of a product are exact here, then rounded once).
 *
 * Environment: QN_EMU_DEVICES (1), of each of which: QN_EMU_SMS (4), QN_EMU_GIB of memory (1; taken
 * as it is used), QN_EMU_ARCH (90; 80: the kernels before Hopper; 90,80: of two), QN_EMU_SEED (0:
 * in turn; otherwise who runs next, and when copies land, is drawn).
 */
#ifndef QN_TESTS_EMULATOR_MACHINE_H
#define QN_TESTS_EMULATOR_MACHINE_H

#include "base/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default) /* of libcuda.so.1: kernels call what follows */

struct emu_dim {
    uint32_t x, y, z;
};

/* What a thread knows about itself. */
struct emu_self {
    struct emu_dim thread_index, block_index, block_dim, grid_dim;
    char *shared; /* the block's dynamic shared memory */
};

/* The thread that runs on this host thread. */
extern __thread struct emu_self *emu_self __attribute__((tls_model("initial-exec")));

/* ---- called by the device's headers, in a CUDA thread ---- */

/* A poll that found nothing: others run. */
void emu_wait(void);
/* Something that others may see has happened: now and then others run. */
void emu_point(void);
/* A word of shared memory that others poll was written. */
void emu_news(void);

/* mbarriers are 64-bit words in shared memory. */
void emu_barrier_init(uint64_t *b, uint32_t arrivals);
void emu_barrier_arrive(uint64_t *b);
int emu_barrier_test(uint64_t *b, uint32_t parity);
/* Comes back when the phase is complete or there is other news in shared memory. */
int emu_barrier_try(uint64_t *b, uint32_t parity);

/* bar.sync: `threads` of the block meet at barrier `id` < 16. */
void emu_sync(uint32_t id, uint32_t threads);
/* All 32 lanes of the warp meet; __syncwarp orders memory, the others do not. */
void emu_sync_warp(void);
/* Every lane gives a value and gets all 32 (valid until the warp meets again). */
const uint32_t *emu_exchange(uint32_t value);

/* cp.async.bulk, global to shared: b's phase waits for its bytes. The arrival comes after it. */
void emu_copy_bulk(void *dst, const void *src, uint32_t bytes, uint64_t *b);
/* cp.async of 16 bytes, its groups, and the arrival that follows all that came before. */
void emu_copy16(void *dst, const void *src);
void emu_copy_commit(void);
void emu_copy_wait(uint32_t groups_left);
void emu_copy_arrive(uint64_t *b);

/* mma.m16n8k16, row.col, fp32 accumulators; fragments as in the PTX manual. f16: else bf16. */
void emu_mma(float c[4], const uint32_t a[4], const uint32_t b[2], int f16);

/* wgmma.m64nNk16 with A in registers, those of the warp's 16 rows as in emu_mma; d: for each eight
 * columns the four sums of emu_mma. It reads and adds when its group is waited for; d stays. */
struct emu_wgmma {
    const char *shared; /* the block's memory */
    uint32_t b; /* in it: matrices of 8 columns x 8 of k, a column after the other, 128 bytes */
    uint32_t k_step, n_step; /* bytes to the next one in k, in columns */
    uint32_t n_eights;
    int f16, add; /* add: to d, else to 0 */
    int turned;   /* matrices are a k after the other */
    int lines;    /* eight lines of 128 bytes, swizzled, to the next eight n_step bytes */
};
void emu_wgmma(float *d, const uint32_t a[4], const struct emu_wgmma *of);
void emu_wgmma_commit(void);
void emu_wgmma_wait(uint32_t groups_left);

float emu_half_to_float(uint16_t bits);
uint16_t emu_float_to_half(float v); /* nearest even */
uint64_t emu_now_ns(void);
void emu_trap(const char *why) __attribute__((noreturn));

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif

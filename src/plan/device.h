/* device.h - what plans know of a device: one struct, filled by its backend, read by the compiler.
 *
 * Numbers of speed serve to choose between plans. They are nominal, or were measured on one card;
 * no result depends on them.
 */
#ifndef QN_PLAN_DEVICE_H
#define QN_PLAN_DEVICE_H

#include "graph/model_spec.h"

#include <stdbool.h>
#include <stdint.h>

enum device_kind { DEVICE_CPU, DEVICE_CUDA };

struct device {
    enum device_kind kind;
    uint32_t n_workers; /* threads, or multiprocessors of one rank */
    uint32_t n_ranks;   /* GPUs that run one program: 1 */
    uint32_t gang;      /* consecutive workers that run one task together: 1 */
    uint32_t cc;        /* compute capability, major * 10 + minor; 0: not CUDA */
    struct {
        bool wgmma;   /* products by groups of warps, which only sm_90 has */
        bool bulk;    /* bulk copies to shared memory */
        bool cluster; /* clusters of blocks */
    } has;
    uint64_t ring_bytes; /* weights that a worker holds ahead of its tasks */
    uint64_t kept_bytes; /* activations that stay in L2 until the next iteration */
    double bytes_per_ns; /* the memory's nominal rate for one worker; 0: unknown */
    double hand_over_ns; /* from a task's end to the first use of its result */
    double piece_ns;     /* a further piece of a context in a task of attention */
};

struct device device_cpu(uint32_t n_workers);
struct device device_cuda(uint32_t cc, uint32_t n_workers, double bytes_per_ns);

/* Whether products of n_rows packed rows stream their weights; otherwise they run by tiles. */
bool device_streams(uint64_t n_rows);

/* Whether activations of n_rows rows and k columns are packed. A single row's are not, unless they
 * are too long to be staged. */
bool device_packs(const struct device *d, uint32_t n_rows, uint64_t k);

/* Whether a layer's weights fit the rings: such a model waits only for hand-overs, not for memory.
 */
bool device_holds_layer(const struct device *d, const struct model_spec *s);
/* Whether memory fills a worker's ring before attention's pieces are handed over and merged. */
bool device_has_short_ring(const struct device *d);

#endif

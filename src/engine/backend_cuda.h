/* backend_cuda.h - the CUDA backend beyond its row of the table: what tests and `quern env` need.
 *
 *   open:  plan ─ driver ─ device ─ context ─ image ─ memory ─ weights ─ watcher
 *
 * Everything is taken at open; from then on the GPU runs nothing but the mega-kernel (cuda_run.h).
 */
#ifndef QN_ENGINE_BACKEND_CUDA_H
#define QN_ENGINE_BACKEND_CUDA_H

#include "codegen/cuda_driver.h"
#include "engine/backend.h"

/* Options that a user does not choose. backend_cuda_defaults fills them; NULL: the defaults. */
enum { KEEP_DEFAULT = 1 << 20 };
struct backend_cuda_options {
    const struct cuda_api *api; /* NULL: the driver of this machine; tests bring their own */
    const void *image;          /* NULL: compiled by NVRTC or from the cache */
    uint64_t deadline_ns;       /* a wait on the device longer than this is a stall; 0: none */
    uint64_t silence_ns;        /* no progress for this long: the host stops the kernel; 0: never */
    uint64_t look_ns;           /* cuda_run_options.look_ns */
    uint32_t flight;            /* cuda_args.flight; 0: by the rate of the device's memory */
    uint32_t flight_deep;       /* cuda_args.flight_deep; 0: flight, or if that is 0 by the rate */
    uint32_t stream;            /* cuda_args.stream */
    uint32_t kept_mib;          /* of L2, for activations; KEEP_DEFAULT: by its size */
    bool cache_off;             /* compile anew, store nothing */
    bool lineinfo;              /* source lines in the image, for profilers */
    bool racecheck;             /* kernel_image_options.each_arrives */
};
void backend_cuda_defaults(struct backend_cuda_options *o);

/* backend.open with options; weights NULL: the device makes them up, with the values of
 * model/weights.c. */
int backend_cuda_open(struct diag *d, const struct prog_header *program,
                      const struct weights *weights, const struct backend_config *config,
                      const struct backend_cuda_options *options, struct backend_instance **out);

/* The group that serves; for tests. */
struct cuda_group;
struct cuda_group *backend_cuda_group(struct backend_instance *i);

/* What an open instance has done and holds; launches and memory are rank 0's. */
struct backend_cuda_stats {
    uint64_t n_launches; /* of the mega-kernel */
    uint64_t device_bytes, weight_bytes;
    int registers, local_bytes; /* of the mega-kernel, per thread */
};
void backend_cuda_stats(const struct backend_instance *i, struct backend_cuda_stats *stats);

/* Facts about this machine for `quern env`. */
struct backend_cuda_facts {
    struct cuda_device device;
    char arch[16];
    char driver[16];     /* CUDA version of the driver, "13.0" */
    char nvrtc[520];     /* "NVRTC 13.0 (libnvrtc.so.13)", or why there is none */
    uint64_t free_bytes; /* of device memory */
};
/* Errors: QN_EDEVICE with one line that says what is missing. */
int backend_cuda_facts(struct diag *d, struct backend_cuda_facts *facts);

#endif

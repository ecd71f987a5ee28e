/* cuda_trace.h - the trace of a GPU: rings in its memory (runtime/rt_trace.h, CUDA_TRACE_RINGS of
 * them), which the kernel writes and the host appends to its own rings once the kernel has ended.
 *
 *   control warp of block w ─► ring w       ─┐
 *   compute warps of block w ─► ring W + w   ─┤ by time,
 *   loader warp of block w   ─► ring 2 W + w ─┴ tasks whole ─► ring w of the host
 *
 * Times are converted to the host's clock: the kernel is taken to begin when the host begins to
 * launch it. So all records of a launch are early by the time that a launch takes, some 10 us, and
 * none lies in the future.
 */
#ifndef QN_ENGINE_CUDA_TRACE_H
#define QN_ENGINE_CUDA_TRACE_H

#include "codegen/cuda_abi.h"
#include "codegen/cuda_driver.h"
#include "runtime/rt_trace.h"

enum { CUDA_TRACE_PARTS = 3 }; /* rings of a block that become one */

struct cuda_trace {
    const struct cuda_api *api;
    struct rt_trace *host; /* borrowed; NULL: no trace, and everything below does nothing */
    cu_pointer device;
    uint32_t n_workers, on;    /* on: as the device knows it */
    uint64_t launched_ns;      /* when the host began the last launch */
    void *pinned;              /* everything below lies in it */
    struct rt_trace *header;   /* as on the device */
    struct rt_trace_ring *now; /* [CUDA_TRACE_RINGS] the device's rings as the launch left them */
    uint64_t *taken;           /* [CUDA_TRACE_RINGS] records that the host has taken */
    struct rt_trace_record *part[CUDA_TRACE_PARTS]; /* [host->mask + 1] records being taken */
};

/* Bytes of device memory for a trace whose rings on the host have ring_bytes each; 0: no trace. */
uint64_t cuda_trace_bytes(uint64_t ring_bytes, uint32_t n_workers);

/* `device` has cuda_trace_bytes and is zeroed; its header is written through `stream`. The context
 * is current for all functions below. To be closed also after an error. Errors: QN_EDEVICE. */
int cuda_trace_open(struct diag *d, const struct cuda_api *api, cu_stream stream,
                    struct rt_trace *rings, uint32_t n_workers, cu_pointer device,
                    struct cuda_trace *t);
void cuda_trace_close(struct cuda_trace *t);

/* Passes on to the device what trace_rings_switch has set; before a launch, and while the kernel
 * runs. */
int cuda_trace_switch(struct diag *d, struct cuda_trace *t, cu_stream stream);
/* Appends what a launch recorded; the kernel has ended. */
int cuda_trace_take(struct diag *d, struct cuda_trace *t, cu_stream stream);

#endif

/* cuda_upload.h - weights onto the device, in the order in which the kernels read them.
 *
 *   file (mapped) --copy--> pinned[2] --DMA--> stage[2] --qn_retile--> weights allocation
 *   nothing                            qn_dummy--> stage --qn_retile--> weights allocation
 *
 * Two chunks are in flight: while one is copied to pinned memory, the other is on the bus. Made
 * once per engine start, closed before the first launch.
 */
#ifndef QN_CODEGEN_CUDA_UPLOAD_H
#define QN_CODEGEN_CUDA_UPLOAD_H

#include "codegen/cuda_abi.h"
#include "codegen/cuda_driver.h"

/* Bytes of one chunk: large against a launch and a DMA's start, small against the memory plan. */
enum { CUDA_UPLOAD_CHUNK = 32 << 20 };

struct cuda_upload {
    const struct cuda_api *api;
    cu_stream stream;
    cu_function retile, dummy;
    cu_pointer weights; /* base of the weights allocation, cleared by the caller */
    void *pinned[2];
    cu_pointer stage[2];
    cu_event idle[2]; /* the slot's copy and retile are done */
    int slot;         /* to use next */
};

/* Device memory that an upload takes while it lasts; part of the memory plan. */
uint64_t cuda_upload_bytes(void);

/* Takes the buffers. pinned memory only if `files`. u is to be closed also after an error. */
int cuda_upload_open(struct diag *d, const struct cuda_api *api, cu_module module, cu_stream stream,
                     cu_pointer weights, bool files, struct cuda_upload *u);
void cuda_upload_close(struct cuda_upload *u);

/* A tensor of a part of a program's block of weights. */
struct cuda_upload_weight {
    const struct cuda_place *place; /* of the block */
    const struct prog_part *part;
    uint32_t tensor; /* of a stack, its number */
    uint64_t rows;
    uint32_t cols;      /* 1 for vectors */
    uint32_t src_dtype; /* of the data */
    uint32_t dst_dtype; /* of the matrix image; vectors are F32 */
};

/* Queues a weight's rows from memory: rows * cols elements, any alignment. Returns when the source
 * has been read. */
int cuda_upload_rows(struct diag *d, struct cuda_upload *u, const struct cuda_upload_weight *w,
                     const void *data);
/* Queues the made-up values that model/weights.c gives a weight of that name. */
int cuda_upload_dummy(struct diag *d, struct cuda_upload *u, const struct cuda_upload_weight *w,
                      const char *name);
/* Waits for everything queued. */
int cuda_upload_finish(struct diag *d, struct cuda_upload *u);

#endif

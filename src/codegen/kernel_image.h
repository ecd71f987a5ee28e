/* kernel_image.h - from a program to a cubin: constants, embedded sources, NVRTC, cache.
 *
 * Used by engine/cuda_image.c at start and by tools/check_kernels.c in CI, so that what is
 * checked is what runs.
 */
#ifndef QN_CODEGEN_KERNEL_IMAGE_H
#define QN_CODEGEN_KERNEL_IMAGE_H

#include "codegen/kernel_cache.h"
#include "codegen/nvrtc.h"
#include "task/program.h"

struct kernel_image_options {
    const char *entry; /* NULL: "kernels/cuda/mega.cuh" */
    const char *arch;  /* "sm_90a" */
    bool own_forms;    /* only the forms that the program uses: for tests of single operators */
    bool lineinfo;     /* source lines for profilers and sanitizers */
    bool each_arrives; /* every thread signs off by itself: for racecheck (block/block.cuh) */
    bool traces;       /* the kernel can record what happens when (runtime/rt_trace.h) */
    bool verbose;      /* the assembler's resource report goes into the log; implies no cache */
};

struct kernel_image {
    char *bytes; /* a cubin */
    size_t n;
    char *log;            /* the compiler's; NULL when it came from the cache */
    struct cache_key key; /* of sources, constants, options, NVRTC's and quern's version */
    bool cached;          /* whether it was found */
    double seconds;       /* that finding or compiling took */
};

/* Makes the image for a program. The image has all forms but those that the model's shapes or the
 * device exclude (form.def). So a model's programs share it. Those of experiments and with another
 * dtype of the KV cache have their own, as have positions past the length that LongRoPE was trained
 * for. Errors: QN_EDEVICE (the compiler's message), QN_ENOMEM, QN_EUNSUPPORTED (an operator without
 * a form). The image is released by kernel_image_fini. A failed write to the cache is not an error.
 */
int kernel_image_make(struct diag *d, const struct nvrtc *nvrtc, const struct kernel_cache *cache,
                      const struct prog_header *program, const struct kernel_image_options *o,
                      struct kernel_image *image);
void kernel_image_fini(struct kernel_image *image);

#endif

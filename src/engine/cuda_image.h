/* cuda_image.h - the kernels' image of a program: from the cache, or compiled by NVRTC. */
#ifndef QN_ENGINE_CUDA_IMAGE_H
#define QN_ENGINE_CUDA_IMAGE_H

#include "codegen/kernel_image.h"
#include "engine/backend.h"

/* Makes the image. Compiling takes up to a minute: if there is a config->progress, it happens on a
 * thread of its own, and config->progress hears of stage "kernels" at once and then ten times a
 * second, on the caller's thread. NVRTC is that of QN_NVRTC, or the system's. image: to be released
 * with kernel_image_fini also after an error. Errors: nvrtc_open's and kernel_image_make's. */
int cuda_image_make(struct diag *d, const struct prog_header *program,
                    const struct kernel_image_options *o, bool cache_off,
                    const struct backend_config *config, struct kernel_image *image);

#endif

/* nvrtc.h - NVIDIA's run-time compiler, found at run time: CUDA C++ text in, a cubin out.
 *
 * libnvrtc needs no GPU and no CUDA headers; it is looked for where people have it (nvrtc_open).
 * Calls and numbers follow the NVRTC manual. Nothing here is thread-safe per struct; two structs
 * are independent.
 */
#ifndef QN_CODEGEN_NVRTC_H
#define QN_CODEGEN_NVRTC_H

#include "base/status.h"

#include <stddef.h>

typedef struct _nvrtcProgram *nvrtc_program;

/* X(symbol without its "nvrtc", result type, arguments) */
#define NVRTC_CALLS(X)                                                                             \
    X(GetErrorString, const char *, (int result))                                                  \
    X(Version, int, (int *major, int *minor))                                                      \
    X(CreateProgram, int,                                                                          \
      (nvrtc_program * program, const char *text, const char *name, int n_headers,                 \
       const char *const *header_texts, const char *const *header_names))                          \
    X(DestroyProgram, int, (nvrtc_program * program))                                              \
    X(CompileProgram, int, (nvrtc_program program, int n_options, const char *const *options))     \
    X(GetCUBINSize, int, (nvrtc_program program, size_t * bytes))                                  \
    X(GetCUBIN, int, (nvrtc_program program, char *image))                                         \
    X(GetProgramLogSize, int, (nvrtc_program program, size_t * bytes))                             \
    X(GetProgramLog, int, (nvrtc_program program, char *log))

struct nvrtc {
    void *library;
    char path[512]; /* where it was found; a bare name when the loader found it */
    int major, minor;
#define X(name, result, arguments) result(*name) arguments;
    NVRTC_CALLS(X)
#undef X
};

/* Where NVRTC was sought, for the message and for `quern env`. In this order:
 *   1. `path` (may be NULL): a library or the folder that holds it; nothing else is tried then
 *   2. the loader's path: libnvrtc.so.13, .12, libnvrtc.so
 *   3. $CUDA_HOME/lib64, $CUDA_PATH/lib64, /usr/local/cuda/lib64
 *   4. Python installations: beside every folder of $PATH, in $VIRTUAL_ENV, $CONDA_PREFIX and
 *      the usual prefixes, site-packages/nvidia/{cu13,cuda_nvrtc}/lib
 * Errors: QN_EDEVICE. */
int nvrtc_open(struct diag *d, const char *path, struct nvrtc *n);
void nvrtc_close(struct nvrtc *n);

struct nvrtc_source {
    const char *name; /* in messages */
    const char *text;
    int n_headers; /* virtual files that #include finds by exactly these names */
    const char *const *header_names, *const *header_texts;
    int n_options;
    const char *const *options; /* "--gpu-architecture=sm_90a" among them */
};

struct nvrtc_image {
    char *bytes; /* a cubin; heap, released by nvrtc_image_fini */
    size_t n;
    char *log; /* what the compiler said, "" if nothing; also set when compiling failed */
};

/* Compiles. Errors: QN_EDEVICE with the first lines of the log; QN_ENOMEM. */
int nvrtc_compile(struct diag *d, const struct nvrtc *n, const struct nvrtc_source *source,
                  struct nvrtc_image *image);
void nvrtc_image_fini(struct nvrtc_image *image);

#endif

/* device_rig.h - runs one iteration of a CUDA program on a GPU, or on the emulated one, with the
 * memory before and after in the caller's hands.
 *
 * It is what engine/backend_cuda.c does at start, without weights' files, mailbox and watcher: the
 * same image, tables, upload and kernel. A launch begins with the requests of an iteration running
 * already (iteration.h) and ends by itself, since nothing is left to do after it.
 */
#ifndef QN_TESTS_DEVICE_DEVICE_RIG_H
#define QN_TESTS_DEVICE_DEVICE_RIG_H

#include "codegen/cuda_driver.h"
#include "codegen/cuda_tables.h"
#include "codegen/cuda_upload.h"
#include "device/iteration.h"
#include "engine/cuda_plan.h"

/* Bytes behind the workspace and the KV cache that nothing may touch. */
enum { DEVICE_GUARD_BYTES = 4096 };

struct test_device {
    struct cuda_api api;
    struct cuda_device info;
    cu_context context;
    cu_stream stream;
    struct cuda_upload upload; /* its buffers serve one program after the other */
};

enum device_block {
    DEVICE_WEIGHTS,
    DEVICE_KV,
    DEVICE_WORKSPACE,
    DEVICE_STATE,
    DEVICE_PROGRAM,
    DEVICE_TASKS,
    DEVICE_ROPE,
    DEVICE_SAMPLE,
    DEVICE_SUMS,
    N_DEVICE_BLOCKS
};

/* A program on the device. */
struct device_program {
    struct test_device *device;
    const struct prog_header *program; /* borrowed */
    struct cuda_plan plan;
    cu_module module;
    cu_function mega;
    uint64_t bytes[N_DEVICE_BLOCKS];
    cu_pointer blocks[N_DEVICE_BLOCKS];
    void *mail;
    cu_pointer d_mail;
    struct cuda_task *tasks; /* host copy: what device_run gives the kernel */
};

/* Memory before and after an iteration. */
struct device_memory {
    char *workspace; /* [program's workspace + guard] */
    char *kv;        /* [plan.kv_bytes + guard]; NULL: not looked at */
    char *weights;   /* [plan.weight_bytes] after the iteration; NULL: not wanted */
    char *state;     /* [plan.rt.state_bytes] after it: bind with rt_memory_bind */
};

/* QN_EDEVICE where there is no GPU, none emulated, or no compiler for it. To be closed also after
 * an error. */
int device_open(struct diag *d, struct test_device *device);
void device_close(struct test_device *device);

uint32_t device_cc(const struct test_device *device);

/* Loads a program and weights[i], rows of the program's part i in the type of its block. */
int device_load(struct diag *d, struct test_device *device, const struct prog_header *program,
                const void *const *weights, uint32_t n_kv_blocks, struct device_program *out);
void device_unload(struct device_program *p);

/* Where its tables' addresses begin. */
struct cuda_bases device_bases(const struct device_program *p);
/* Reads the weights allocation. */
int device_weights(struct diag *d, const struct device_program *p, char *weights);

/* Runs the iteration. only: a task of the program that does its work, all others of its variant do
 * nothing; PROG_NONE: all do. Errors: QN_ESTALL with who waited for what. */
int device_run(struct diag *d, const struct device_program *p, const struct iteration *it,
               uint32_t only, struct device_memory *memory);

#endif

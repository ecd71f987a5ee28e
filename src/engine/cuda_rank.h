/* cuda_rank.h - one GPU of a group (cuda_group.h): its context, its memory, its kernel.
 *
 *   open ─ load ─ weights ─ start ═ (cuda_run.h watches) ═ close
 *
 * All ranks run the same program. Only the rank's number differs, which is an argument of the
 * functions that fill its memory. Each rank has a mailbox's memory of its own, which the group's
 * mailbox writes. Device memory is taken in blocks, one allocation each, in the order of enum
 * cuda_block.
 */
#ifndef QN_ENGINE_CUDA_RANK_H
#define QN_ENGINE_CUDA_RANK_H

#include "codegen/kernel_image.h"
#include "engine/backend_cuda.h"
#include "engine/cuda_plan.h"
#include "engine/cuda_run.h"

enum cuda_block {
    CUDA_BLOCK_WEIGHTS,
    CUDA_BLOCK_KV,
    CUDA_BLOCK_WORKSPACE,
    CUDA_BLOCK_STATE,
    CUDA_BLOCK_PROGRAM,
    CUDA_BLOCK_TASKS,
    CUDA_BLOCK_ROPE,
    CUDA_BLOCK_SAMPLE,
    CUDA_BLOCK_SUMS,
    CUDA_BLOCK_TRACE,
    N_CUDA_BLOCKS
};

/* What all ranks of a group share; outlives them. */
struct cuda_shared {
    const struct cuda_api *api;
    const struct backend_cuda_options *options;
    const struct prog_header *program;
    const struct cuda_plan *plan; /* of each GPU's memory */
    uint32_t n_ranks;             /* program->n_ranks */
};

struct cuda_rank {
    const struct cuda_shared *shared;
    uint32_t rank; /* 0 to n_ranks - 1; 0 leads: its tokens are read, and it is traced */
    struct cuda_device device;
    cu_context context;
    cu_module module;
    cu_function mega, read_all;
    int registers, local_bytes; /* of mega, per thread */
    cu_stream stream;           /* for loading and measuring */
    cu_pointer blocks[N_CUDA_BLOCKS];
    void *mail;        /* pinned, mapped */
    cu_pointer d_mail; /* the same on the device */
    struct cuda_args args;
    struct rt host_rt; /* only its mailbox part is the host's */
    struct rt_batch limits;
    struct cuda_trace trace;
    struct cuda_run run;
};

/* The functions below need no current context, and leave none. Errors: QN_EDEVICE, QN_ELIMIT,
 * QN_ENOMEM, QN_EUNSUPPORTED. A rank is to be closed also after an error. */

/* Finds the GPU of that ordinal and makes a context on it. */
int cuda_rank_open(struct diag *d, const struct cuda_shared *shared, uint32_t rank, int ordinal,
                   struct cuda_rank *r);
/* Loads the kernels and checks that all blocks of the mega-kernel can be resident at a time:
 * otherwise the protocol could wait forever. */
int cuda_rank_load(struct diag *d, struct cuda_rank *r, const void *image);
/* Takes all memory and fills all but the weights; trace: the host's, or NULL. */
int cuda_rank_fill(struct diag *d, struct cuda_rank *r, struct rt_trace *trace);
/* Fills the weights; weights NULL: made up on the device. Calls `each` after every block, with the
 * bytes of the rank that are there by then. */
int cuda_rank_weights(struct diag *d, struct cuda_rank *r, const struct weights *weights,
                      void (*each)(void *user, uint64_t done), void *user);
/* Starts the watcher. Readers of the group sleep on `readers`. */
int cuda_rank_start(struct diag *d, struct cuda_rank *r, struct rt_mail *readers);
/* Stops a kernel that runs. A kernel that does not end keeps its context, and nothing that it may
 * touch is freed: false. */
bool cuda_rank_close(struct cuda_rank *r);

/* Experts that its tasks have read so far; may be called while they run. */
int cuda_rank_reads(struct diag *d, const struct cuda_rank *r, struct rt_reads *reads);
/* The best rate of reading all weights, in bytes per second, over about `seconds`. */
int cuda_rank_measure_read(struct diag *d, struct cuda_rank *r, double seconds, double *rate);

/* For the files of a rank. */
void cuda_rank_enter(const struct cuda_rank *r); /* makes its context the thread's */
void cuda_rank_leave(const struct cuda_rank *r);
uint32_t cuda_rank_cc(const struct cuda_rank *r); /* compute capability, major * 10 + minor */
/* An address in a block; NULL: the block is empty. */
void *cuda_rank_at(const struct cuda_rank *r, enum cuda_block which, uint64_t offset);

/* cuda_memory.c: with the context current. */
int cuda_memory_take(struct diag *d, struct cuda_rank *r);
int cuda_memory_fill(struct diag *d, struct cuda_rank *r);
int cuda_memory_weights(struct diag *d, struct cuda_rank *r, const struct weights *weights,
                        void (*each)(void *user, uint64_t done), void *user);
/* Sets L2 aside for the activations that pass from task to task beside the stream of weights. */
void cuda_memory_keep(const struct cuda_rank *r);
void cuda_memory_give_back(struct cuda_rank *r);

#endif

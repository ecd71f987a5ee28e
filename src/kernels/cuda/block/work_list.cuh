/* work_list.cuh - a task's work list: its items, one after the other. The loader brings the pages
 * of each item, the compute warps take them. Both follow the list by the same functions, so neither
 * tells the other which item is next.
 *
 * The items follow from the list's source:
 *
 *   WORK_STATIC   the task's descriptor: row blocks of an image of weights (loader.cuh)
 *   WORK_ROWS     the rows of the iteration, known when it is published (attention_items.cuh)
 *   WORK_TENSOR   experts: a tensor that an earlier task of the iteration writes. The loader waits
 *                 for the task's event, which says that the tensor is written, then reads how many
 *                 items there are and which. Of a single row it waits for the logits from which
 *                 the tensor follows, if they carry flags (expert_pages.cuh)
 *
 * A kind of list is a struct L with the field `left` (items from here on, 0: the list is done) and
 * three functions:
 *
 *   L_begin(task)     the task's first item
 *   L_skip(&list, n)  goes on to the n-th item after this one
 *   L_pages(l, list)  the loader's: requests the pages of the list's items, in the order in which
 *                     the compute warps take them. False: something happened instead (loader.cuh)
 *
 * L_begin and L_skip depend on nothing that changes while the task runs. A new kind of list is a
 * row of work_source and a case of loader_work (loader_work.cuh).
 */
#ifndef QN_CUDA_BLOCK_WORK_LIST_CUH
#define QN_CUDA_BLOCK_WORK_LIST_CUH

#include "kernels/cuda/block/block.cuh"

enum work_source { WORK_STATIC, WORK_ROWS, WORK_TENSOR };

/* The source of attention's lists. A test sets WORK_TENSOR: the pages are then requested after the
 * task's event, and nothing else is different. */
#ifndef QN_ATTENTION_SOURCE
#define QN_ATTENTION_SOURCE WORK_ROWS
#endif

/* Whether a kind's keys and values come as pages. */
DEV bool work_is_attention(uint32_t kind) {
    return kind == OP_ATTENTION_STEP || kind == OP_ATTENTION_WHOLE ||
           (QN_HAS_latent_pages && kind == OP_ATTENTION_SPLIT);
}

/* Whether a kind's weights are those of experts that the iteration lists (expert/expert_list.cuh).
 */
DEV bool work_is_of_experts(uint32_t kind) {
    return QN_EXPERTS != 0 && cuda_lists_experts(kind);
}

/* Whether a task of the kind leases the ring, if it has items (attention_latent_lease.cuh). */
DEV bool work_is_latent(uint32_t kind) {
    return QN_LATENT && (kind == OP_ATTENTION || kind == OP_ATTENTION_SPLIT) &&
           !work_is_attention(kind);
}

DEV enum work_source work_source(uint32_t kind, uint32_t flags) {
    if (work_is_of_experts(kind))
        return flags & (kind == OP_EXPERT_DOWN ? CUDA_LIST_KNOWN : CUDA_LOGITS_POLLED)
                   ? WORK_ROWS
                   : WORK_TENSOR;
    return work_is_attention(kind) || work_is_latent(kind) ? QN_ATTENTION_SOURCE : WORK_STATIC;
}

#endif

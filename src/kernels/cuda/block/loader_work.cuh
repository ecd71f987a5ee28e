/* loader_work.cuh - the loader's role: the pages of each task's work list (work_list.cuh). */
#ifndef QN_CUDA_BLOCK_LOADER_WORK_CUH
#define QN_CUDA_BLOCK_LOADER_WORK_CUH

#include "kernels/cuda/attention/attention_pages.cuh"
#include "kernels/cuda/block/loader.cuh"
#if QN_EXPERTS
#include "kernels/cuda/expert/expert_pages.cuh"
#endif

/* All pages of the task with descriptor `from`. word: this lane's word of the descriptor. False:
 * something happened instead (loader_decided). */
DEV bool loader_work(struct loader *l, uint32_t word, const struct cuda_task *from) {
    const struct loader_task t = loader_task_of(word);
    const bool attention = work_is_attention(t.kind), weights = loader_has_pages(&t);
    const uint32_t flags = loader_word(word, 0) >> 16; /* kind, form, flags */
    if (!loader_knows(l, work_source(t.kind, flags), from)) return false;
#if QN_EXPERTS
    if (work_is_of_experts(t.kind)) {
        l->between = false;
        if (!expert_pages(l, &t, word, from)) return false;
        loader_trace(l, t.index);
        return true;
    }
#endif
    if (attention && !attention_pages(l, &t, from)) return false;
    if (weights && l->stream == CUDA_STREAM_TASK && !loader_wait_all(l)) return false;
    if (weights && !loader_task_pages(l, &t, word)) return false;
    l->between = !weights && !attention;
    if (weights) loader_trace(l, t.index);
    return true;
}

/* Waits for all copies: none may land after the block has ended. */
DEV void loader_drain(const struct loader *l) {
    for (uint32_t i = 1; i <= l->n_flying; i++) {
        const struct loader_page p = loader_before(l, i);
        barrier_wait_acquire_cta(&SHARED->page_full[p.slot], p.parity);
    }
}

DEV void loader_main(const struct warp_context *c, uint32_t resume) {
    struct loader l = {};
    l.args = c->args;
    l.lane = c->lane;
    l.near = l.flight = min(l.args->flight, (uint32_t)RING_PAGES - 1);
    if (LOADER_PAGES > 1) l.deep = min(l.args->flight_deep, (uint32_t)RING_PAGES - 1);
    l.burst = min(l.flight, (uint32_t)LOADER_PAGES);
    l.stream = c->args->stream;
    l.published = resume;
    if (rt_trace_of(&l.args->rt) != nullptr) l.n_traced = trace_ring(l.args, 2)->n;
    loader_tasks(&l);
    loader_drain(&l);
}

#endif

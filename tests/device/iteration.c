#include "device/iteration.h"
#include "base/checked.h"
#include "runtime/rt_block.h"

#include <assert.h>
#include <stdlib.h>

uint32_t iteration_n_known(const struct iteration_request *q) {
    return q->first + q->n;
}

/* Blocks in an order of their own, so that no address follows from the one before. */
static int32_t next_block(struct iteration *it) {
    assert(it->n_blocks < it->n_kv_blocks && it->n_kv_blocks % 31 != 0);
    return (int32_t)((uint64_t)it->n_blocks++ * 31 % it->n_kv_blocks);
}

static void lay_out_request(struct iteration *it, const struct iteration_request *q,
                            uint32_t vocab) {
    const uint32_t n_known = iteration_n_known(q);
    int32_t *tokens = it->tokens + (uint64_t)q->slot * it->max_len;
    int32_t *table = it->block_table + (uint64_t)q->slot * it->max_blocks;
    assert(n_known < it->max_len && it->n_rows + q->n <= ITERATION_MAX_ROWS);
    for (uint32_t p = 0; p < n_known; p++)
        tokens[p] = (int32_t)((q->slot * 31 + p * 17 + p / 3) % vocab);
    for (uint32_t b = 0; b * it->kv_block < n_known; b++) table[b] = next_block(it);
    for (uint32_t i = 0; i < q->n; i++) {
        it->token[it->n_rows] = tokens[q->first + i];
        it->slot[it->n_rows] = (int32_t)q->slot;
        it->position[it->n_rows++] = (int32_t)(q->first + i);
    }
    it->logit_row[it->n_logit_rows++] = (int32_t)it->n_rows - 1;
}

void iteration_lay_out(struct iteration *it, const struct prog_header *p, uint32_t n_kv_blocks) {
    it->n_rows = it->n_logit_rows = it->n_blocks = 0;
    it->max_len = p->max_model_len;
    it->kv_block = p->kv_block;
    it->max_blocks = CEIL_DIV(p->max_model_len, p->kv_block);
    it->n_kv_blocks = n_kv_blocks;
    it->tokens = calloc((size_t)ITERATION_SLOTS * it->max_len, sizeof *it->tokens);
    it->block_table = calloc((size_t)ITERATION_SLOTS * it->max_blocks, sizeof *it->block_table);
    assert(it->tokens != NULL && it->block_table != NULL);
    for (uint32_t i = 0; i <= ITERATION_SLOTS; i++) it->first_row[i] = 0;
    for (uint32_t i = 0; i < it->n_requests; i++) {
        lay_out_request(it, &it->requests[i], PROG(p, MODEL)->vocab);
        it->first_row[it->requests[i].slot + 1] = iteration_n_known(&it->requests[i]);
    }
    for (uint32_t i = 0; i < ITERATION_SLOTS; i++) it->first_row[i + 1] += it->first_row[i];
}

void iteration_fini(struct iteration *it) {
    free(it->tokens);
    free(it->block_table);
    it->tokens = it->block_table = NULL;
}

/* All its tokens are known and all but the last n are computed; it may get one more. */
static void enter_request(const struct iteration *it, const struct iteration_request *q,
                          const struct rt *rt, const struct rt_batch *b) {
    const uint32_t n_known = iteration_n_known(q), n_prompt = n_known - q->n_output;
    const int32_t *tokens = it->tokens + (uint64_t)q->slot * it->max_len;
    const int32_t *table = it->block_table + (uint64_t)q->slot * it->max_blocks;
    struct rt_slot *s = &b->slots[q->slot];
    *s = (struct rt_slot){.state = SLOT_RUNNING,
                          .n_known = n_known,
                          .n_computed = q->first,
                          .n_prompt = n_prompt,
                          .n_limit = n_known + 1,
                          .n_blocks = CEIL_DIV(n_known, it->kv_block)};
    b->requests[q->slot] = (struct rt_request){
        .n_prompt = n_prompt, .max_tokens = q->n_output + 1, .sampling = q->sampling};
    for (uint32_t p = 0; p < n_known; p++) {
        b->tokens[(uint64_t)q->slot * it->max_len + p] = tokens[p];
        ((int32_t *)rt->prompts)[(uint64_t)q->slot * it->max_len + p] = tokens[p];
    }
    for (uint32_t i = 0; i < s->n_blocks; i++) {
        b->block_table[(uint64_t)q->slot * it->max_blocks + i] = table[i];
        rt_block_hold(rt, (uint32_t)table[i]);
    }
    rt->running[rt->control->n_running++] = q->slot;
}

void iteration_enter(const struct iteration *it, const struct rt *rt, const struct rt_batch *b) {
    for (uint32_t i = 0; i < it->n_requests; i++) enter_request(it, &it->requests[i], rt, b);
}

void iteration_choose(const struct iteration *it, struct rt *rt) {
    for (uint32_t i = 0; i < rt->n_variants; i++)
        if (i != it->variant) rt->shapes[i] = 0;
    rt->largest = it->variant;
}

void iteration_refer(const struct iteration *it, struct reference *r) {
    r->n_rows = it->n_rows;
    r->n_logit_rows = it->n_logit_rows;
    r->token = it->token;
    r->slot = it->slot;
    r->position = it->position;
    r->logit_row = it->logit_row;
    r->first_row = it->first_row;
    for (uint32_t i = 0; i < it->n_requests; i++) {
        const struct iteration_request *q = &it->requests[i];
        r->requests[q->slot] =
            (struct reference_request){.tokens = it->tokens + (uint64_t)q->slot * it->max_len,
                                       .n_known = iteration_n_known(q),
                                       .n_prompt = iteration_n_known(q) - q->n_output,
                                       .sampling = q->sampling};
    }
}

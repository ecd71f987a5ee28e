/* rt_block.h - the blocks of the KV cache: which requests hold a block, and which tokens it stands
 * for.
 *
 *     held     refs > 0: in the tables of that many running requests
 *     cached   refs 0, and its tokens are known: a request that begins with them may use it
 *     empty    refs 0, and its tokens are not known
 *
 *     idle list   first ─► empty ─ empty ─ cached (least recently used) ─ ... ─ cached ◄─ last
 *
 * A block is taken from the front of the list. The numbers of held, cached and empty blocks add up
 * to n_kv_blocks after every boundary (rt_blocks_sound).
 *
 * Registered blocks form a tree: a block names its parent, the block of the tokens before, and
 * stores its own tokens. So a chain from the root is a text, and two requests that begin with the
 * same text hold the same blocks. A hash leads to the candidates; parent and all tokens are
 * compared, so no hit is ever wrong. A request that holds a block holds its parent, and releases
 * the child first. So a child is evicted before its parent, and no block names a parent that now
 * holds other tokens.
 *
 * The blocks of a prompt are registered when its request is admitted, before they are computed:
 * each has a writer, the request that will compute it. A request that begins with the same text is
 * admitted, too, and waits for the writer instead of computing the same again. A writer that ends
 * before its block is computed leaves the block without a writer; the next request that needs the
 * block becomes its writer. Blocks are computed in order, so some request can always go on: the
 * writer of the first block that is not computed. A registered block that is computed is never
 * written again.
 */
#ifndef QN_RUNTIME_RT_BLOCK_H
#define QN_RUNTIME_RT_BLOCK_H

#include "runtime/rt_state.h"

enum {
    RT_TOKENS_AT_ONCE = 16, /* tokens loaded together: each load is a trip to L2, or over the bus.
                             * With 32 a GPU's control warp spills registers around the boundary */
    RT_CANDIDATES = 16,     /* blocks of a bucket that are looked at: a bound for the boundary's
                             * time */
};

RT_FN uint32_t rt_min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

RT_FN uint32_t rt_max(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* rt_block.writer of blocks that are computed, and of blocks whose writer has gone. */
#define RT_COMPUTED  0xfffffffeu
#define RT_NO_WRITER RT_NONE

/* The parent of a text's first block. Each cache space has two roots, because keys of long prompts
 * may be turned by other angles. */
RT_FN uint32_t rt_block_root(const struct rt *rt, const struct rt_request *q) {
    return 0x80000000u | (q->n_prompt > rt->pool->rope_switch ? 0x40000000u : 0) | q->cache_space;
}

RT_FN int rt_block_registered(const struct rt_block *k) {
    return k->parent != RT_NONE;
}

RT_FN int32_t *rt_block_table(const struct rt *rt, uint32_t slot) {
    return rt->batch->block_table + (uint64_t)slot * rt->batch->max_blocks;
}

/* ---- the idle list ---- */

RT_FN void rt_block_unlink(const struct rt *rt, uint32_t block) {
    struct rt_control *c = rt->control;
    const struct rt_block *k = rt_block_of(rt, block);
    *(k->before != RT_NONE ? &rt_block_of(rt, k->before)->after : &c->idle_first) = k->after;
    *(k->after != RT_NONE ? &rt_block_of(rt, k->after)->before : &c->idle_last) = k->before;
    c->n_free--;
    c->n_idle_known -= (uint32_t)rt_block_registered(k);
}

/* Adds a block that no request holds: in front if its tokens are not known, else at the end, as the
 * one used last. */
RT_FN void rt_block_link(const struct rt *rt, uint32_t block) {
    struct rt_control *c = rt->control;
    struct rt_block *k = rt_block_of(rt, block);
    const int last = rt_block_registered(k);
    k->before = last ? c->idle_last : RT_NONE;
    k->after = last ? RT_NONE : c->idle_first;
    *(k->before != RT_NONE ? &rt_block_of(rt, k->before)->after : &c->idle_first) = block;
    *(k->after != RT_NONE ? &rt_block_of(rt, k->after)->before : &c->idle_last) = block;
    c->n_free++;
    c->n_idle_known += (uint32_t)last;
}

/* ---- the tree ---- */

RT_FN uint32_t *rt_block_bucket(const struct rt *rt, uint32_t key) {
    return (uint32_t *)rt_pool_at(rt, rt->pool->buckets_at) + (key & rt->pool->bucket_mask);
}

RT_FN void rt_block_forget(const struct rt *rt, uint32_t block) {
    struct rt_block *k = rt_block_of(rt, block);
    *(k->chain_before != RT_NONE ? &rt_block_of(rt, k->chain_before)->chain_after
                                 : rt_block_bucket(rt, k->key)) = k->chain_after;
    if (k->chain_after != RT_NONE) rt_block_of(rt, k->chain_after)->chain_before = k->chain_before;
    k->parent = RT_NONE;
    rt->control->n_registered--;
}

/* The tokens from i on, of n; past the end the last token again. */
struct rt_tokens {
    int32_t token[RT_TOKENS_AT_ONCE];
};
RT_FN struct rt_tokens rt_tokens_at(const int32_t *tokens, uint32_t i, uint32_t n) {
    struct rt_tokens t;
    RT_UNROLL
    for (uint32_t j = 0; j < RT_TOKENS_AT_ONCE; j++) t.token[j] = tokens[rt_min(i + j, n - 1)];
    return t;
}

/* The key of a block whose tokens lie at `tokens`, after the block with key `before`. It has four
 * sums, so that their multiplications overlap. */
RT_COLD uint32_t rt_block_key(const struct rt *rt, uint32_t before, const int32_t *tokens) {
    const uint64_t odd = rt->pool->hash_seed | 1;
    uint64_t h[4] = {rt->pool->hash_seed + before, 1, 2, 3};
    const uint32_t n = rt->batch->kv_block;
    for (uint32_t i = 0; i < n; i += RT_TOKENS_AT_ONCE) {
        const struct rt_tokens t = rt_tokens_at(tokens, i, n);
        RT_UNROLL
        for (uint32_t j = 0; j < RT_TOKENS_AT_ONCE; j++)
            if (i + j < n) h[j % 4] = (h[j % 4] ^ h[j % 4] >> 29 ^ (uint32_t)t.token[j]) * odd;
    }
    const uint64_t sum = (h[0] ^ (h[1] * odd + h[2]) * odd ^ h[3] >> 7) * odd;
    return (uint32_t)(sum >> 32);
}

RT_FN int32_t *rt_block_tokens(const struct rt *rt, uint32_t block) {
    return (int32_t *)rt_pool_at(rt, rt->pool->tokens_at) + (uint64_t)block * rt->batch->kv_block;
}

RT_COLD int rt_block_same(const struct rt *rt, uint32_t block, const int32_t *tokens) {
    const int32_t *held = rt_block_tokens(rt, block);
    const uint32_t n = rt->batch->kv_block;
    uint32_t differ = 0;
    for (uint32_t i = 0; i < n && differ == 0; i += RT_TOKENS_AT_ONCE) {
        RT_UNROLL
        for (uint32_t j = 0; j < RT_TOKENS_AT_ONCE; j++) {
            const uint32_t at = i + j < n ? i + j : n - 1;
            differ |= (uint32_t)(held[at] ^ tokens[at]);
        }
    }
    return differ == 0;
}

RT_COLD void rt_block_copy(int32_t *to, const int32_t *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i += RT_TOKENS_AT_ONCE) {
        const struct rt_tokens t = rt_tokens_at(from, i, n);
        RT_UNROLL
        for (uint32_t j = 0; j < RT_TOKENS_AT_ONCE; j++)
            if (i + j < n) to[i + j] = t.token[j];
    }
}

/* The registered block of these tokens after `parent`, RT_NONE: there is none. */
RT_COLD uint32_t rt_block_find(const struct rt *rt, uint32_t parent, uint32_t key,
                               const int32_t *tokens) {
    uint32_t block = *rt_block_bucket(rt, key);
    for (uint32_t i = 0; i < RT_CANDIDATES && block != RT_NONE; i++) {
        const struct rt_block *k = rt_block_of(rt, block);
        if (k->key == key && k->parent == parent && rt_block_same(rt, block, tokens)) return block;
        block = k->chain_after;
    }
    return RT_NONE;
}

RT_FN void rt_block_enter(const struct rt *rt, uint32_t block, uint32_t parent, uint32_t key,
                          const int32_t *tokens, uint32_t writer) {
    struct rt_block *k = rt_block_of(rt, block);
    uint32_t *first = rt_block_bucket(rt, key);
    k->parent = parent;
    k->key = key;
    k->writer = writer;
    k->chain_before = RT_NONE;
    k->chain_after = *first;
    if (*first != RT_NONE) rt_block_of(rt, *first)->chain_before = block;
    *first = block;
    rt_block_copy(rt_block_tokens(rt, block), tokens, rt->batch->kv_block);
    rt->control->n_registered++;
}

/* ---- holding ---- */

RT_FN void rt_block_hold(const struct rt *rt, uint32_t block) {
    if (rt_block_of(rt, block)->refs++ == 0) rt_block_unlink(rt, block);
}

/* Takes the first block of the idle list, which is not empty. */
RT_FN uint32_t rt_block_take(const struct rt *rt) {
    const uint32_t block = rt->control->idle_first;
    rt_block_hold(rt, block);
    if (rt_block_registered(rt_block_of(rt, block))) rt_block_forget(rt, block);
    return block;
}

/* `slot` releases a block. A registered block that is not computed is forgotten when no request
 * holds it. */
RT_FN void rt_block_give_back(const struct rt *rt, uint32_t slot, uint32_t block) {
    struct rt_block *k = rt_block_of(rt, block);
    const int unwritten = rt_block_registered(k) && k->writer == slot;
    if (unwritten) k->writer = RT_NO_WRITER;
    if (--k->refs > 0) return;
    if (rt_block_registered(k) && k->writer != RT_COMPUTED) rt_block_forget(rt, block);
    rt_block_link(rt, block);
}

/* Extends a request's table to n blocks; enough blocks are idle. */
RT_COLD void rt_blocks_extend(const struct rt *rt, uint32_t slot, uint32_t n) {
    struct rt_slot *s = &rt->batch->slots[slot];
    int32_t *table = rt_block_table(rt, slot);
    for (; s->n_blocks < n; s->n_blocks++) table[s->n_blocks] = (int32_t)rt_block_take(rt);
}

/* Releases all blocks of a request but the first n, the last one first. */
RT_COLD void rt_blocks_cut(const struct rt *rt, uint32_t slot, uint32_t n) {
    struct rt_slot *s = &rt->batch->slots[slot];
    const int32_t *table = rt_block_table(rt, slot);
    while (s->n_blocks > n) rt_block_give_back(rt, slot, (uint32_t)table[--s->n_blocks]);
}

/* ---- a request's blocks in the tree ---- */

/* Block i of a request's table as a node of the tree. */
struct rt_block_place {
    const int32_t *tokens;
    uint32_t parent, key;
};

RT_FN struct rt_block_place rt_block_place(const struct rt *rt, uint32_t slot, uint32_t i) {
    const struct rt_batch *b = rt->batch;
    const uint32_t root = rt_block_root(rt, &b->requests[slot]);
    struct rt_block_place p;
    p.tokens = b->tokens + (uint64_t)slot * b->max_model_len + (uint64_t)i * b->kv_block;
    p.parent = i == 0 ? root : (uint32_t)rt_block_table(rt, slot)[i - 1];
    p.key = rt_block_key(rt, i == 0 ? root : rt_block_of(rt, p.parent)->key, p.tokens);
    return p;
}

/* Finds a request's first blocks among the registered ones and writes them into its table, at most
 * n; returns how many. */
RT_COLD uint32_t rt_blocks_match(const struct rt *rt, uint32_t slot, uint32_t n) {
    uint32_t i = 0;
    for (; rt->pool->prefix_cache && i < n; i++) {
        const struct rt_block_place p = rt_block_place(rt, slot, i);
        const uint32_t block = rt_block_find(rt, p.parent, p.key, p.tokens);
        if (block == RT_NONE) break;
        rt_block_table(rt, slot)[i] = (int32_t)block;
    }
    return i;
}

/* Registers the next blocks of a request, up to its n-th, with the request as writer. A block whose
 * tokens are registered already ends this: the request has a copy of its own (rt_blocks_computed).
 */
RT_COLD void rt_blocks_announce(const struct rt *rt, uint32_t slot, uint32_t n) {
    struct rt_turn *t = rt_turn_of(rt, slot);
    for (; rt->pool->prefix_cache && t->n_registered < n; t->n_registered++) {
        const struct rt_block_place p = rt_block_place(rt, slot, t->n_registered);
        if (rt_block_find(rt, p.parent, p.key, p.tokens) != RT_NONE) return;
        rt_block_enter(rt, (uint32_t)rt_block_table(rt, slot)[t->n_registered], p.parent, p.key,
                       p.tokens, slot);
    }
}

/* Registers block i, which is computed. If a block of the same tokens is registered already, the
 * request holds that one instead. 0: not yet, because another request is still computing that one.
 */
RT_COLD int rt_block_settle(const struct rt *rt, uint32_t slot, uint32_t i) {
    int32_t *table = rt_block_table(rt, slot);
    const struct rt_block_place p = rt_block_place(rt, slot, i);
    const uint32_t found = rt_block_find(rt, p.parent, p.key, p.tokens);
    if (found == RT_NONE) {
        rt_block_enter(rt, (uint32_t)table[i], p.parent, p.key, p.tokens, RT_COMPUTED);
        return 1;
    }
    if (rt_block_of(rt, found)->writer != RT_COMPUTED) return 0;
    rt_block_hold(rt, found);
    rt_block_give_back(rt, slot, (uint32_t)table[i]);
    table[i] = (int32_t)found;
    return 1;
}

/* Notes that the first n_computed positions of a request are computed: other requests may use the
 * whole blocks of these. */
RT_COLD void rt_blocks_computed(const struct rt *rt, uint32_t slot, uint32_t n_computed) {
    struct rt_turn *t = rt_turn_of(rt, slot);
    const uint32_t n = n_computed / rt->batch->kv_block;
    if (!rt->pool->prefix_cache) return;
    for (; t->n_ready < n && t->n_ready < t->n_registered; t->n_ready++)
        rt_block_of(rt, rt_block_table(rt, slot)[t->n_ready])->writer = RT_COMPUTED;
    while (t->n_registered < n && rt_block_settle(rt, slot, t->n_registered))
        t->n_ready = ++t->n_registered;
}

/* Moves a request that waits for the writers of its blocks past the blocks that are computed, and
 * makes it the writer of the next blocks that have none. */
RT_COLD void rt_blocks_follow(const struct rt *rt, uint32_t slot) {
    struct rt_slot *s = &rt->batch->slots[slot];
    struct rt_turn *t = rt_turn_of(rt, slot);
    const int32_t *table = rt_block_table(rt, slot);
    const uint32_t kv_block = rt->batch->kv_block;
    for (; t->n_ready < t->n_shared && s->n_computed == t->n_ready * kv_block; t->n_ready++) {
        if (rt_block_of(rt, table[t->n_ready])->writer != RT_COMPUTED) break;
        s->n_computed += kv_block;
    }
    for (uint32_t i = t->n_ready; i < t->n_shared; i++) {
        if (rt_block_of(rt, table[i])->writer != RT_NO_WRITER) break;
        rt_block_of(rt, table[i])->writer = slot;
        if (t->n_admitted > 1) continue; /* n_cached is that of the first admission */
        t->n_cached -= t->n_cached >= kv_block ? kv_block : 0;
        rt_host_store_relaxed(&rt->posts[slot].n_cached, t->n_cached);
    }
}

/* Of the next n tokens of a request, how many it may compute: up to the first block that another
 * request writes. */
RT_COLD uint32_t rt_blocks_open(const struct rt *rt, uint32_t slot, uint32_t n) {
    const struct rt_slot *s = &rt->batch->slots[slot];
    const struct rt_turn *t = rt_turn_of(rt, slot);
    const int32_t *table = rt_block_table(rt, slot);
    const uint32_t kv_block = rt->batch->kv_block;
    uint32_t i = s->n_computed / kv_block;
    while (i < t->n_shared && rt_block_of(rt, table[i])->writer == slot) i++;
    if (i >= t->n_shared) return n;
    const uint32_t end = i * kv_block > s->n_computed ? i * kv_block - s->n_computed : 0;
    return end < n ? end : n;
}

/* ---- checks ---- */

/* Whether every block is in the idle list or held by as many running requests as it says, and
 * whether parents are held where children are. For debug builds and tests. */
RT_COLD int rt_blocks_sound(const struct rt *rt) {
    const struct rt_batch *b = rt->batch;
    const struct rt_control *c = rt->control;
    uint32_t n_idle = 0, n_held = 0, cached = 0, n_known = 0;
    uint64_t refs = 0, holds = 0;
    for (uint32_t k = c->idle_first; k != RT_NONE && n_idle <= b->n_kv_blocks;
         k = rt_block_of(rt, k)->after, n_idle++) {
        if (rt_block_of(rt, k)->refs != 0 || (cached && !rt_block_registered(rt_block_of(rt, k))))
            return 0;
        cached = (uint32_t)rt_block_registered(rt_block_of(rt, k));
        if (cached && rt_block_of(rt, k)->writer != RT_COMPUTED) return 0;
        n_known += cached;
    }
    for (uint32_t k = 0; k < b->n_kv_blocks; k++) {
        const struct rt_block *block = rt_block_of(rt, k);
        n_held += block->refs > 0;
        refs += block->refs;
        if (block->refs > 0 && block->parent < b->n_kv_blocks &&
            rt_block_of(rt, block->parent)->refs < block->refs)
            return 0;
    }
    for (uint32_t i = 0; i < c->n_running; i++) holds += b->slots[rt->running[i]].n_blocks;
    return n_idle == c->n_free && n_known == c->n_idle_known && n_idle + n_held == b->n_kv_blocks &&
           refs == holds;
}

#endif

/* rt_mask.h - masks: which tokens a guided request (rt_request.guided) may have next.
 *
 * The host makes them while iterations run. Each slot has one place in the mailbox:
 *
 *     masks[slot]   made | pad [15] | bit id % 32 of word id / 32: token id may come
 *
 *   host      writes the bits of the tokens that may come after n tokens of output, then `made` =
 *             n + 1. It writes the first mask before the SUBMIT command, and the mask after n
 *             tokens once it has seen the n-th token on every rank.
 *   SAMPLE    has n tokens of output. If `made` is n + 1 it uses the mask. Else the request sits
 *             the iteration out (rt_sit_out): its row is computed again in the next iteration.
 *             No thread waits.
 *
 * So a late host delays only the requests whose masks are late. The host writes a place only when
 * SAMPLE has read the mask there, because the token that the host has seen was chosen by that mask.
 * A mask depends on the request's own tokens only, and a row that is computed again has the same
 * bits, so results depend on none of this. runtime/mask.pml is a model of it.
 */
#ifndef QN_RUNTIME_RT_MASK_H
#define QN_RUNTIME_RT_MASK_H

#include "runtime/rt_mail.h"
#include "runtime/rt_sync.h"

enum { RT_MASK_HEAD = 16 }; /* words before the bits: `made` is alone on its line */

/* Words of bits for a vocabulary. */
RT_FN uint32_t rt_mask_words(uint32_t vocab) {
    return (vocab + 31) / 32;
}

/* The places of all slots. They lie behind the posts of n_slots slots, from the next cache line on.
 */
RT_FN uint32_t *rt_masks_of(struct rt_post *posts, uint32_t n_slots) {
    return (uint32_t *)(posts + (n_slots + 3) / 4 * 4);
}

/* Words of a slot's place, in whole cache lines; below, the word where the place begins. */
RT_FN uint32_t rt_mask_stride(uint32_t vocab) {
    return RT_MASK_HEAD + (rt_mask_words(vocab) + 15) / 16 * 16;
}

RT_FN uint64_t rt_mask_at(uint32_t vocab, uint32_t slot) {
    return (uint64_t)slot * rt_mask_stride(vocab);
}

/* The bits of the tokens that may come after n_out tokens of output; NULL: that mask is not made
 * yet. */
RT_FN const uint32_t *rt_mask_look(const uint32_t *masks, uint32_t vocab, uint32_t slot,
                                   uint32_t n_out) {
    const uint32_t *place = masks + rt_mask_at(vocab, slot);
    return rt_host_load_acquire(place) == n_out + 1 ? place + RT_MASK_HEAD : 0;
}

#endif

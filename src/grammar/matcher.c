#include "grammar/matcher.h"

#include "base/checked.h"
#include "grammar/states.h"

#include <string.h>

enum {
    N_MASKS = 32,              /* masks that are kept */
    MASK_VISITS_MAX = 1 << 22, /* instructions that one mask may cost */
};

/* state.plain: how many characters of a plain token may come, plus 1. */
enum state_plain { PLAIN_UNKNOWN = 0, PLAIN_ALL = VOCAB_PLAIN_MAX + 1, PLAIN_MIXED = 255 };

/* state.after of a state that plain characters lead away from to several states. */
#define AFTER_MIXED UINT32_MAX

struct matcher {
    const struct vocab *vocab; /* NULL: bytes only */
    const int32_t *ends;
    uint32_t n_ends;
    struct states states;
    uint32_t state;
    uint32_t *masks;          /* [N_MASKS][n_words] */
    uint32_t owners[N_MASKS]; /* states */
    uint32_t next_mask;
};

void matcher_free(struct matcher *m) {
    if (!m) return;
    states_fini(&m->states);
    free(m->masks);
    free(m);
}

int matcher_new(struct diag *d, const struct code *code, const struct vocab *vocab,
                const int32_t *ends, uint32_t n_ends, struct matcher **out) {
    struct matcher *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m) return fail_nomem(d, sizeof *m, "a matcher");
    m->vocab = vocab;
    m->ends = ends;
    m->n_ends = n_ends;
    int rc = states_init(d, code, &m->states);
    if (rc == QN_OK && vocab) {
        m->masks = calloc((size_t)N_MASKS * vocab->n_words + 1, sizeof *m->masks);
        if (!m->masks) rc = fail_nomem(d, N_MASKS * vocab->n_words * sizeof *m->masks, "masks");
    }
    if (rc == QN_OK) rc = states_start(d, &m->states, &m->state);
    if (rc == QN_OK)
        *out = m;
    else
        matcher_free(m);
    return rc;
}

size_t matcher_bytes_max(const struct code *code, const struct vocab *vocab) {
    const size_t n_max = MIN(STATES_MAX, STATES_STEPS_MAX / code->n_classes);
    const size_t states = n_max * (sizeof(struct state) + 2 * sizeof(uint32_t)) +
                          n_max * code->n_classes * sizeof(uint32_t) +
                          STATES_THREADS_MAX * sizeof(uint64_t) +
                          STATES_FRAMES_MAX * (sizeof(struct frame) + 2 * sizeof(uint32_t)) +
                          STATES_VISITS_MAX * (2 * sizeof(struct visit) + 2 * sizeof(uint64_t));
    return sizeof(struct matcher) + states +
           (vocab ? N_MASKS * (size_t)vocab->n_words * sizeof(uint32_t) : 0);
}

/* ---- steps -------------------------------------------------------------------------------- */

static inline int step(struct diag *d, struct matcher *m, uint32_t from, uint32_t byte_class,
                       uint32_t *to) {
    *to = states_known(&m->states, from, byte_class);
    if (*to != STATE_UNKNOWN) return QN_OK;
    if (m->states.n_visits > MASK_VISITS_MAX)
        return fail(d, QN_ELIMIT, "the grammar is too ambiguous: one mask takes more than %d steps",
                    MASK_VISITS_MAX);
    return states_step(d, &m->states, from, byte_class, to);
}

/* Before a call that makes states: room for them. */
static int begin(struct diag *d, struct matcher *m) {
    m->states.n_visits = 0;
    if (!states_crowded(&m->states)) return QN_OK;
    memset(m->owners, 0, sizeof m->owners);
    return states_keep(d, &m->states, &m->state);
}

int matcher_bytes(struct diag *d, struct matcher *m, const char *bytes, size_t n) {
    const struct code *code = m->states.code;
    TRY(begin(d, m));
    uint32_t state = m->state;
    for (size_t i = 0; i < n; i++) {
        TRY(step(d, m, state, code->class_of[(uint8_t)bytes[i]], &state));
        if (state == STATE_DEAD)
            return fail(d, QN_EINVAL, "the grammar does not go on with byte 0x%02x",
                        (unsigned)(uint8_t)bytes[i]);
    }
    m->state = state;
    return QN_OK;
}

int matcher_token(struct diag *d, struct matcher *m, int32_t id) {
    const struct vocab *v = m->vocab;
    if (id < 0 || (uint32_t)id >= v->n_tokens || v->at[id] == v->at[id + 1])
        return fail(d, QN_EINVAL, "the grammar does not go on with token %d", id);
    return matcher_bytes(d, m, v->bytes + v->at[id], v->at[id + 1] - v->at[id]);
}

bool matcher_accepts(const struct matcher *m) {
    return m->states.items[m->state].accepts;
}

/* ---- plain characters --------------------------------------------------------------------- */

struct byte_range {
    uint8_t low, high;
};

/* All plain characters (vocab.h) by their bytes. */
static const struct plain_form {
    uint32_t n;
    struct byte_range bytes[4];
} plain_forms[] = {
    {1, {{0x20, 0x21}}},
    {1, {{0x23, 0x5b}}},
    {1, {{0x5d, 0x7e}}},
    {2, {{0xc2, 0xdf}, {0x80, 0xbf}}},
    {3, {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}}},
    {3, {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}}},
    {3, {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}}},
    {3, {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}}},
    {4, {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}},
    {4, {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}},
    {4, {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}}},
};

/* Whether all of one form lead from `from` to *to, which the first of them sets. */
static int form_leads(struct diag *d, struct matcher *m, uint32_t from,
                      const struct plain_form *form, uint32_t at, uint32_t *to, bool *same) {
    const struct code *code = m->states.code;
    const uint32_t last = code->class_of[form->bytes[at].high];
    uint32_t before = STATE_UNKNOWN;
    for (uint32_t c = code->class_of[form->bytes[at].low]; c <= last && *same; c++) {
        uint32_t next;
        TRY(step(d, m, from, c, &next));
        if (next == before) continue;
        before = next;
        if (next != STATE_DEAD && at + 1 < form->n) {
            TRY(form_leads(d, m, next, form, at + 1, to, same));
            continue;
        }
        if (*to == STATE_UNKNOWN) *to = next;
        *same = *to == next;
    }
    return QN_OK;
}

/* Where all plain characters lead from a state; AFTER_MIXED: to several states. */
static int after_plain(struct diag *d, struct matcher *m, uint32_t state, uint32_t *to) {
    bool same = true;
    *to = m->states.items[state].after;
    if (*to != STATE_UNKNOWN) return QN_OK;
    for (size_t i = 0; i < COUNT_OF(plain_forms) && same; i++)
        TRY(form_leads(d, m, state, &plain_forms[i], 0, to, &same));
    if (!same) *to = AFTER_MIXED;
    m->states.items[state].after = *to;
    return QN_OK;
}

/* How long plain tokens may be in a state, if all plain characters lead to the same states. */
static int count_plain(struct diag *d, struct matcher *m, uint32_t state, uint8_t *plain) {
    *plain = PLAIN_ALL;
    for (uint32_t n = 0; n < VOCAB_PLAIN_MAX; n++) {
        uint32_t to;
        TRY(after_plain(d, m, state, &to));
        if (to == AFTER_MIXED) *plain = PLAIN_MIXED;
        if (to == STATE_DEAD) *plain = (uint8_t)(n + 1);
        if (to == AFTER_MIXED || to == STATE_DEAD || to == state) return QN_OK;
        state = to;
    }
    return QN_OK;
}

static int plain_of(struct diag *d, struct matcher *m, uint32_t state, uint8_t *plain) {
    *plain = m->states.items[state].plain;
    if (*plain != PLAIN_UNKNOWN) return QN_OK;
    TRY(count_plain(d, m, state, plain));
    m->states.items[state].plain = *plain;
    return QN_OK;
}

/* ---- masks -------------------------------------------------------------------------------- */

static void allow(uint32_t *bits, const int32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) bits[(uint32_t)ids[i] / 32] |= 1u << (uint32_t)ids[i] % 32;
}

/* All tokens of a trie that the state goes on with. */
static int walk(struct diag *d, struct matcher *m, const struct vocab_trie *t, bool is_plain,
                uint32_t *bits) {
    const uint8_t *class_of = m->states.code->class_of;
    uint32_t path[VOCAB_TOKEN_MAX + 1];
    path[0] = m->state;
    for (uint32_t i = 0; i < t->n_nodes;) {
        const struct vocab_node *node = &t->nodes[i];
        uint32_t to, end = node->n_own;
        uint8_t plain = PLAIN_MIXED;
        TRY(step(d, m, path[node->depth - 1], class_of[node->byte], &to));
        path[node->depth] = to;
        if (to != STATE_DEAD && is_plain && node->skip > i + 1) TRY(plain_of(d, m, to, &plain));
        i = to == STATE_DEAD || plain == PLAIN_ALL ? node->skip : i + 1;
        if (plain == PLAIN_ALL) end = t->nodes[node->skip].first - node->first;
        if (to != STATE_DEAD) allow(bits, t->ids + node->first, end);
    }
    return QN_OK;
}

static int fill(struct diag *d, struct matcher *m, uint32_t *bits) {
    const struct vocab *v = m->vocab;
    const size_t bytes = v->n_words * sizeof *bits;
    uint8_t plain;
    TRY(plain_of(d, m, m->state, &plain));
    if (plain != PLAIN_MIXED)
        memcpy(bits, v->plain_masks + (size_t)(plain - 1) * v->n_words, bytes);
    else
        memset(bits, 0, bytes);
    if (plain == PLAIN_MIXED) TRY(walk(d, m, &v->plain, true, bits));
    TRY(walk(d, m, &v->other, false, bits));
    if (matcher_accepts(m)) allow(bits, m->ends, m->n_ends);
    for (uint32_t i = 0; i < v->n_words; i++)
        if (bits[i] != 0) return QN_OK;
    return fail(d, QN_EINVAL, "no token of the vocabulary goes on as the grammar wants");
}

int matcher_mask(struct diag *d, struct matcher *m, const uint32_t **mask) {
    TRY(begin(d, m));
    struct state *s = &m->states.items[m->state];
    const uint32_t kept = s->mask;
    if (kept == 0 || m->owners[kept - 1] != m->state) {
        const uint32_t slot = m->next_mask++ % N_MASKS;
        m->owners[slot] = 0;
        TRY(fill(d, m, m->masks + (size_t)slot * m->vocab->n_words));
        m->owners[slot] = m->state;
        s->mask = (uint16_t)(slot + 1);
    }
    *mask = m->masks + (size_t)(s->mask - 1) * m->vocab->n_words;
    return QN_OK;
}

#include "grammar/matcher.h"

#include "base/checked.h"
#include "grammar/states.h"

#include <string.h>

enum {
    N_MASKS = 128,             /* masks that are kept */
    MASK_VISITS_MAX = 1 << 22, /* instructions that one mask may cost */
    MARGIN = 2, /* bytes beyond the longest token: counts are compared before and after */
};

/* state.plain: the most characters that a plain token may have, plus 1. */
enum state_plain { PLAIN_UNKNOWN = 0, PLAIN_ALL = VOCAB_PLAIN_MAX + 1, PLAIN_MIXED = 255 };

/* state.after where plain characters lead to several states. */
#define AFTER_MIXED UINT32_MAX

/* The states and masks that matchers share. */
struct memo {
    const struct vocab *vocab; /* NULL: bytes only */
    const int32_t *ends;
    uint32_t n_ends, n_matchers;
    struct matcher *first;
    struct states states;
    uint32_t *masks[N_MASKS]; /* [n_words] NULL: not used yet */
    uint32_t owners[N_MASKS]; /* normal states */
    uint32_t next_mask;
};

struct matcher {
    struct memo *memo;
    struct matcher *before, *after; /* other matchers of the memo */
    uint32_t state;
};

/* ---- memos -------------------------------------------------------------------------------- */

static int memo_init_states(struct diag *d, const struct memo *memo, const struct code *code,
                            struct states *s) {
    return states_init(d, code, (memo->vocab ? memo->vocab->longest : 0) + MARGIN, s);
}

static void memo_free(struct memo *memo) {
    for (int i = 0; i < N_MASKS; i++) free(memo->masks[i]);
    states_fini(&memo->states);
    free(memo);
}

/* Makes a memo for `code` that has no states yet. It takes the vocabulary and ends of `like`. */
static int memo_new(struct diag *d, const struct memo *like, const struct code *code,
                    struct memo **out) {
    struct memo *memo = calloc(1, sizeof *memo);
    *out = NULL;
    if (!memo) return fail_nomem(d, sizeof *memo, "a matcher");
    *memo = (struct memo){.vocab = like->vocab, .ends = like->ends, .n_ends = like->n_ends};
    int rc = memo_init_states(d, memo, code, &memo->states);
    if (rc == QN_OK)
        *out = memo;
    else
        memo_free(memo);
    return rc;
}

static void join(struct matcher *m, struct memo *memo) {
    m->memo = memo;
    m->before = NULL;
    m->after = memo->first;
    if (memo->first) memo->first->before = m;
    memo->first = m;
    memo->n_matchers++;
}

static void leave(struct matcher *m) {
    struct memo *memo = m->memo;
    *(m->before ? &m->before->after : &memo->first) = m->after;
    if (m->after) m->after->before = m->before;
    if (--memo->n_matchers == 0) memo_free(memo);
}

void matcher_free(struct matcher *m) {
    if (!m) return;
    if (m->memo) leave(m);
    free(m);
}

/* Makes a matcher at the beginning of a text. */
static int begin_at(struct diag *d, struct memo *memo, struct matcher **out) {
    struct matcher *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m) return fail_nomem(d, sizeof *m, "a matcher");
    int rc = states_start(d, &memo->states, &m->state);
    if (rc == QN_OK) join(*out = m, memo);
    if (rc != QN_OK) matcher_free(m);
    return rc;
}

int matcher_new(struct diag *d, const struct code *code, const struct vocab *vocab,
                const int32_t *ends, uint32_t n_ends, struct matcher **out) {
    const struct memo like = {.vocab = vocab, .ends = ends, .n_ends = n_ends};
    struct memo *memo;
    *out = NULL;
    TRY(memo_new(d, &like, code, &memo));
    int rc = begin_at(d, memo, out);
    if (rc != QN_OK) memo_free(memo);
    return rc;
}

int matcher_fork(struct diag *d, struct matcher *m, struct matcher **out) {
    return begin_at(d, m->memo, out);
}

/* ---- forgetting --------------------------------------------------------------------------- */

/* Copies the states of the memo's matchers to `to`, which has none yet, and stores their numbers
 * there in `numbers`. Errors: as states_copy. */
static int copy_states(struct diag *d, const struct memo *memo, struct states *to,
                       uint32_t *numbers) {
    uint32_t n = 0;
    for (const struct matcher *m = memo->first; m; m = m->after) numbers[n++] = m->state;
    return states_copy(d, &memo->states, to, numbers, n);
}

/* Forgets all states of a memo but those of its matchers. *crowded: these alone take much of the
 * memory, and nothing was forgotten. */
static int forget(struct diag *d, struct memo *memo, bool *crowded) {
    struct states fresh;
    uint32_t *numbers = calloc(memo->n_matchers, sizeof *numbers), n = 0;
    if (!numbers) return fail_nomem(d, memo->n_matchers * sizeof *numbers, "a grammar's states");
    int rc = memo_init_states(d, memo, memo->states.code, &fresh);
    if (rc == QN_OK) rc = copy_states(d, memo, &fresh, numbers);
    *crowded = rc == QN_ELIMIT || (rc == QN_OK && states_crowded(&fresh));
    if (rc == QN_OK && !*crowded) {
        for (struct matcher *m = memo->first; m; m = m->after) m->state = numbers[n++];
        const struct states old = memo->states;
        memo->states = fresh;
        fresh = old;
        memset(memo->owners, 0, sizeof memo->owners);
    }
    states_fini(&fresh);
    free(numbers);
    return *crowded ? QN_OK : rc;
}

/* Gives a matcher a memo of its own, so that other matchers' states cannot make it fail. */
static int part(struct diag *d, struct matcher *m) {
    struct memo *own;
    uint32_t state = m->state;
    TRY(memo_new(d, m->memo, m->memo->states.code, &own));
    int rc = states_copy(d, &m->memo->states, &own->states, &state, 1);
    if (rc == QN_OK && states_crowded(&own->states))
        rc = fail(d, QN_ELIMIT, "the text is nested too deep for its grammar");
    if (rc != QN_OK) {
        memo_free(own);
        return rc;
    }
    leave(m);
    join(m, own);
    m->state = state;
    return QN_OK;
}

/* Makes room before a call that makes states. */
static int begin(struct diag *d, struct matcher *m) {
    struct diag unused = {0};
    bool crowded = false;
    m->memo->states.n_visits = 0;
    if (!states_crowded(&m->memo->states)) return QN_OK;
    const int rc = forget(&unused, m->memo, &crowded);
    if (rc != QN_OK) return fail(d, rc, "%s", unused.message);
    return crowded ? part(d, m) : QN_OK;
}

/* ---- steps -------------------------------------------------------------------------------- */

static inline int step(struct diag *d, struct memo *memo, uint32_t from, uint32_t byte_class,
                       uint32_t *to) {
    *to = states_known(&memo->states, from, byte_class);
    if (*to != STATE_UNKNOWN) return QN_OK;
    if (memo->states.n_visits > MASK_VISITS_MAX)
        return fail(d, QN_ELIMIT, "the grammar is too ambiguous: one mask takes more than %d steps",
                    MASK_VISITS_MAX);
    return states_step(d, &memo->states, from, byte_class, to);
}

/* *to: the normal state of the state that the byte leads to. */
static inline int step_normal(struct diag *d, struct memo *memo, uint32_t from, uint32_t byte_class,
                              uint32_t *to) {
    uint32_t exact;
    TRY(step(d, memo, from, byte_class, &exact));
    *to = memo->states.items[exact].normal;
    return *to != STATE_UNKNOWN ? QN_OK : states_normal(d, &memo->states, exact, to);
}

int matcher_bytes(struct diag *d, struct matcher *m, const char *bytes, size_t n) {
    TRY(begin(d, m));
    const struct code *code = m->memo->states.code;
    uint32_t state = m->state;
    for (size_t i = 0; i < n; i++) {
        TRY(step(d, m->memo, state, code->class_of[(uint8_t)bytes[i]], &state));
        if (state == STATE_DEAD)
            return fail(d, QN_EINVAL, "the grammar does not go on with byte 0x%02x",
                        (unsigned)(uint8_t)bytes[i]);
    }
    m->state = state;
    return QN_OK;
}

int matcher_token(struct diag *d, struct matcher *m, int32_t id) {
    const struct vocab *v = m->memo->vocab;
    if (id < 0 || (uint32_t)id >= v->n_tokens || v->at[id] == v->at[id + 1])
        return fail(d, QN_EINVAL, "the grammar does not go on with token %d", id);
    return matcher_bytes(d, m, v->bytes + v->at[id], v->at[id + 1] - v->at[id]);
}

bool matcher_accepts(const struct matcher *m) {
    return m->memo->states.items[m->state].accepts;
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

/* *same stays true if all characters of one form lead from `from` to *to, which the first sets. */
static int form_leads(struct diag *d, struct memo *m, uint32_t from, const struct plain_form *form,
                      uint32_t at, uint32_t *to, bool *same) {
    const struct code *code = m->states.code;
    const uint32_t last = code->class_of[form->bytes[at].high];
    uint32_t before = STATE_UNKNOWN;
    for (uint32_t c = code->class_of[form->bytes[at].low]; c <= last && *same; c++) {
        uint32_t next;
        TRY(step_normal(d, m, from, c, &next));
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

/* *to: the state that all plain characters lead to; AFTER_MIXED: there are several. */
static int after_plain(struct diag *d, struct memo *m, uint32_t state, uint32_t *to) {
    bool same = true;
    *to = m->states.items[state].after;
    if (*to != STATE_UNKNOWN) return QN_OK;
    for (size_t i = 0; i < COUNT_OF(plain_forms) && same; i++)
        TRY(form_leads(d, m, state, &plain_forms[i], 0, to, &same));
    if (!same) *to = AFTER_MIXED;
    m->states.items[state].after = *to;
    return QN_OK;
}

/* How many characters plain tokens may have in a state, if all plain characters lead to the same
 * states. */
static int count_plain(struct diag *d, struct memo *m, uint32_t state, uint8_t *plain) {
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

static int plain_of(struct diag *d, struct memo *m, uint32_t state, uint8_t *plain) {
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

/* Allows all tokens of a trie that may follow a normal state. */
static int walk(struct diag *d, struct memo *m, uint32_t state, const struct vocab_trie *t,
                bool is_plain, uint32_t *bits) {
    const uint8_t *class_of = m->states.code->class_of;
    uint32_t path[VOCAB_TOKEN_MAX + 1];
    path[0] = state;
    for (uint32_t i = 0; i < t->n_nodes;) {
        const struct vocab_node *node = &t->nodes[i];
        uint32_t to, end = node->n_own;
        uint8_t plain = PLAIN_MIXED;
        TRY(step_normal(d, m, path[node->depth - 1], class_of[node->byte], &to));
        path[node->depth] = to;
        if (to != STATE_DEAD && is_plain && node->skip > i + 1) TRY(plain_of(d, m, to, &plain));
        i = to == STATE_DEAD || plain == PLAIN_ALL ? node->skip : i + 1;
        if (plain == PLAIN_ALL) end = t->nodes[node->skip].first - node->first;
        if (to != STATE_DEAD) allow(bits, t->ids + node->first, end);
    }
    return QN_OK;
}

static int fill(struct diag *d, struct memo *m, uint32_t state, uint32_t *bits) {
    const struct vocab *v = m->vocab;
    const size_t bytes = v->n_words * sizeof *bits;
    uint8_t plain;
    TRY(plain_of(d, m, state, &plain));
    if (plain != PLAIN_MIXED)
        memcpy(bits, v->plain_masks + (size_t)(plain - 1) * v->n_words, bytes);
    else
        memset(bits, 0, bytes);
    if (plain == PLAIN_MIXED) TRY(walk(d, m, state, &v->plain, true, bits));
    TRY(walk(d, m, state, &v->other, false, bits));
    if (m->states.items[state].accepts) allow(bits, m->ends, m->n_ends);
    for (uint32_t i = 0; i < v->n_words; i++)
        if (bits[i] != 0) return QN_OK;
    return fail(d, QN_EINVAL, "no token of the vocabulary goes on as the grammar wants");
}

static int fill_slot(struct diag *d, struct memo *m, uint32_t state, uint32_t slot) {
    const size_t bytes = m->vocab->n_words * sizeof **m->masks;
    if (!m->masks[slot]) m->masks[slot] = malloc(bytes);
    return m->masks[slot] ? fill(d, m, state, m->masks[slot]) : fail_nomem(d, bytes, "a mask");
}

int matcher_mask(struct diag *d, struct matcher *matcher, const uint32_t **mask) {
    uint32_t state;
    TRY(begin(d, matcher));
    struct memo *m = matcher->memo;
    TRY(states_normal(d, &m->states, matcher->state, &state));
    struct state *s = &m->states.items[state];
    if (s->mask == 0 || m->owners[s->mask - 1] != state) {
        const uint32_t slot = m->next_mask++ % N_MASKS;
        m->owners[slot] = 0;
        TRY(fill_slot(d, m, state, slot));
        m->owners[slot] = state;
        s->mask = (uint16_t)(slot + 1);
    }
    *mask = m->masks[s->mask - 1];
    return QN_OK;
}

#include "model/tokenizer_bpe.h"
#include "model/tokenizer_text.h"

#include <stdio.h>
#include <string.h>

#define NO_PAIR UINT64_MAX

/* The word's symbols in text order, a doubly linked list by index. */
struct bpe_symbol {
    int32_t id; /* -1: merged into the symbol on its left */
    int32_t prev, next;
};

/* A pair that may be merged: the smallest (rank, position) is next. */
struct bpe_pair {
    uint64_t order; /* rank << 32 | position of the left symbol */
    int32_t id;
};

void tokenizer_bpe_fini(struct bpe *b) {
    map_fini(&b->ids);
    free(b->tokens);
    free(b->merges);
    arena_fini(&b->arena);
    *b = (struct bpe){0};
}

void tokenizer_bpe_scratch_fini(struct bpe_scratch *s) {
    ARRAY_FINI(&s->symbols);
    ARRAY_FINI(&s->heap);
}

int32_t tokenizer_bpe_id(const struct bpe *b, const char *text, size_t n) {
    uint64_t id;
    return map_find(&b->ids, text, n, &id) ? (int32_t)id : -1;
}

static int grow_ids(struct diag *d, struct bpe *b, int32_t want) {
    if (want <= b->n_ids) return QN_OK;
    /* n_ids is the exact number; the allocation doubles, so its size follows from n_ids. */
    size_t have = b->n_ids == 0 ? 0 : (size_t)1 << (32 - __builtin_clz((unsigned)b->n_ids));
    if ((size_t)want >= have) {
        size_t capacity = (size_t)1 << (32 - __builtin_clz((unsigned)want));
        struct bpe_token *moved = realloc(b->tokens, capacity * sizeof *moved);
        if (moved == NULL) return fail_nomem(d, capacity * sizeof *moved, "the vocabulary");
        memset(moved + b->n_ids, 0, (capacity - (size_t)b->n_ids) * sizeof *moved);
        b->tokens = moved;
    }
    b->n_ids = want;
    return QN_OK;
}

int tokenizer_bpe_add(struct diag *d, struct bpe *b, const char *text, size_t n, int64_t id) {
    if (id < 0 || id >= BPE_MAX_IDS)
        return fail(d, QN_ELIMIT, "%s: model.vocab: '%.40s': want an id from 0 to %d, have %lld",
                    b->file, text, BPE_MAX_IDS - 1, (long long)id);
    if (n > UINT32_MAX / 2)
        return fail(d, QN_ELIMIT, "%s: model.vocab: a token of %zu bytes", b->file, n);
    TRY(grow_ids(d, b, (int32_t)id + 1));
    char *copy;
    TRY(arena_copy(d, &b->arena, text, n, &copy));
    uint64_t holds;
    TRY(map_put(d, &b->ids, copy, n, (uint64_t)id, &holds));
    if (holds != (uint64_t)id)
        return fail(d, QN_EFORMAT, "%s: model.vocab: '%.40s' has two ids", b->file, copy);
    if (b->tokens[id].text != NULL)
        b->shared_ids = true;
    else
        b->tokens[id] = (struct bpe_token){copy, (uint32_t)n};
    return QN_OK;
}

int tokenizer_bpe_reserve_merges(struct diag *d, struct bpe *b, size_t n) {
    if (n > UINT32_MAX / 4) return fail(d, QN_ELIMIT, "%s: model.merges: %zu of them", b->file, n);
    b->merge_slots = 16;
    while (b->merge_slots < n * 2) b->merge_slots *= 2;
    b->merges = malloc(b->merge_slots * sizeof *b->merges);
    if (b->merges == NULL) return fail_nomem(d, b->merge_slots * sizeof *b->merges, "the merges");
    for (uint64_t i = 0; i < b->merge_slots; i++) b->merges[i].pair = NO_PAIR;
    return QN_OK;
}

/* The slot of a pair, or the empty slot for it. */
static struct bpe_merge *find_slot(const struct bpe *b, uint64_t pair) {
    uint64_t hash = pair * 0x9E3779B97F4A7C15ull;
    for (uint64_t i = hash ^ hash >> 32;; i++) {
        struct bpe_merge *m = &b->merges[i & (b->merge_slots - 1)];
        if (m->pair == pair || m->pair == NO_PAIR) return m;
    }
}

/* The merge of two tokens, NULL: they have none. */
static const struct bpe_merge *find_merge(const struct bpe *b, int32_t left, int32_t right) {
    const struct bpe_merge *m = find_slot(b, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    return m->pair == NO_PAIR ? NULL : m;
}

int tokenizer_bpe_merge(struct diag *d, struct bpe *b, const char *left, size_t left_n,
                        const char *right, size_t right_n, uint32_t rank) {
    struct strbuf joined = {0};
    strbuf_add(&joined, left, left_n);
    strbuf_add(&joined, right, right_n);
    int32_t l = tokenizer_bpe_id(b, left, left_n), r = tokenizer_bpe_id(b, right, right_n);
    int32_t id = tokenizer_bpe_id(b, strbuf_text(&joined), joined.n);
    int rc = strbuf_status(d, &joined);
    if (rc == QN_OK && (l < 0 || r < 0 || id < 0))
        rc = fail(d, QN_EFORMAT, "%s: model.merges[%u]: '%.40s' is not in the vocabulary", b->file,
                  rank,
                  l < 0   ? left
                  : r < 0 ? right
                          : strbuf_text(&joined));
    strbuf_fini(&joined);
    TRY(rc);
    struct bpe_merge *m = find_slot(b, (uint64_t)(uint32_t)l << 32 | (uint32_t)r);
    if (m->pair == NO_PAIR && ++b->n_merges * 2 > b->merge_slots)
        return fail(d, QN_EINTERNAL, "%s: model.merges: more than were announced", b->file);
    /* Of equal pairs the last one counts. */
    *m = (struct bpe_merge){(uint64_t)(uint32_t)l << 32 | (uint32_t)r, rank, id};
    return QN_OK;
}

/* The id of a token of exactly one character c, for the direct table. */
static void fill_tables(struct bpe *b) {
    for (int32_t c = 0; c < BPE_DIRECT; c++) {
        char text[2] = {(char)c, 0};
        if (c >= 0x80) text[0] = (char)(0xC0 | c >> 6), text[1] = (char)(0x80 | (c & 0x3F));
        b->direct[c] = tokenizer_bpe_id(b, text, c < 0x80 ? 1 : 2);
    }
    for (int c = 0; c < 256; c++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", c);
        b->byte_ids[c] = tokenizer_bpe_id(b, text, 6);
    }
}

/* Whether no merge makes a token with `mark` after another character: then the pieces of a word
 * that is cut before the mark never join, and a text of any length splits into short words. */
static bool may_cut_before(const struct bpe *b, const char *mark) {
    size_t k = strlen(mark);
    for (uint64_t i = 0; i < b->merge_slots; i++) {
        if (b->merges[i].pair == NO_PAIR) continue;
        const struct bpe_token *t = &b->tokens[b->merges[i].id];
        bool after_other = false;
        for (size_t at = 0; at < t->n;) {
            bool is_mark = t->n - at >= k && memcmp(t->text + at, mark, k) == 0;
            if (is_mark && after_other) return false;
            after_other = !is_mark;
            if (is_mark)
                at += k;
            else
                tokenizer_text_next(t->text, &at);
        }
    }
    return true;
}

int tokenizer_bpe_finish(struct diag *d, struct bpe *b) {
    static const char mark[] = "\xE2\x96\x81"; /* U+2581, SentencePiece's space */
    if (b->merges == NULL) TRY(tokenizer_bpe_reserve_merges(d, b, 0));
    fill_tables(b);
    b->unk = b->has_unk ? tokenizer_bpe_id(b, b->unk_token, strlen(b->unk_token)) : -1;
    b->n_vocab = (int32_t)b->ids.n;
    /* The mark must be a token itself: an unknown one could be fused with its neighbours. */
    if (!b->ignore_merges && !b->shared_ids && tokenizer_bpe_id(b, mark, sizeof mark - 1) >= 0 &&
        may_cut_before(b, mark))
        b->cut_before = mark;
    return QN_OK;
}

static int push_symbol(struct diag *d, struct bpe_scratch *s, int32_t id) {
    int32_t at = (int32_t)s->symbols.n;
    return ARRAY_PUSH(d, &s->symbols, (struct bpe_symbol){id, at - 1, at + 1});
}

static bool push_bytes(struct diag *d, const struct bpe *b, struct bpe_scratch *s,
                       const char *bytes, size_t n, int *rc) {
    for (size_t i = 0; i < n; i++)
        if (b->byte_ids[(unsigned char)bytes[i]] < 0) return false;
    for (size_t i = 0; i < n && *rc == QN_OK; i++)
        *rc = push_symbol(d, s, b->byte_ids[(unsigned char)bytes[i]]);
    return true;
}

/* The word's characters as tokens. An unknown character is held back until the next known one, so
 * that a run of them can become one token; byte-fallback tokens overtake it, as they do in the
 * reference. Without an unknown token such characters vanish. */
static int make_symbols(struct diag *d, const struct bpe *b, struct bpe_scratch *s,
                        const char *word, size_t n) {
    bool unknown = false;
    s->symbols.n = 0;
    for (size_t i = 0; i < n;) {
        size_t at = i;
        int32_t c = tokenizer_text_next(word, &i);
        int32_t id = c < BPE_DIRECT ? b->direct[c] : tokenizer_bpe_id(b, word + at, i - at);
        if (id >= 0) {
            if (unknown) TRY(push_symbol(d, s, b->unk));
            unknown = false;
            TRY(push_symbol(d, s, id));
            continue;
        }
        int rc = QN_OK;
        if (b->byte_fallback && push_bytes(d, b, s, word + at, i - at, &rc)) {
            TRY(rc);
            continue;
        }
        if (!b->has_unk) continue;
        if (b->unk < 0)
            return fail(d, QN_EFORMAT, "%s: model.unk_token: '%.40s' is not in the vocabulary",
                        b->file, b->unk_token);
        if (unknown && !b->fuse_unk) TRY(push_symbol(d, s, b->unk));
        unknown = true;
    }
    if (unknown) TRY(push_symbol(d, s, b->unk));
    return QN_OK;
}

static int heap_push(struct diag *d, struct bpe_scratch *s, struct bpe_pair p) {
    TRY(ARRAY_PUSH(d, &s->heap, p));
    struct bpe_pair *h = s->heap.items;
    size_t i = s->heap.n - 1;
    for (; i > 0 && h[(i - 1) / 2].order > p.order; i = (i - 1) / 2) h[i] = h[(i - 1) / 2];
    h[i] = p;
    return QN_OK;
}

static struct bpe_pair heap_pop(struct bpe_scratch *s) {
    struct bpe_pair *h = s->heap.items, top = h[0], last = h[--s->heap.n];
    size_t i = 0, n = s->heap.n;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && h[child + 1].order < h[child].order) child++;
        if (h[child].order >= last.order) break;
        h[i] = h[child];
    }
    if (n > 0) h[i] = last;
    return top;
}

/* Queues the pair whose left symbol is at `at`, if it has a merge. */
static int offer(struct diag *d, const struct bpe *b, struct bpe_scratch *s, int32_t at) {
    const struct bpe_symbol *x = s->symbols.items;
    if (at < 0 || (size_t)x[at].next >= s->symbols.n) return QN_OK;
    const struct bpe_merge *m = find_merge(b, x[at].id, x[x[at].next].id);
    if (m == NULL) return QN_OK;
    return heap_push(d, s, (struct bpe_pair){(uint64_t)m->rank << 32 | (uint32_t)at, m->id});
}

static void join(struct bpe_scratch *s, int32_t at, int32_t id) {
    struct bpe_symbol *x = s->symbols.items;
    int32_t gone = x[at].next;
    x[at].id = id;
    x[at].next = x[gone].next;
    x[gone].id = -1;
    if ((size_t)x[at].next < s->symbols.n) x[x[at].next].prev = at;
}

static int merge_long(struct diag *d, const struct bpe *b, struct bpe_scratch *s) {
    s->heap.n = 0;
    for (size_t i = 0; i + 1 < s->symbols.n; i++) TRY(offer(d, b, s, (int32_t)i));
    while (s->heap.n > 0) {
        struct bpe_pair top = heap_pop(s);
        int32_t at = (int32_t)(uint32_t)top.order;
        const struct bpe_symbol *x = s->symbols.items;
        if (x[at].id < 0 || (size_t)x[at].next >= s->symbols.n) continue;
        /* If its symbols were merged meanwhile, the pair is another one now, or none. */
        const struct bpe_merge *m = find_merge(b, x[at].id, x[x[at].next].id);
        if (m == NULL || m->id != top.id) continue;
        join(s, at, top.id);
        TRY(offer(d, b, s, s->symbols.items[at].prev));
        TRY(offer(d, b, s, at));
    }
    return QN_OK;
}

/* The same for a few symbols: scans a small array of all pairs' ranks for the smallest. */
enum { SHORT_WORD = 24 };

static void merge_short(const struct bpe *b, struct bpe_scratch *s) {
    int32_t id[SHORT_WORD], made[SHORT_WORD];
    uint32_t rank[SHORT_WORD];
    size_t n = s->symbols.n;
    for (size_t i = 0; i < n; i++) id[i] = s->symbols.items[i].id;
    for (size_t i = 0; i + 1 < n; i++) {
        const struct bpe_merge *m = find_merge(b, id[i], id[i + 1]);
        rank[i] = m == NULL ? UINT32_MAX : m->rank;
        made[i] = m == NULL ? -1 : m->id;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (made[best] < 0) break;
        id[best] = made[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            id[i] = id[i + 1];
            rank[i - 1] = rank[i];
            made[i - 1] = made[i];
        }
        for (size_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct bpe_merge *m = find_merge(b, id[i], id[i + 1]);
            rank[i] = m == NULL ? UINT32_MAX : m->rank;
            made[i] = m == NULL ? -1 : m->id;
        }
    }
    for (size_t i = 0; i < n; i++) s->symbols.items[i] = (struct bpe_symbol){id[i], 0, (int)i + 1};
    s->symbols.n = n;
}

static int encode_piece(struct diag *d, const struct bpe *b, struct bpe_scratch *s,
                        const char *word, size_t n, struct token_ids *ids) {
    TRY(make_symbols(d, b, s, word, n));
    if (s->symbols.n <= SHORT_WORD)
        merge_short(b, s);
    else
        TRY(merge_long(d, b, s));
    TRY(ARRAY_RESERVE(d, ids, ids->n + s->symbols.n));
    for (size_t i = 0; i < s->symbols.n; i++)
        if (s->symbols.items[i].id >= 0) ids->items[ids->n++] = s->symbols.items[i].id;
    return QN_OK;
}

/* Where the piece that begins at `start` may end: before the next mark that follows another
 * character. */
static size_t next_cut(const struct bpe *b, const char *word, size_t n, size_t start) {
    size_t k = strlen(b->cut_before), at = start;
    while (n - at >= k && memcmp(word + at, b->cut_before, k) == 0) at += k;
    const char *mark = memmem(word + at, n - at, b->cut_before, k);
    return mark == NULL ? n : (size_t)(mark - word);
}

int tokenizer_bpe_encode(struct diag *d, const struct bpe *b, struct bpe_scratch *s,
                         const char *word, size_t n, struct token_ids *ids) {
    if (b->ignore_merges) {
        int32_t id = tokenizer_bpe_id(b, word, n);
        if (id >= 0) return ARRAY_PUSH(d, ids, id);
    }
    if (b->cut_before == NULL) return encode_piece(d, b, s, word, n, ids);
    for (size_t start = 0, end; start < n; start = end) {
        end = next_cut(b, word, n, start);
        TRY(encode_piece(d, b, s, word + start, end - start, ids));
    }
    return QN_OK;
}

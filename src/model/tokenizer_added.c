#include "model/tokenizer_added.h"
#include "model/tokenizer_text.h"

/* Children of a node are a list: next_sibling, 0 = none (the root is nobody's child). */
struct added_node {
    uint32_t first_child, next_sibling;
    int32_t value; /* -1: no text ends here */
    unsigned char byte;
};

void tokenizer_added_fini(struct added_finder *f) {
    ARRAY_FINI(&f->nodes);
    *f = (struct added_finder){0};
}

static uint32_t find_child(const struct added_finder *f, uint32_t node, unsigned char byte) {
    uint32_t i = f->nodes.items[node].first_child;
    while (i != 0 && f->nodes.items[i].byte != byte) i = f->nodes.items[i].next_sibling;
    return i;
}

int tokenizer_added_insert(struct diag *d, struct added_finder *f, const char *text, size_t n,
                           int32_t value) {
    if (n == 0) return QN_OK;
    if (f->nodes.n + n + 1 > UINT32_MAX / 2)
        return fail(d, QN_ELIMIT, "added_tokens: too much text");
    TRY(ARRAY_RESERVE(d, &f->nodes, f->nodes.n + n + 1));
    if (f->nodes.n == 0) f->nodes.items[f->nodes.n++] = (struct added_node){.value = -1};
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)text[i];
        uint32_t child = find_child(f, node, byte);
        if (child == 0) {
            child = (uint32_t)f->nodes.n++;
            f->nodes.items[child] =
                (struct added_node){0, f->nodes.items[node].first_child, -1, byte};
            f->nodes.items[node].first_child = child;
        }
        node = child;
    }
    f->begins[(unsigned char)text[0]] = true;
    if (f->nodes.items[node].value < 0) f->nodes.items[node].value = value;
    return QN_OK;
}

/* The longest known text at text[start...]: returns its value, -1: none, and sets *end after it. */
static int32_t longest(const struct added_finder *f, const char *text, size_t n, size_t start,
                       size_t *end) {
    int32_t value = -1;
    uint32_t node = 0;
    for (size_t i = start; i < n; i++) {
        node = find_child(f, node, (unsigned char)text[i]);
        if (node == 0) break;
        if (f->nodes.items[node].value < 0) continue;
        value = f->nodes.items[node].value;
        *end = i + 1;
    }
    return value;
}

static bool is_whole_word(const char *text, size_t n, size_t start, size_t end) {
    if (start > 0 && tokenizer_text_is_word(tokenizer_text_last(text, start))) return false;
    return end == n || !tokenizer_text_is_word(tokenizer_text_next(text, &end));
}

static size_t skip_spaces_back(const char *text, size_t end, size_t low) {
    while (end > low && tokenizer_text_is_space(tokenizer_text_last(text, end))) do
            end--;
        while (((unsigned char)text[end] & 0xC0) == 0x80);
    return end;
}

static size_t skip_spaces(const char *text, size_t n, size_t at) {
    for (size_t i = at; i < n; at = i)
        if (!tokenizer_text_is_space(tokenizer_text_next(text, &i))) break;
    return at;
}

int tokenizer_added_find(struct diag *d, const struct added_finder *f,
                         const struct added_token *tokens, const char *text, size_t n,
                         struct added_spans *spans) {
    size_t done = 0;
    spans->n = 0;
    for (size_t i = 0; i < n && f->nodes.n > 0;) {
        size_t start = i, end = i;
        int32_t value = f->begins[(unsigned char)text[i]] ? longest(f, text, n, i, &end) : -1;
        if (value < 0) {
            i++;
            continue;
        }
        const struct added_token *t = &tokens[value];
        i = end;
        if (t->single_word && !is_whole_word(text, n, start, end)) continue;
        /* A span may begin inside the spaces of the token before it: tokens are found in the
         * original text. */
        if (t->lstrip && start > done) start = skip_spaces_back(text, start, done);
        if (t->rstrip) end = skip_spaces(text, n, end);
        if (done < start) TRY(ARRAY_PUSH(d, spans, (struct added_span){done, start, -1}));
        TRY(ARRAY_PUSH(d, spans, (struct added_span){start, end, t->id}));
        done = end;
    }
    if (done < n) TRY(ARRAY_PUSH(d, spans, (struct added_span){done, n, -1}));
    return QN_OK;
}

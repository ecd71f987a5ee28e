/* Any bytes as what a model says, in every form of calls and thoughts (the first byte chooses):
 * whole and cut into pieces it says the same, and where nothing is a call or a thought all of it is
 * text. */
#include "chat/answer.h"

#include "base/checked.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char tools[] =
    "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"type\": "
    "\"string\"}, \"b\": {\"type\": \"integer\"}}}}}, {\"function\": {\"name\": \"g.h\"}}]";
static const char *const forms[] = {NULL,      "hermes",   "llama3_json",
                                    "mistral", "pythonic", "qwen3_xml"};
static const char *const thoughts[] = {NULL, "qwen3", "deepseek_r1", "mistral"};

/* The pieces as one text, each kind behind a byte of its own. */
struct said {
    struct strbuf text;
    enum piece_kind last;
    bool is_plain;
};

static void hold(bool right) {
    if (!right) abort();
}

static void take(const struct answer *a, struct said *s) {
    size_t n;
    const struct piece *pieces = answer_pieces(a, &n);
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].kind != PIECE_TEXT) s->is_plain = false;
        if (pieces[i].kind != s->last || pieces[i].kind == PIECE_CALL)
            strbuf_char(&s->text, (char)pieces[i].kind);
        hold(pieces[i].kind != PIECE_ARGUMENTS || s->last >= PIECE_CALL);
        strbuf_add(&s->text, answer_text(a) + pieces[i].first, pieces[i].n);
        s->last = pieces[i].kind;
    }
}

/* `step`: how many bytes a piece has; 0: all. */
static struct said read_all(const struct answer_params *p, const char *text, size_t n,
                            size_t step) {
    struct said s = {.is_plain = true};
    struct answer *a;
    struct diag d = {0};
    hold(answer_new(&d, p, &a) == QN_OK);
    for (size_t at = 0; step && at + step < n; at += step) {
        hold(answer_read(&d, a, text + at, step, false) == QN_OK);
        take(a, &s);
    }
    const size_t left = step && n ? (n - 1) / step * step : 0;
    hold(answer_read(&d, a, text + left, n - left, true) == QN_OK);
    take(a, &s);
    answer_free(a);
    return s;
}

static void check_same(const struct said *a, struct said b) {
    hold(a->text.n == b.text.n &&
         memcmp(strbuf_text(&a->text), strbuf_text(&b.text), b.text.n) == 0);
    strbuf_fini(&b.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n == 0) return 0;
    const char *form = forms[data[0] % COUNT_OF(forms)];
    const char *thinks = thoughts[data[0] / COUNT_OF(forms) % COUNT_OF(thoughts)];
    const struct answer_params p = {.form = form ? tool_form_find(form) : NULL,
                                    .thinks = thinks ? reasoning_form_find(thinks) : NULL,
                                    .tools = tools,
                                    .max_calls = data[0] >= 128};
    const char *text = (const char *)data + 1;
    struct said whole = read_all(&p, text, n - 1, 0);
    check_same(&whole, read_all(&p, text, n - 1, 1));
    check_same(&whole, read_all(&p, text, n - 1, 3));
    if (whole.is_plain && !thinks && !p.max_calls && n > 1)
        hold(whole.text.n == n && memcmp(whole.text.text + 1, text, n - 1) == 0);
    strbuf_fini(&whole.text);
    return 0;
}

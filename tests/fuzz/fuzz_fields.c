/* Any bytes as the body of each API that has fields: what is refused names a field or the JSON, and
 * what passes has values of the types that the table says. */
#include "server/fields.h"

#include "base/jsonio.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void hold(bool right) {
    if (!right) abort();
}

static void check(const json_t *root, uint32_t api, bool strict) {
    const struct field_limits limits = {.n_vocab = 1000, .max_logprobs = 20, .strict = strict};
    struct problem p = {0};
    struct fields f;
    struct strbuf ignored = {0}, text = {0};
    const int rc = fields_read(&p, root, api, &limits, &f, &ignored);
    hold((rc == QN_OK) == (p.kind == PROBLEM_NONE));
    for (int i = 0; rc == QN_OK && i < N_FIELDS; i++) {
        const json_t *v = f.value[i];
        if (!v) continue;
        hold(field_table[i].apis & api);
        if (field_table[i].kind == FIELD_INT)
            hold((double)fields_int(&f, (enum field)i, 0) <= field_table[i].high);
        if (field_table[i].kind == FIELD_TEXT) hold(fields_text(&f, (enum field)i, NULL) != NULL);
    }
    if (rc != QN_OK) {
        hold(p.message[0] != '\0');
        problem_json(&p, DIALECT_OPENAI, &text);
        problem_json(&p, DIALECT_ANTHROPIC, &text);
    }
    strbuf_fini(&ignored);
    strbuf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    json_t *root = NULL;
    if (jsonio_parse_unique(NULL, "body", (const char *)data, n, &root) != QN_OK) return 0;
    for (uint32_t api = COMPLETIONS; api <= DETOKENIZE; api <<= 1) {
        check(root, api, false);
        check(root, api, true);
    }
    json_decref(root);
    return 0;
}

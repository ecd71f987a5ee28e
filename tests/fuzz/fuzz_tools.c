/* Any bytes as the tools of a request: what is refused says why, and what passes has a grammar in
 * every form, or a reason why not. */
#include "chat/tool_form.h"
#include "grammar/grammar.h"

#include "base/checked.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void hold(bool right) {
    if (!right) abort();
}

static bool is_special(void *user, const char *text) {
    (void)user;
    return text[0] == '[';
}

static void check_form(const struct tool_form *form, const struct toolset *tools, bool named) {
    struct diag d = {0};
    struct code code = {0};
    struct call_grammar g = {.tools = tools,
                             .named = named ? &tools->items[tools->n - 1] : NULL,
                             .parallel = !named,
                             .is_special = is_special};
    int rc = form->grammar(&d, &g);
    if (rc == QN_OK) rc = strbuf_status(&d, &g.text);
    if (rc == QN_OK) rc = grammar_compile(&d, GRAMMAR_EBNF, g.text.text, g.text.n, &code);
    hold((rc != QN_OK) == (d.message[0] != '\0'));
    code_fini(&code);
    strbuf_fini(&g.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const struct tool_form *const forms[] = {&form_hermes,   &form_llama3,
                                                    &form_mistral,  &form_mistral_args,
                                                    &form_pythonic, &form_qwen3_xml};
    struct diag d = {0};
    struct toolset tools;
    char *text = malloc(n + 1);
    if (!text) return 0;
    memcpy(text, data, n);
    text[n] = '\0';
    const int rc = toolset_read(&d, text, &tools);
    hold((rc != QN_OK) == (d.message[0] != '\0'));
    for (size_t i = 0; rc == QN_OK && tools.n > 0 && i < COUNT_OF(forms); i++)
        check_form(forms[i], &tools, n % 2);
    toolset_fini(&tools);
    free(text);
    return 0;
}

/* form_llama3.c - Llama 3, as the whole answer or behind <|python_tag|>:
 *
 *     {"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": ...}
 */
#include "chat/tool_form.h"

enum { IN_JSON, BEHIND };

static enum call_step read(struct call_reader *c, char byte) {
    if (c->state == BEHIND && byte == '{') {
        json_call_clear(&c->json);
        c->state = IN_JSON;
    }
    if (c->state == BEHIND) return byte == ';' || is_space(byte) ? CALL_GOES_ON : CALL_ENDED;
    const enum call_step step = call_json(c, byte);
    if (step != CALL_ENDS) return step;
    c->state = BEHIND;
    c->tool = NULL;
    return CALL_GOES_ON;
}

static int grammar(struct diag *d, struct call_grammar *g) {
    (void)d;
    strbuf_str(&g->text, g->parallel ? "root ::= call (\"; \" call)*\n" : "root ::= call\n");
    grammar_json_calls(g, "parameters");
    return QN_OK;
}

const struct tool_form form_llama3 = {
    .name = "llama3_json",
    .names = (const char *const[]){"llama4_json", NULL},
    .signs = (const char *const[]){"<|python_tag|>", "{\"name\": function name", NULL},
    .marks = (const char *const[]){"<|python_tag|>", NULL},
    .starts = {"<|python_tag|>"},
    .first = '{',
    .read = read,
    .grammar = grammar,
};

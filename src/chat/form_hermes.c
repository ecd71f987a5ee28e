/* form_hermes.c - Hermes and Qwen:
 *
 *     <tool_call>
 *     {"name": "get_weather", "arguments": {"city": "Oslo"}}
 *     </tool_call>
 */
#include "chat/tool_form.h"

enum { IN_JSON, BEHIND };

static enum call_step read(struct call_reader *c, char byte) {
    if (c->state == IN_JSON) {
        const enum call_step step = call_json(c, byte);
        if (step == CALL_GOES_ON || step == CALL_IS_NOT) return step;
        c->state = BEHIND;
        c->tool = NULL;
        if (step == CALL_ENDS) return CALL_GOES_ON;
    }
    if (c->matched == 0 && is_space(byte)) return CALL_GOES_ON;
    const enum call_step step = call_expect(c, "</tool_call>", byte);
    return step == CALL_IS_NOT ? CALL_ENDED : step;
}

static int grammar(struct diag *d, struct call_grammar *g) {
    (void)d;
    strbuf_str(&g->text, g->parallel ? "root ::= block (\"\\n\" block)*\n" : "root ::= block\n");
    strbuf_str(&g->text, "block ::= ");
    grammar_mark(g, "<tool_call>");
    strbuf_str(&g->text, "\"\\n\" call \"\\n\" ");
    grammar_mark(g, "</tool_call>");
    grammar_json_calls(g, "arguments");
    return QN_OK;
}

const struct tool_form form_hermes = {
    .name = "hermes",
    .names = (const char *const[]){"qwen", "qwen2_5", NULL},
    .signs = (const char *const[]){"<tool_call>", NULL},
    .needs = "\"arguments\"", /* other models write something else between these marks */
    .marks = (const char *const[]){"<tool_call>", "</tool_call>", NULL},
    .starts = {"<tool_call>"},
    .read = read,
    .grammar = grammar,
};

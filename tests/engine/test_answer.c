/* Grammars of calls: texts that are walked by chance under the grammar of each form are calls when
 * they are taken apart again, and nothing but calls, with arguments of the schema's kind. */
#include "engine/api.h" /* first: error codes */

#include "base/checked.h"
#include "base/strbuf.h"
#include "grammar/grammar.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_WALKS = 150, WALK_MAX = 4000 };

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"unit\": {\"type\": "
    "\"string\", \"enum\": [\"C\", \"F \\\"x\\\"\"]}, \"days\": {\"type\": \"integer\", "
    "\"minimum\": 1, \"maximum\": 12}, \"sure\": {\"type\": \"boolean\"}, \"list\": {\"type\": "
    "\"array\", \"items\": {\"$ref\": \"#/$defs/x\"}, \"maxItems\": 3}, \"short\": {\"type\": "
    "\"string\", \"maxLength\": 3}}, \"required\": [\"city\", \"days\"], \"$defs\": {\"x\": "
    "{\"type\": \"number\"}}}}}, {\"type\": \"function\", \"function\": {\"name\": \"now\"}}, "
    "{\"type\": \"function\", \"function\": {\"name\": \"put\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"a\": {\"type\": [\"string\", \"null\"]}, \"b\": {\"type\": "
    "\"object\", \"properties\": {\"c\": {\"type\": \"null\"}}, \"required\": [\"c\"], "
    "\"additionalProperties\": false}}}}}]";

static const char *const forms[] = {"hermes", "llama3_json", "mistral", "pythonic", "qwen3_xml"};

/* ---- walks ---------------------------------------------------------------------------------- */

static uint32_t chance(uint32_t *seed) {
    *seed = *seed * 1664525 + 1013904223;
    return *seed >> 16;
}

/* A text of the grammar, with what ends a value more often than chance has it; whether it has
 * ended. */
static bool walk(const struct code *code, uint32_t seed, struct strbuf *out) {
    static char bytes[256];
    static uint32_t at[258];
    static struct vocab vocab;
    static const int32_t end = 256;
    struct diag d = {0};
    struct matcher *m;
    static const char close[] = "\n</parameter>";
    size_t closing = 0; /* bytes of it that came last */
    bool ended = false;
    if (vocab.n_tokens == 0) {
        for (uint32_t i = 0; i < 256; i++) bytes[i] = (char)i, at[i + 1] = i + 1;
        at[257] = 256;
        assert_int_equal(vocab_make(&d, bytes, at, 257, &vocab), QN_OK);
    }
    assert_int_equal(matcher_new(&d, code, &vocab, &end, 1, &m), QN_OK);
    while (!ended && out->n < WALK_MAX) {
        const uint32_t *mask;
        if (matcher_mask(&d, m, &mask) != QN_OK) fail_msg("%s: %s", out->text, d.message);
        uint32_t id = chance(&seed) % 257;
        if (chance(&seed) % 8 == 0) id = "\"}],\n<)"[chance(&seed) % 7];
        if (closing > 0 && close[closing]) id = (uint32_t)close[closing];
        while (!(mask[id / 32] >> id % 32 & 1)) id = (id + 1) % 257;
        closing = id == (uint32_t)close[closing] ? closing + 1 : id == '\n';
        ended = id == 256;
        if (ended) break;
        strbuf_char(out, (char)id);
        assert_int_equal(matcher_token(&d, m, (int32_t)id), QN_OK);
    }
    matcher_free(m);
    return ended;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static void check_arguments(const char *name, const char *text, size_t n, const char *whole) {
    json_error_t e;
    json_t *v = json_loadb(text, n, JSON_ALLOW_NUL, &e);
    if (!v || !json_is_object(v)) fail_msg("%s: %.*s: %s", whole, (int)n, text, e.text);
    if (strcmp(name, "weather") == 0) {
        const json_t *unit = json_object_get(v, "unit"), *days = json_object_get(v, "days");
        const json_int_t count = json_integer_value(days);
        if (!json_is_string(json_object_get(v, "city")) || count < 1 || count > 12 ||
            (unit && strcmp(json_string_value(unit), "C") != 0 &&
             strcmp(json_string_value(unit), "F \"x\"") != 0))
            fail_msg("%s: %.*s", whole, (int)n, text);
    }
    if (strcmp(name, "now") == 0) assert_int_equal(json_object_size(v), 0);
    json_decref(v);
}

/* How many calls the text has; it has nothing else. */
static size_t check_calls(const qn_answer_params *p, const struct strbuf *text) {
    struct strbuf arguments = {0};
    char name[64] = "";
    const qn_piece *pieces;
    size_t n, n_calls = 0;
    qn_answer *a;
    qn_error error;
    assert_int_equal(qn_answer_open(p, &a, &error), QN_OK);
    assert_int_equal(qn_answer_read(a, text->text, text->n, 1, &pieces, &n, &error), QN_OK);
    for (size_t i = 0; i <= n; i++) {
        if (n_calls > 0 && (i == n || pieces[i].kind == QN_PIECE_CALL))
            check_arguments(name, strbuf_text(&arguments), arguments.n, text->text);
        if (i == n) break;
        if (pieces[i].kind == QN_PIECE_CALL) {
            snprintf(name, sizeof name, "%.*s", (int)pieces[i].n_text, pieces[i].text);
            strbuf_clear(&arguments);
            n_calls++;
        } else if (pieces[i].kind == QN_PIECE_ARGUMENTS) {
            strbuf_add(&arguments, pieces[i].text, pieces[i].n_text);
        } else {
            fail_msg("%s %s: not a call: '%.*s'", p->tool_parser, text->text, (int)pieces[i].n_text,
                     pieces[i].text);
        }
    }
    strbuf_fini(&arguments);
    qn_answer_close(a);
    return n_calls;
}

static void check_form(const qn_answer_params *p, const char *name, int parallel) {
    char *grammar;
    qn_error error;
    struct diag d = {0};
    struct code code;
    size_t n_ended = 0, most = 0;
    if (qn_answer_grammar(p, NULL, name, parallel, &grammar, &error) != QN_OK)
        fail_msg("%s: %s", p->tool_parser, error.message);
    if (grammar_compile(&d, GRAMMAR_EBNF, grammar, strlen(grammar), &code) != QN_OK)
        fail_msg("%s: %s\n%s", p->tool_parser, d.message, grammar);
    for (uint32_t i = 0; i < N_WALKS; i++) {
        struct strbuf text = {0};
        if (walk(&code, i * 7919, &text)) {
            const size_t n = check_calls(p, &text);
            assert_true(n >= 1);
            if (name) assert_non_null(strstr(text.text, name));
            most = MAX(most, n);
            n_ended++;
        }
        strbuf_fini(&text);
    }
    assert_true(n_ended > N_WALKS / 2);
    assert_true(parallel ? most > 1 : most == 1);
    code_fini(&code);
    qn_free(grammar);
}

static void test_grammars(void **state) {
    qn_answer_params p;
    (void)state;
    qn_answer_params_init(&p);
    p.tools_json = tools;
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        p.tool_parser = forms[i];
        check_form(&p, NULL, 1);
        check_form(&p, NULL, 0);
        check_form(&p, "weather", 0);
    }
}

/* Arguments that are described by references and alternatives. */
static void test_references(void **state) {
    qn_answer_params p;
    (void)state;
    qn_answer_params_init(&p);
    p.tool_parser = "hermes";
    p.tools_json =
        "[{\"function\": {\"name\": \"a\", \"parameters\": {\"$ref\": \"#/$defs/x\", \"$defs\": "
        "{\"x\": "
        "{\"type\": \"object\", \"properties\": {\"b\": {\"type\": \"boolean\"}}, "
        "\"additionalProperties\": false}}}}}, {\"function\": {\"name\": \"b\", \"parameters\": "
        "{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"c\": {\"type\": \"null\"}}, "
        "\"required\": [\"c\"], \"additionalProperties\": false}, {\"type\": \"object\", "
        "\"properties\": {\"d\": {\"enum\": [1]}}, \"additionalProperties\": false}]}}}]";
    check_form(&p, NULL, 1);
    check_form(&p, "b", 0);
}

static void test_args_form(void **state) {
    qn_chat_template *t;
    qn_answer_params p;
    qn_error error;
    qn_answer_info info = {.struct_size = sizeof info};
    (void)state;
    assert_int_equal(
        qn_chat_template_open(NULL, "tests/golden/chat/mistral-args.jinja", &t, &error), QN_OK);
    qn_answer_params_init(&p);
    p.chat_template = t;
    p.tools_json = tools;
    assert_int_equal(qn_answer_get_info(&p, NULL, &info, &error), QN_OK);
    assert_string_equal(info.tool_parser, "mistral");
    assert_int_equal(info.id_length, 9);
    check_form(&p, NULL, 1);
    check_form(&p, "put", 0);
    qn_chat_template_close(t);
}

/* The forms of templates in the shape of those that models come with. */
static void test_templates(void **state) {
    static const struct {
        const char *file, *tools, *thinks;
    } rows[] = {
        {"hermes-tools", "hermes", NULL},   {"qwen3-tools", "hermes", "qwen3"},
        {"qwen3", NULL, "qwen3"},           {"llama3-tools", "llama3_json", NULL},
        {"mistral-tools", "mistral", NULL}, {"mistral-args", "mistral", "mistral"},
        {"mistral-tekken", NULL, NULL},     {"gptoss", NULL, NULL},
        {"deepseek", NULL, "qwen3"},        {"gemma", NULL, NULL},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char path[96];
        qn_chat_template *t;
        qn_answer_params p;
        qn_error error;
        qn_answer_info info = {.struct_size = sizeof info};
        snprintf(path, sizeof path, "tests/golden/chat/%s.jinja", rows[i].file);
        assert_int_equal(qn_chat_template_open(NULL, path, &t, &error), QN_OK);
        qn_answer_params_init(&p);
        p.chat_template = t;
        assert_int_equal(qn_answer_get_info(&p, NULL, &info, &error), QN_OK);
        if (strcmp(info.tool_parser ? info.tool_parser : "-",
                   rows[i].tools ? rows[i].tools : "-") ||
            strcmp(info.reasoning_parser ? info.reasoning_parser : "-",
                   rows[i].thinks ? rows[i].thinks : "-"))
            fail_msg("%s: %s, %s", rows[i].file, info.tool_parser, info.reasoning_parser);
        qn_chat_template_close(t);
    }
}

static void test_refused(void **state) {
    qn_answer_params p;
    qn_error error;
    char *grammar;
    (void)state;
    qn_answer_params_init(&p);
    p.tools_json = tools;
    p.tool_parser = "nothing";
    assert_int_equal(qn_answer_grammar(&p, NULL, NULL, 1, &grammar, &error), QN_EINVAL);
    assert_non_null(strstr(error.message, "want none, hermes"));
    p.tool_parser = "none";
    assert_int_equal(qn_answer_grammar(&p, NULL, NULL, 1, &grammar, &error), QN_EINVAL);
    p.tool_parser = "hermes";
    assert_int_equal(qn_answer_grammar(&p, NULL, "absent", 1, &grammar, &error), QN_EINVAL);
    p.tools_json = "[]";
    assert_int_equal(qn_answer_grammar(&p, NULL, NULL, 1, &grammar, &error), QN_EINVAL);
    p.tools_json = "[{\"function\": {\"name\": \"a\", \"parameters\": {\"anyOf\": []}}}]";
    p.tool_parser = "pythonic";
    assert_int_equal(qn_answer_grammar(&p, NULL, NULL, 1, &grammar, &error), QN_EUNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grammars),  cmocka_unit_test(test_references),
        cmocka_unit_test(test_args_form), cmocka_unit_test(test_templates),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

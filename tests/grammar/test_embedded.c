/* Grammars that hold JSON Schemas and special tokens: what they accept, and what is refused with
 * which words. */
#include "base/checked.h"
#include "grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int compile(struct diag *d, const char *grammar, struct code *code) {
    return grammar_compile(d, GRAMMAR_EBNF, grammar, strlen(grammar), code);
}

static bool accepts(const char *grammar, const char *text) {
    struct diag d = {0};
    struct code code;
    struct matcher *m;
    if (compile(&d, grammar, &code) != QN_OK) fail_msg("%s: %s", grammar, d.message);
    assert_int_equal(matcher_new(&d, &code, NULL, NULL, 0, &m), QN_OK);
    const bool yes = matcher_bytes(&d, m, text, strlen(text)) == QN_OK && matcher_accepts(m);
    matcher_free(m);
    code_fini(&code);
    return yes;
}

static void test_accepts(void **state) {
    static const struct {
        const char *grammar, *text;
        bool accepted;
    } cases[] = {
        {"root ::= \"<\" %json {\"type\": \"boolean\"} \">\"", "<true>", true},
        {"root ::= \"<\" %json {\"type\": \"boolean\"} \">\"", "<1>", false},
        {"root ::= %json {\"const\": \"}\\\"{\"}", "\"}\\\"{\"", true},
        {"root ::= (%json{\"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": {\"type\": \"integer\"}}} "
         "\";\")*",
         "1;22;", true},
        {"root ::= a | b\na ::= %json {\"enum\": [\"x\"]}\nb ::= %json {\"enum\": [2]}", "2", true},
        {"root ::= %token \"[A]\" \"b\"", VOCAB_SPECIAL "[A]b", true},
        {"root ::= %token \"[A]\" \"b\"", "[A]b", false},
        {"root ::= .*", VOCAB_SPECIAL "a", false},
        {"root ::= %json {\"type\": \"string\"}", "\"" VOCAB_SPECIAL "a\"", false},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (accepts(cases[i].grammar, cases[i].text) != cases[i].accepted)
            fail_msg("%s: %s", cases[i].grammar, cases[i].text);
}

static void test_refused(void **state) {
    static const struct {
        const char *grammar, *message;
    } cases[] = {
        {"root ::= %json", "grammar: line 1, column 15: want a schema: an object in JSON"},
        {"root ::= %json [1]", "want a schema"},
        {"root ::= %json {\"a\": 1", "want a schema"},
        {"root ::= %json {\"multipleOf\": 3}",
         "schema: #/multipleOf: this keyword is not known here"},
        {"root ::= %json {\"$ref\": \"#/$defs/a\"} %json {\"$defs\": {\"a\": {}}}",
         "schema: #/$ref"},
        {"root ::= %token [a]", "want the token's text in quotes"},
        {"root ::= %other", "want the name of a rule"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct diag d = {0};
        struct code code;
        assert_int_not_equal(compile(&d, cases[i].grammar, &code), QN_OK);
        if (!strstr(d.message, cases[i].message)) fail_msg("%s: %s", cases[i].grammar, d.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

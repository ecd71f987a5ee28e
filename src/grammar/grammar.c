#include "grammar/grammar.h"

#include "base/checked.h"
#include "base/jsonio.h"
#include "grammar/ebnf.h"
#include "grammar/regex.h"
#include "grammar/schema.h"

static int regex_rule(struct exprs *x, const char *text, size_t n) {
    static const struct regex_form form = {.name = "regex"};
    const uint32_t root = expr_rule_new(x, "regex");
    uint32_t e;
    regex_read(x, text, n, &form, &e);
    expr_rule_define(x, root, e);
    return x->rc;
}

static void choice_list(struct exprs *x, const json_t *list) {
    const size_t n = json_array_size(list);
    const uint32_t root = expr_rule_new(x, "choice");
    if (!json_is_array(list) || n == 0 || n > GRAMMAR_MAX_CHOICES)
        exprs_fail(x, n > GRAMMAR_MAX_CHOICES ? QN_ELIMIT : QN_EINVAL,
                   "choice: want an array of 1 to %d strings", GRAMMAR_MAX_CHOICES);
    uint32_t *each = calloc(n + 1, sizeof *each);
    if (!each) {
        exprs_fail(x, QN_ENOMEM, "choice");
        return;
    }
    for (size_t i = 0; i < n && x->rc == QN_OK; i++) {
        const json_t *one = json_array_get(list, i);
        if (json_string_length(one) == 0)
            exprs_fail(x, QN_EINVAL, "choice: %zu is no string, or empty", i + 1);
        else
            each[i] = expr_bytes(x, json_string_value(one), json_string_length(one));
    }
    if (x->rc == QN_OK) expr_rule_define(x, root, expr_list(x, EXPR_ALT, each, n));
    free(each);
}

static int choice_rule(struct exprs *x, const char *text, size_t n) {
    json_t *list = NULL;
    if (n > SCHEMA_MAX)
        return exprs_fail(x, QN_ELIMIT, "choice: at most %d bytes, have %zu", SCHEMA_MAX, n);
    x->rc = jsonio_parse(x->d, "choice", text, n, &list);
    if (x->rc == QN_OK) choice_list(x, list);
    json_decref(list);
    return x->rc;
}

/* The functions that make the rules, by enum grammar_kind. */
static int (*const readers[N_GRAMMAR_KINDS])(struct exprs *x, const char *text, size_t n) = {
    [GRAMMAR_JSON_SCHEMA] = schema_read,
    [GRAMMAR_REGEX] = regex_rule,
    [GRAMMAR_EBNF] = ebnf_read,
    [GRAMMAR_CHOICE] = choice_rule,
};

int grammar_compile(struct diag *d, enum grammar_kind kind, const char *text, size_t n,
                    struct code *code) {
    struct exprs x = {.d = d};
    *code = (struct code){0};
    if (readers[kind](&x, text, n) == QN_OK && exprs_check(&x) == QN_OK) code_make(&x, code);
    exprs_fini(&x);
    return x.rc;
}

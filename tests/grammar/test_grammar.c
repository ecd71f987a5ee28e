/* Grammars from texts: which texts they accept, what is refused and with which words, bounds. */
#include "base/checked.h"
#include "grammar/grammar.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define SCHEMA GRAMMAR_JSON_SCHEMA
#define REGEX  GRAMMAR_REGEX
#define EBNF   GRAMMAR_EBNF

/* Whether a grammar accepts the whole text. */
static bool accepts(enum grammar_kind kind, const char *grammar, const char *text) {
    struct diag d = {0};
    struct code code;
    struct matcher *m;
    int rc = grammar_compile(&d, kind, grammar, strlen(grammar), &code);
    if (rc != QN_OK) fail_msg("%s: %s", grammar, d.message);
    assert_int_equal(matcher_new(&d, &code, NULL, NULL, 0, &m), QN_OK);
    rc = matcher_bytes(&d, m, text, strlen(text));
    const bool yes = rc == QN_OK && matcher_accepts(m);
    matcher_free(m);
    code_fini(&code);
    return yes;
}

static const struct text_case {
    enum grammar_kind kind;
    const char *grammar, *text;
    bool accepted;
} text_cases[] = {
    {REGEX, "a|bc", "bc", true},
    {REGEX, "^a|bc$", "a", true},
    {REGEX, "a|bc", "abc", false},
    {REGEX, "[a-c]{2,3}?", "abc", true},
    {REGEX, "[a-c]{2,3}", "a", false},
    {REGEX, "(?:x(?P<n>y)?)*", "xxyx", true},
    {REGEX, "[^\\d\\s]+", "ab-", true},
    {REGEX, "[^\\d\\s]+", "a1", false},
    {REGEX, "\\u00e9.", "\u00e9\U0001f600", true},
    {REGEX, ".", "\n", false},
    {REGEX, "[\\]\\-]\\.", "-.", true},
    {REGEX, "(a*)*b", "aaab", true},
    {REGEX, "", "", true},
    {EBNF, "root ::= \"a\" tail* # c\ntail ::= [0-9] | \"-\" root", "a1-a2", true},
    {EBNF, "root ::= (\"x\" | \"y\"){2}\n", "xy", true},
    {EBNF, "root ::= (\"x\" | \"y\"){2}\n", "x", false},
    {EBNF, "root ::= [^\\n\\]]+ \"\\x41\"", "bA", true},
    {EBNF, "root ::= \"(\" root \")\" | \"\"", "((()))", true},
    {EBNF, "root ::= \"(\" root \")\" | \"\"", "((())", false},
    {GRAMMAR_CHOICE, "[\"yes\", \"no\"]", "no", true},
    {GRAMMAR_CHOICE, "[\"yes\", \"no\"]", "n", false},
    {SCHEMA, "{}", "{\"a\": [1, -2.5e3, null, true, \"\\u00e9\\n\"]}", true},
    {SCHEMA, "true", "[]", true},
    {SCHEMA, "{}", "[01]", false},
    {SCHEMA, "{}", "\"\\ud83d\\ude00\"", true},
    {SCHEMA, "{}", "\"\\ud83d\"", false},
    {SCHEMA, "{}", "\"a\nb\"", false},
    {SCHEMA, "{\"type\":\"array\"}", "[\n    1,\n    2\n]", true},
    {SCHEMA, "{\"type\":\"array\"}", "[1,  2]", false},
    {SCHEMA, "{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}", "\"\u00e9\\n\"", true},
    {SCHEMA, "{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}", "\"\"", false},
    {SCHEMA, "{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}", "\"abc\"", false},
    {SCHEMA, "{\"type\":\"string\",\"pattern\":\"^\\\"x.$\"}", "\"\\\"x\\\"\"", true},
    {SCHEMA, "{\"type\":\"string\",\"pattern\":\"b\"}", "\"abc\"", true},
    {SCHEMA, "{\"type\":\"string\",\"pattern\":\"^a|b$\"}", "\"ac\"", true},
    {SCHEMA, "{\"type\":\"string\",\"pattern\":\"^a|b$\"}", "\"cac\"", false},
    {SCHEMA, "{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-28\"", true},
    {SCHEMA, "{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-31\"", false},
    {SCHEMA, "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":345}", "-12", true},
    {SCHEMA, "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":345}", "-13", false},
    {SCHEMA, "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":345}", "346", false},
    {SCHEMA, "{\"type\":\"integer\",\"exclusiveMinimum\":9}", "10", true},
    {SCHEMA, "{\"type\":\"integer\",\"exclusiveMinimum\":9}", "9", false},
    {SCHEMA, "{\"type\":\"number\",\"minimum\":0,\"exclusiveMaximum\":1}", "0.99", true},
    {SCHEMA, "{\"type\":\"number\",\"minimum\":0,\"exclusiveMaximum\":1}", "1.0", false},
    {SCHEMA, "{\"type\":\"number\",\"maximum\":-1}", "-1.5", true},
    {SCHEMA, "{\"type\":\"number\",\"maximum\":-1}", "-0.5", false},
    {SCHEMA, "{\"enum\":[1,\"a\",null],\"type\":[\"string\",\"null\"]}", "\"a\"", true},
    {SCHEMA, "{\"enum\":[1,\"a\",null],\"type\":[\"string\",\"null\"]}", "1", false},
    {SCHEMA, "{\"const\":{\"k\":[1]}}", "{ \"k\": [1]}", true},
    {SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"b\"]}",
     "{\"b\":1,\"c\":2}", true},
    {SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"b\"]}",
     "{\"a\":1}", false},
    {SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"b\"]}",
     "{\"b\":1,\"a\":2}", false},
    {SCHEMA, "{\"type\":\"object\",\"properties\":{\"ab\":false},\"additionalProperties\":{}}",
     "{\"a\":1,\"abc\":1,\"b\":1}", true},
    {SCHEMA, "{\"type\":\"object\",\"properties\":{\"ab\":false},\"additionalProperties\":{}}",
     "{\"ab\":1}", false},
    {SCHEMA, "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":false}", "[null]",
     true},
    {SCHEMA, "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":false}",
     "[null,1]", false},
    {SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":2,\"maxItems\":3}",
     "[null,null]", true},
    {SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":2,\"maxItems\":3}",
     "[null]", false},
    {SCHEMA,
     "{\"$defs\":{\"n\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},\"$ref\":"
     "\"#/$defs/n\"}",
     "[[],[[]]]", true},
    {SCHEMA,
     "{\"allOf\":[{\"type\":\"number\",\"minimum\":3},{\"type\":\"integer\",\"maximum\":5}]}", "4",
     true},
    {SCHEMA,
     "{\"allOf\":[{\"type\":\"number\",\"minimum\":3},{\"type\":\"integer\",\"maximum\":5}]}",
     "4.5", false},
    {SCHEMA, "{\"anyOf\":[{\"minimum\":3},{\"maximum\":-3}],\"type\":\"integer\"}", "-4", true},
    {SCHEMA, "{\"anyOf\":[{\"minimum\":3},{\"maximum\":-3}],\"type\":\"integer\"}", "1", false},
};

static void test_texts(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(text_cases); i++) {
        const struct text_case *c = &text_cases[i];
        if (accepts(c->kind, c->grammar, c->text) != c->accepted)
            fail_msg("%s: '%s' should%s be accepted", c->grammar, c->text,
                     c->accepted ? "" : " not");
    }
}

static const struct refusal {
    enum grammar_kind kind;
    int code;
    const char *grammar, *message; /* a part of it */
} refusals[] = {
    {REGEX, QN_EINVAL, "a(", "byte 2: want ')'"},
    {REGEX, QN_EUNSUPPORTED, "(?=a)", "looking ahead"},
    {REGEX, QN_EUNSUPPORTED, "\\1", "this escape is not known"},
    {REGEX, QN_EUNSUPPORTED, "a^b", "at the two ends only"},
    {REGEX, QN_ELIMIT, "a{70000}", "65535"},
    {REGEX, QN_EINVAL, "[b-a]", "comes before its beginning"},
    {EBNF, QN_EINVAL, "root ::= a", "a: is not defined"},
    {EBNF, QN_EINVAL, "root ::= root \"a\" | \"b\"", "root: begins with itself"},
    {EBNF, QN_EINVAL, "root ::= x\nx ::= \"\" y\ny ::= x \"a\" | \"b\"", "begins with itself"},
    {EBNF, QN_EINVAL, "root ::= \"a\" root", "none that ends"},
    {EBNF, QN_EINVAL, "a ::= \"a\"", "no rule is called root"},
    {EBNF, QN_EINVAL, "root ::= \"a\"\nroot ::= \"b\"", "line 2"},
    {EBNF, QN_EINVAL, "root ::= 'a'", "line 1, column 10"},
    {GRAMMAR_CHOICE, QN_EINVAL, "[]", "1 to 4096 strings"},
    {GRAMMAR_CHOICE, QN_EINVAL, "[\"a\", 3]", "2 is no string"},
    {SCHEMA, QN_EFORMAT, "{", "schema"},
    {SCHEMA, QN_EUNSUPPORTED, "{\"properties\":{\"a\":{\"multipleOf\":2}}}",
     "#/properties/a/multipleOf: this keyword is not known"},
    {SCHEMA, QN_EUNSUPPORTED, "{\"items\":{\"not\":{}}}", "#/items/not: this keyword"},
    {SCHEMA, QN_EINVAL, "{\"type\":\"text\"}", "#/type: want object, array"},
    {SCHEMA, QN_EINVAL, "{\"$ref\":\"#/$defs/x\"}", "#/$ref: nothing is at '#/$defs/x'"},
    {SCHEMA, QN_EUNSUPPORTED, "{\"$ref\":\"http://a/b\"}", "#/$ref: want a place in this schema"},
    {SCHEMA, QN_EINVAL, "{\"$ref\":\"#\"}", "begins with itself"},
    {SCHEMA, QN_EINVAL,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     "none that ends"},
    {SCHEMA, QN_EUNSUPPORTED, "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
     "#/oneOf: a value may be of branch 0 and 1"},
    {SCHEMA, QN_EUNSUPPORTED, "{\"type\":\"string\",\"format\":\"color\"}", "#/format: want date"},
    {SCHEMA, QN_EUNSUPPORTED, "{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":3}",
     "#/pattern: of pattern, format"},
    {SCHEMA, QN_EUNSUPPORTED, "{\"type\":\"string\",\"pattern\":\"(?!a)\"}", "#/pattern: byte"},
    {SCHEMA, QN_EINVAL, "{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}",
     "#/minItems: 3 is more"},
    {SCHEMA, QN_EINVAL, "{\"properties\":{\"a\":false},\"required\":[\"a\"]}",
     "#/properties/a: no value is valid"},
    {SCHEMA, QN_EUNSUPPORTED, "{\"enum\":[1],\"minimum\":0}", "beside enum or const"},
};

static void test_refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(refusals); i++) {
        const struct refusal *r = &refusals[i];
        struct diag d = {0};
        struct code code;
        const int rc = grammar_compile(&d, r->kind, r->grammar, strlen(r->grammar), &code);
        if (rc != r->code || !strstr(d.message, r->message))
            fail_msg("%s: want %d '%s', have %d '%s'", r->grammar, r->code, r->message, rc,
                     d.message);
        code_fini(&code);
    }
}

/* ---- bombs -------------------------------------------------------------------------------- */

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* head, n times middle, tail. */
static char *repeated(const char *head, const char *middle, size_t n, const char *tail) {
    const size_t n_head = strlen(head), n_middle = strlen(middle);
    char *text = malloc(n_head + n * n_middle + strlen(tail) + 1);
    memcpy(text, head, n_head);
    for (size_t i = 0; i < n; i++) memcpy(text + n_head + i * n_middle, middle, n_middle);
    strcpy(text + n_head + n * n_middle, tail);
    return text;
}

static const struct bomb {
    enum grammar_kind kind;
    const char *head, *middle;
    size_t n;
    const char *tail, *message; /* NULL: it compiles */
} bombs[] = {
    {SCHEMA, "", "{\"items\":", 100000, "true", "at most 65536 bytes"},
    {SCHEMA, "", "{\"items\":", 7000, "true", "values inside each other"},
    {SCHEMA, "", "[", 60000, "", "values inside each other"},
    {SCHEMA, "{\"anyOf\":[true", ",true", 10000, "]}", "at most 4096 values"},
    {SCHEMA, "{\"enum\":[0", ",0", 4000, "]}", NULL},
    {SCHEMA, "{\"type\":\"string\",\"maxLength\":6", "5", 9, "}", "#/maxLength: want at most"},
    {SCHEMA, "{\"prefixItems\":[true", ",{\"maxLength\":65000}", 300, "]}", NULL},
    {REGEX, "", "(", 1000, "", "groups more than 32 deep"},
    {REGEX, "", "a{1,9999}", 100, "", NULL},
    {REGEX, "((((a{1,99}){1,99}){1,99}){1,99})", "", 0, "", NULL},
    {REGEX, "", "a", 2000, "", "at most 1024 bytes"},
    {EBNF, "root ::= ", "(", 10000, "", "groups more than 32 deep"},
    {EBNF, "root ::= ", "\"a\"{0,60000} ", 1000, "", NULL},
    {EBNF, "root ::= ", "[^ace] ", 9000, "", "instructions"},
    {EBNF, "root ::= \"", "a", 70000, "\"", "at most 65536 bytes"},
    {GRAMMAR_CHOICE, "[\"a\"", ",\"a\"", 5000, "]", "1 to 4096 strings"},
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
static const double SECONDS_MAX = 2;
static bool bytes_are_counted(void) {
    return false;
}
#else
static const double SECONDS_MAX = 0.1;
static bool bytes_are_counted(void) {
    return true;
}
#endif

/* Bytes of private memory that this process has. */
static size_t private_bytes(void) {
    char line[200];
    size_t kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "VmData:", 7) == 0) kb = strtoul(line + 7, NULL, 10);
    fclose(f);
    return kb << 10;
}

/* The same in a child that can take 16 MB more: it ends with 0 if all is as it was here. */
static void check_bytes(enum grammar_kind kind, const char *text, int rc) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit most = {private_bytes() + (16 << 20), RLIM_INFINITY};
        struct diag d = {0};
        struct code code;
        if (setrlimit(RLIMIT_DATA, &most) != 0) _exit(2);
        _exit(grammar_compile(&d, kind, text, strlen(text), &code) != rc);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status != 0) fail_msg("%.60s..: takes more than 16 MB", text);
}

/* message NULL: it compiles. */
static void check_bomb(enum grammar_kind kind, const char *text, const char *message) {
    struct diag d = {0};
    struct code code;
    double seconds = SECONDS_MAX;
    int rc = QN_OK;
    for (int k = 0; k < 3 && seconds >= SECONDS_MAX; k++) { /* the machine may be busy */
        if (k > 0) code_fini(&code);
        const double before = cpu_seconds();
        rc = grammar_compile(&d, kind, text, strlen(text), &code);
        seconds = cpu_seconds() - before;
    }
    if (message ? rc == QN_OK || !strstr(d.message, message) : rc != QN_OK)
        fail_msg("%.60s..: want '%s', have %d '%s'", text, message ? message : "", rc, d.message);
    if (seconds >= SECONDS_MAX) fail_msg("%.60s..: %g s", text, seconds);
    if (bytes_are_counted()) check_bytes(kind, text, rc);
    code_fini(&code);
}

static void test_bombs(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bombs); i++) {
        const struct bomb *b = &bombs[i];
        char *text = repeated(b->head, b->middle, b->n, b->tail);
        check_bomb(b->kind, text, b->message);
        free(text);
    }
}

#define REF  "{\"$ref\":\"#/$defs/%d\"}"
#define DEFS "{\"$ref\":\"#/$defs/0\",\"$defs\":{"
#define NUL  "\"%d\":{\"type\":\"null\"}}}"

/* Texts of n links, each of which names the next one twice: 2^n ways. */
static const struct chain {
    enum grammar_kind kind;
    const char *head, *link;
    int n;
    const char *tail, *message;
} chains[] = {
    {EBNF, "root ::= a0 a0\n", "a%d ::= a%d a%d\n", 1000, "a%d ::= \"x\"", NULL},
    {EBNF, "root ::= a0 a0\n", "a%d ::= (a%d? a%d){2,9}\n", 1000, "a%d ::= \"x\"", NULL},
    {SCHEMA, DEFS, "\"%d\":{\"items\":" REF ",\"additionalProperties\":" REF "},", 60, NUL, NULL},
    {SCHEMA, DEFS, "\"%d\":{\"items\":" REF ",\"additionalProperties\":" REF "},", 99, NUL,
     "more than 128 deep"},
    {SCHEMA, DEFS, "\"%d\":{\"allOf\":[" REF "," REF "]},", 100, NUL, NULL},
    {SCHEMA, DEFS, "\"%d\":{\"anyOf\":[" REF "," REF "]},", 60, NUL, NULL},
    {SCHEMA, DEFS,
     "\"%d\":{\"allOf\":[{\"properties\":{\"a\":" REF "}},{\"properties\":{\"a\":" REF "}}]},", 40,
     NUL, NULL},
    {SCHEMA, DEFS, "\"%d\":{\"anyOf\":[{\"allOf\":[" REF ",{\"type\":\"null\"}]}," REF "]},", 40,
     NUL, "merging makes more than 16384 schemas"},
};

static void test_chains(void **state) {
    (void)state;
    for (size_t k = 0; k < COUNT_OF(chains); k++) {
        const struct chain *c = &chains[k];
        char *text = malloc(1 << 16), *to = text + sprintf(text, "%s", c->head);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        for (int i = 0; i < c->n; i++) to += sprintf(to, c->link, i, i + 1, i + 1);
        sprintf(to, c->tail, c->n);
#pragma GCC diagnostic pop
        check_bomb(c->kind, text, c->message);
        free(text);
    }
}

/* ---- bounds of matching ------------------------------------------------------------------- */

/* A text that is nested for ever ends in an error, not in memory that is gone. */
static void test_nested(void **state) {
    (void)state;
    struct diag d = {0};
    struct code code;
    struct matcher *m;
    const char *grammar = "root ::= \"(\" root \")\" | \"x\"";
    assert_int_equal(grammar_compile(&d, EBNF, grammar, strlen(grammar), &code), QN_OK);
    assert_int_equal(matcher_new(&d, &code, NULL, NULL, 0, &m), QN_OK);
    int rc = QN_OK;
    size_t n = 0;
    for (; rc == QN_OK && n < 1 << 20; n++) rc = matcher_bytes(&d, m, "(", 1);
    assert_int_equal(rc, QN_ELIMIT);
    assert_non_null(strstr(d.message, "nested too deep"));
    assert_true(n > 10000);
    matcher_free(m);
    code_fini(&code);
}

/* Each byte doubles what the text may be. */
static void test_ambiguous(void **state) {
    (void)state;
    struct diag d = {0};
    struct code code;
    struct matcher *m;
    const char *grammar = "root ::= \"a\" root \"x\" | \"a\" root \"y\" | \"c\"";
    assert_int_equal(grammar_compile(&d, EBNF, grammar, strlen(grammar), &code), QN_OK);
    assert_int_equal(matcher_new(&d, &code, NULL, NULL, 0, &m), QN_OK);
    int rc = QN_OK;
    for (int n = 0; rc == QN_OK && n < 100; n++) rc = matcher_bytes(&d, m, "a", 1);
    assert_int_equal(rc, QN_ELIMIT);
    assert_non_null(strstr(d.message, "ambiguous"));
    matcher_free(m);
    code_fini(&code);
}

/* A text of many states, longer than they are kept: the same as if nothing was forgotten. */
static void test_forgetting(void **state) {
    (void)state;
    struct diag d = {0};
    struct code code;
    struct matcher *m;
    const char *grammar = "(ab?){60000}";
    assert_int_equal(grammar_compile(&d, REGEX, grammar, strlen(grammar), &code), QN_OK);
    assert_int_equal(matcher_new(&d, &code, NULL, NULL, 0, &m), QN_OK);
    for (int i = 0; i < 60000; i++) {
        assert_false(matcher_accepts(m));
        assert_int_equal(matcher_bytes(&d, m, i % 3 ? "ab" : "a", i % 3 ? 2 : 1), QN_OK);
    }
    assert_true(matcher_accepts(m));
    assert_int_equal(matcher_bytes(NULL, m, "a", 1), QN_EINVAL);
    assert_true(matcher_accepts(m)); /* where it was */
    matcher_free(m);
    code_fini(&code);
}

/* ---- masks -------------------------------------------------------------------------------- */

/* Tokens of a made-up vocabulary: all bytes, then pieces of JSON by chance. */
struct words {
    char *bytes;
    uint32_t *at;
    struct vocab vocab;
};

static void make_words(struct words *w, uint32_t n) {
    static const char letters[] = "abz09{}[]\":, .-\\n\xc3\xa9\xe2\x82\xac";
    struct diag d = {0};
    uint32_t seed = 7;
    w->bytes = malloc(n * 8);
    w->at = calloc(n + 1, sizeof *w->at);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t length = i < 256 ? 1 : 2 + i % 5, k = 0;
        for (; k < length; k++) {
            seed = seed * 1664525 + 1013904223;
            w->bytes[w->at[i] + k] =
                i < 256 ? (char)i : letters[(seed >> 16) % (sizeof letters - 1)];
        }
        w->at[i + 1] = w->at[i] + (i == n - 1 ? 0 : length);
    }
    assert_int_equal(vocab_make(&d, w->bytes, w->at, n, &w->vocab), QN_OK);
}

/* A mask is what trying each token says, and a kept mask is the one that was made. */
static void check_masks(const struct words *w, enum grammar_kind kind, const char *grammar,
                        const char *text) {
    struct diag d = {0};
    struct code code;
    struct matcher *m, *other;
    const int32_t end = (int32_t)w->vocab.n_tokens - 1;
    const uint32_t *mask;
    assert_int_equal(grammar_compile(&d, kind, grammar, strlen(grammar), &code), QN_OK);
    for (size_t n = 0; n <= strlen(text); n++) {
        assert_int_equal(matcher_new(&d, &code, &w->vocab, &end, 1, &m), QN_OK);
        assert_int_equal(matcher_bytes(&d, m, text, n), QN_OK);
        assert_int_equal(matcher_mask(&d, m, &mask), QN_OK);
        for (int32_t id = 0; id <= end; id += 1 + id / 256 * 17) {
            assert_int_equal(matcher_new(&d, &code, &w->vocab, &end, 1, &other), QN_OK);
            matcher_bytes(&d, other, text, n);
            const bool goes_on =
                id == end ? matcher_accepts(other) : matcher_token(NULL, other, id) == QN_OK;
            if ((mask[id / 32] >> id % 32 & 1) != goes_on)
                fail_msg("%s: after %.*s token %d", grammar, (int)n, text, id);
            matcher_free(other);
        }
        matcher_free(m);
    }
    code_fini(&code);
}

static void test_masks(void **state) {
    (void)state;
    struct words w;
    make_words(&w, 1500);
    check_masks(&w, SCHEMA, "{\"type\":\"string\",\"maxLength\":3}", "\"a9\"");
    check_masks(&w, SCHEMA, "{\"properties\":{\"a\":{\"type\":\"string\"}},\"type\":\"object\"}",
                "{\"a\": \"b\"}");
    check_masks(&w, SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"number\"}}", "[9,\n -0.9]");
    /* Counts far from their bounds and near them, inside each other, of what may be empty. */
    check_masks(&w, REGEX, "[a-z]{24}", "abzabzabzabzabzabzabzabz");
    check_masks(&w, REGEX, "(a|b9){12,30}0?", "ab9aab9b9aaaab9aaaab9aaaab9aaaaaa");
    check_masks(&w, REGEX, "(a?b?){20}z", "ababababababababababababababababababababz");
    check_masks(&w, REGEX, "((z{2,9}9){2,14},){1,9}",
                "zz9zzz9zz9zz9zz9zz9zz9zz9zz9zz9zz9zz9zz9zz9,");
    check_masks(&w, REGEX, "(ab){12,}", "abababababababababababababab");
    check_masks(&w, SCHEMA,
                "{\"type\":\"array\",\"items\":{\"enum\":[9]},\"minItems\":11,\"maxItems\":13}",
                "[9,9,9,9,9,9,9,9,9,9,9,9,9]");
    vocab_fini(&w.vocab);
    free(w.bytes);
    free(w.at);
}

/* ---- matchers that share ------------------------------------------------------------------ */

enum { N_SHARE = 3, DEEP = 15000 };

/* The k-th bracket of a text. */
static bool is_round(uint32_t text, uint32_t k) {
    return (k * 2654435761u >> (7 + text)) % 2;
}

/* Each of several texts is nested so deep that they do not fit together. Each goes on as it would
 * alone. */
static void test_shared(void **state) {
    (void)state;
    struct diag d = {0};
    struct code code;
    struct matcher *m[N_SHARE];
    const char *grammar = "root ::= \"(\" root \")\" | \"[\" root \"]\" | \"x\"";
    assert_int_equal(grammar_compile(&d, EBNF, grammar, strlen(grammar), &code), QN_OK);
    assert_int_equal(matcher_new(&d, &code, NULL, NULL, 0, &m[0]), QN_OK);
    for (int i = 1; i < N_SHARE; i++) assert_int_equal(matcher_fork(&d, m[0], &m[i]), QN_OK);
    for (uint32_t k = 0; k < DEEP; k++)
        for (uint32_t i = 0; i < N_SHARE; i++)
            assert_int_equal(matcher_bytes(&d, m[i], is_round(i, k) ? "(" : "[", 1), QN_OK);
    for (uint32_t i = 0; i < N_SHARE; i++) assert_int_equal(matcher_bytes(&d, m[i], "x", 1), QN_OK);
    for (uint32_t k = DEEP; k-- > 0;)
        for (uint32_t i = 0; i < N_SHARE; i++) {
            assert_int_equal(matcher_bytes(NULL, m[i], is_round(i, k) ? "]" : ")", 1), QN_EINVAL);
            assert_int_equal(matcher_bytes(&d, m[i], is_round(i, k) ? ")" : "]", 1), QN_OK);
            assert_int_equal(matcher_accepts(m[i]), k == 0);
        }
    for (int i = 0; i < N_SHARE; i++) matcher_free(m[i]);
    code_fini(&code);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bombs),      cmocka_unit_test(test_chains),
        cmocka_unit_test(test_nested),     cmocka_unit_test(test_ambiguous),
        cmocka_unit_test(test_forgetting), cmocka_unit_test(test_masks),
        cmocka_unit_test(test_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

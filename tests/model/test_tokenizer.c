/* The tokenizer against what Hugging Face `tokenizers` gave for the same files and texts:
 * tests/golden/tokenizer, made by tools/golden_tokenizer.py; and against transformers for whole
 * directories: tests/golden/directories, made by tools/golden_directories.py. */
#include "base/jsonio.h"
#include "base/mapfile.h"
#include "model/tokenizer.h"
#include "model/tokenizer_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#undef fail /* cmocka has a macro of that name */

#define GOLDEN "tests/golden/"

/* One golden file while it is compared. */
struct run {
    const char *name;
    struct tokenizer *t;
    int n_cases, n_wrong;
};

static void report(struct run *r, size_t line, const char *what, const char *want, size_t want_n,
                   const char *have, size_t have_n) {
    if (r->n_wrong++ < 10)
        print_error("%s: line %zu: %s: want '%.*s', have '%.*s'\n", r->name, line, what,
                    (int)want_n, want, (int)have_n, have);
}

static void compare_text(struct run *r, size_t line, const char *what, const json_t *want,
                         const struct strbuf *have) {
    size_t n = json_string_length(want);
    if (n != have->n || (n > 0 && memcmp(json_string_value(want), have->text, n) != 0))
        report(r, line, what, json_string_value(want), n, strbuf_text(have), have->n);
}

static void compare_ids(struct run *r, size_t line, const char *what, const json_t *want,
                        const struct token_ids *have) {
    bool same = json_array_size(want) == have->n;
    for (size_t i = 0; same && i < have->n; i++)
        same = json_integer_value(json_array_get(want, i)) == have->items[i];
    if (same) return;
    struct strbuf text = {0};
    for (size_t i = 0; i < have->n; i++) strbuf_printf(&text, " %d", have->items[i]);
    char *wanted = json_dumps(want, JSON_COMPACT);
    report(r, line, what, wanted, strlen(wanted), strbuf_text(&text), text.n);
    free(wanted);
    strbuf_fini(&text);
}

static void check_encode(struct run *r, size_t line, const json_t *text, const json_t *want,
                         bool add_special) {
    struct token_ids ids = {0};
    struct diag d = {0};
    assert_int_equal(tokenizer_encode(&d, r->t, json_string_value(text), json_string_length(text),
                                      add_special, &ids),
                     QN_OK);
    compare_ids(r, line, add_special ? "ids" : "ids_no_special", want, &ids);
    ARRAY_FINI(&ids);
}

/* At once and token by token; every piece of the stream must be whole characters. */
static void check_decode(struct run *r, size_t line, const json_t *ids_json, const json_t *want,
                         bool skip) {
    struct strbuf whole = {0}, pieces = {0};
    struct token_ids ids = {0};
    struct token_stream s;
    size_t i;
    json_t *v;
    json_array_foreach(ids_json, i, v)
        assert_int_equal(ARRAY_PUSH(NULL, &ids, (int32_t)json_integer_value(v)), QN_OK);
    assert_int_equal(tokenizer_decode(NULL, r->t, ids.items, ids.n, skip, &whole), QN_OK);
    compare_text(r, line, skip ? "decoded_skip" : "decoded", want, &whole);
    token_stream_init(&s, r->t, skip);
    for (i = 0; i <= ids.n; i++) {
        size_t before = pieces.n;
        if (i < ids.n)
            assert_int_equal(token_stream_push(NULL, &s, ids.items[i], &pieces), QN_OK);
        else
            assert_int_equal(token_stream_flush(NULL, &s, &pieces), QN_OK);
        if (!tokenizer_text_valid(strbuf_text(&pieces) + before, pieces.n - before))
            report(r, line, "half a character", "", 0, pieces.text + before, pieces.n - before);
    }
    compare_text(r, line, skip ? "streamed_skip" : "streamed", want, &pieces);
    token_stream_fini(&s);
    ARRAY_FINI(&ids);
    strbuf_fini(&whole);
    strbuf_fini(&pieces);
}

static void check_case(struct run *r, size_t line, const json_t *c) {
    const json_t *text = json_object_get(c, "text"), *ids = json_object_get(c, "ids");
    const json_t *plain = json_object_get(c, "ids_no_special");
    const json_t *decoded = json_object_get(c, "decoded");
    const json_t *skip = json_object_get(c, "decoded_skip");
    if (plain == NULL) plain = ids;
    if (decoded == NULL) decoded = text;
    if (skip == NULL) skip = decoded;
    if (text != NULL) {
        check_encode(r, line, text, ids, true);
        check_encode(r, line, text, plain, false);
    }
    check_decode(r, line, ids, decoded, false);
    check_decode(r, line, ids, skip, true);
    r->n_cases++;
}

/* Calls `check` with every line of tests/golden/<name>/<file>. */
static void each_line(struct run *r, const char *file,
                      void (*check)(struct run *, size_t line, const json_t *)) {
    struct diag d = {0};
    struct mapfile f;
    char path[200];
    snprintf(path, sizeof path, GOLDEN "%s/%s", r->name, file);
    assert_int_equal(mapfile_open(&d, path, 0, &f), QN_OK);
    const char *p = (const char *)f.data, *end = p + f.bytes;
    for (size_t line = 1; p < end; line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        json_t *c;
        assert_non_null(stop);
        assert_int_equal(jsonio_parse(&d, path, p, (size_t)(stop - p), &c), QN_OK);
        check(r, line, c);
        json_decref(c);
        p = stop + 1;
    }
    mapfile_close(&f);
}

static void open_run(struct run *r) {
    struct diag d = {0};
    char path[200];
    snprintf(path, sizeof path, GOLDEN "%s", r->name);
    tokenizer_open(&d, path, &r->t);
    assert_string_equal(d.message, "");
    each_line(r, "cases.jsonl", check_case);
}

static void close_run(struct run *r, int n_least) {
    tokenizer_free(r->t);
    print_message("%s: %d cases, %d wrong\n", r->name, r->n_cases, r->n_wrong);
    assert_true(r->n_cases >= n_least);
    assert_int_equal(r->n_wrong, 0);
}

static void compare_golden(void **state) {
    struct run r = {.name = *state};
    open_run(&r);
    close_run(&r, 350);
}

static void check_eos(struct run *r, size_t line, const json_t *c) {
    const json_t *eos = json_object_get(c, "eos");
    const int32_t want = json_is_null(eos) ? -1 : (int32_t)json_integer_value(eos);
    if (tokenizer_eos(r->t) == want) return;
    print_error("%s: eos.jsonl: line %zu: want %d, have %d\n", r->name, line, want,
                tokenizer_eos(r->t));
    r->n_wrong++;
}

/* Files beside tokenizer.json, post-processors and pre-tokenizers, as transformers has them. */
static void compare_directory(void **state) {
    struct run r = {.name = *state};
    open_run(&r);
    each_line(&r, "eos.jsonl", check_eos);
    close_run(&r, 80);
}

#define GOLDEN_TEST(name)                                                                          \
    { "golden " name, compare_golden, NULL, NULL, (void *)"tokenizer/" name }
#define DIRECTORY_TEST(name)                                                                       \
    { "directory " name, compare_directory, NULL, NULL, (void *)"directories/" name }

int main(void) {
    const struct CMUnitTest tests[] = {
        GOLDEN_TEST("qwen"),
        GOLDEN_TEST("llama3"),
        GOLDEN_TEST("llama2"),
        GOLDEN_TEST("mistral"),
        GOLDEN_TEST("metaspace"),
        GOLDEN_TEST("gpt2"),
        GOLDEN_TEST("pieces"),
        DIRECTORY_TEST("added_tokens_decoder"),
        DIRECTORY_TEST("special_tokens_map"),
        DIRECTORY_TEST("named_tokens"),
        DIRECTORY_TEST("named_object"),
        DIRECTORY_TEST("whitespace"),
        DIRECTORY_TEST("bert"),
        DIRECTORY_TEST("roberta"),
        DIRECTORY_TEST("delimiter"),
        DIRECTORY_TEST("post_sequence"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

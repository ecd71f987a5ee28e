/* What the tokenizer refuses, and what must stay fast or exact at the edges. */
#include "base/checked.h"
#include "model/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>
#undef fail /* cmocka has a macro of that name */

#define MODEL(vocab, merges)                                                                       \
    "\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}"
#define SMALL MODEL("{\"a\":0,\"b\":1,\"ab\":2}", "[[\"a\",\"b\"]]")

static int parse(struct diag *d, const char *json, const char *config, struct tokenizer **t) {
    return tokenizer_parse(d, "x.json", json, strlen(json), config,
                           config == NULL ? 0 : strlen(config), t);
}

/* Each file is refused with this code, and the message names this field. */
static void refusals_name_the_field(void **state) {
    static const struct {
        const char *json;
        int code;
        const char *field;
    } cases[] = {
        {"[]", QN_EFORMAT, "x.json"},
        {"{}", QN_EFORMAT, "model: missing"},
        {"{\"model\":3}", QN_EFORMAT, "model"},
        {"{" MODEL("{}", "[]") "}", QN_EFORMAT, "no vocabulary"},
        {"{\"model\":{\"type\":\"WordPiece\"}}", QN_EUNSUPPORTED, "WordPiece"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}",
         QN_EUNSUPPORTED, "model.end_of_word_suffix"},
        {"{" MODEL("{\"a\":-1}", "[]") "}", QN_ELIMIT, "model.vocab"},
        {"{" MODEL("{\"a\":4000000000}", "[]") "}", QN_ELIMIT, "model.vocab"},
        {"{" MODEL("{\"a\":\"0\"}", "[]") "}", QN_EFORMAT, "model.vocab"},
        {"{" MODEL("{\"a\":0}", "[\"a b\"]") "}", QN_EFORMAT, "model.merges[0]"},
        {"{" MODEL("{\"a\":0,\"b\":1}", "[[\"a\",\"b\"]]") "}", QN_EFORMAT, "model.merges[0]"},
        {"{" MODEL("{\"a\":0}", "[\"a a a\"]") "}", QN_EFORMAT, "model.merges[0]"},
        {"{" MODEL("{\"a\":0}", "[[\"a\"]]") "}", QN_EFORMAT, "model.merges[0]"},
        {"{\"normalizer\":{\"type\":\"Precompiled\"}," SMALL "}", QN_EUNSUPPORTED,
         "normalizer.type"},
        {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Nmt\"}]}," SMALL "}",
         QN_EUNSUPPORTED, "normalizer.normalizers[0].type"},
        {"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," SMALL "}", QN_EUNSUPPORTED,
         "pre_tokenizer.type"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
         "\"(\"}}," SMALL "}",
         QN_EUNSUPPORTED, "pre_tokenizer.pattern"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
         "\"[a-z&&[^b]]\"}}," SMALL "}",
         QN_EUNSUPPORTED, "pre_tokenizer.pattern"},
        {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}," SMALL "}",
         QN_EFORMAT, "pre_tokenizer.replacement"},
        {"{\"post_processor\":{\"type\":\"BertProcessing\"}," SMALL "}", QN_EFORMAT,
         "post_processor.cls"},
        {"{\"post_processor\":{\"type\":\"Other\"}," SMALL "}", QN_EUNSUPPORTED,
         "post_processor.type"},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
         "\"id\":\"<s>\"}}],\"special_tokens\":{}}," SMALL "}",
         QN_EFORMAT, "post_processor.special_tokens"},
        {"{\"decoder\":{\"type\":\"CTC\"}," SMALL "}", QN_EUNSUPPORTED, "decoder.type"},
        {"{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
         "\"ByteFallback\"}]}," SMALL "}",
         QN_EUNSUPPORTED, "decoder.decoders[1]"},
        {"{\"added_tokens\":[{\"content\":3}]," SMALL "}", QN_EFORMAT, "added_tokens[0].content"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct tokenizer *t;
        struct diag d = {0};
        int rc = parse(&d, cases[i].json, NULL, &t);
        if (rc != cases[i].code || strstr(d.message, cases[i].field) == NULL)
            print_error("%s\n  gives %d '%s'\n", cases[i].json, rc, d.message);
        assert_int_equal(rc, cases[i].code);
        assert_non_null(strstr(d.message, cases[i].field));
        assert_null(t);
    }
}

static void deep_sequences_are_refused(void **state) {
    struct strbuf json = {0};
    struct tokenizer *t;
    struct diag d = {0};
    (void)state;
    strbuf_str(&json, "{" SMALL ",\"normalizer\":");
    for (int i = 0; i < 500; i++) strbuf_str(&json, "{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 500; i++) strbuf_str(&json, "]}");
    strbuf_str(&json, "}");
    assert_int_equal(parse(&d, json.text, NULL, &t), QN_ELIMIT);
    strbuf_fini(&json);
}

static struct tokenizer *open_golden(const char *path) {
    struct tokenizer *t;
    struct diag d = {0};
    tokenizer_open(&d, path, &t);
    assert_string_equal(d.message, "");
    return t;
}

/* Replacements that multiply each other: found by fuzzing, where 1,737 bytes of file took minutes.
 */
static void texts_that_explode_are_refused(void **state) {
    (void)state;
    static const char step[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
                               "\"content\":\"aaaaaaaaaaaaaaaa\"}";
    struct strbuf json = {0};
    struct diag d = {0};
    struct tokenizer *t = NULL;
    struct token_ids ids = {0};
    strbuf_printf(&json, "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s", step);
    for (int i = 0; i < 11; i++) strbuf_printf(&json, ",%s", step);
    strbuf_printf(&json, "]}," SMALL "}");
    assert_int_equal(parse(&d, strbuf_text(&json), NULL, &t), QN_OK);
    assert_int_equal(tokenizer_encode(&d, t, "ab", 2, false, &ids), QN_ELIMIT);
    assert_non_null(strstr(d.message, "normalizer"));
    tokenizer_free(t);
    ARRAY_FINI(&ids);
    strbuf_fini(&json);
}

static void bad_ids_are_named(void **state) {
    struct tokenizer *t = open_golden("tests/golden/tokenizer/qwen");
    const int32_t bad[] = {-1, tokenizer_n_vocab(t), INT32_MAX};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct strbuf out = {0};
        struct diag d = {0};
        char name[20];
        int32_t ids[] = {0, bad[i]};
        assert_int_equal(tokenizer_decode(&d, t, ids, 2, false, &out), QN_EINVAL);
        snprintf(name, sizeof name, "%d", bad[i]);
        assert_non_null(strstr(d.message, name));
        assert_int_equal(out.n, 0);
        strbuf_fini(&out);
    }
    tokenizer_free(t);
}

/* Invalid UTF-8 counts as U+FFFD, one per maximal part of a character. */
static void invalid_text_is_replaced(void **state) {
    static const struct {
        const char *bytes, *same_as;
    } cases[] = {
        {"a\xFF", "a\uFFFD"},
        {"\xE2\x82", "\uFFFD"},
        {"\xE2\x82g", "\uFFFDg"},
        {"\xC0\x80", "\uFFFD\uFFFD"},
        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
        {"\xF0\x9F\x8C", "\uFFFD"},
        {"\xF5\x80", "\uFFFD\uFFFD"},
        {"ok \x80 ok", "ok \uFFFD ok"},
    };
    struct tokenizer *t = open_golden("tests/golden/tokenizer/llama2");
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct token_ids a = {0}, b = {0};
        const char *x = cases[i].bytes, *y = cases[i].same_as;
        assert_int_equal(tokenizer_encode(NULL, t, x, strlen(x), true, &a), QN_OK);
        assert_int_equal(tokenizer_encode(NULL, t, y, strlen(y), true, &b), QN_OK);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.items, b.items, a.n * sizeof *a.items);
        ARRAY_FINI(&a);
        ARRAY_FINI(&b);
    }
    tokenizer_free(t);
}

/* Quadratic behaviour would take minutes on these. */
static void long_runs_are_fast(void **state) {
    static const char *const names[] = {"qwen", "llama3", "llama2", "mistral", "gpt2", "pieces"};
    static const char *const units[] = {"a", " ", "\n", "'", "1", "\u0301\u0323", " \n", "é", "▁"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[100];
        snprintf(path, sizeof path, "tests/golden/tokenizer/%s", names[i]);
        struct tokenizer *t = open_golden(path);
        for (size_t k = 0; k < COUNT_OF(units); k++) {
            struct strbuf text = {0};
            struct token_ids ids = {0};
            for (int n = 0; n < 100000; n++) strbuf_str(&text, units[k]);
            clock_t start = clock();
            assert_int_equal(tokenizer_encode(NULL, t, text.text, text.n, true, &ids), QN_OK);
            assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 5);
            strbuf_fini(&text);
            ARRAY_FINI(&ids);
        }
        tokenizer_free(t);
    }
}

static void lookups(void **state) {
    static const char config[] =
        "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},\"pad_token\":null,"
        "\"added_tokens_decoder\":{\"3\":{\"content\":\"<s>\",\"special\":true},"
        "\"4\":{\"content\":\"</"
        "s>\",\"special\":true},\"5\":{\"content\":\"b\",\"special\":true}}}";
    static const char json[] = "{" SMALL ",\"added_tokens\":[{\"id\":9,\"content\":\"<s>\","
                               "\"special\":true}],\"decoder\":{\"type\":\"ByteLevel\"}}";
    struct tokenizer *t;
    struct token_ids ids = {0};
    struct strbuf out = {0};
    struct diag d = {0};
    size_t n;
    (void)state;
    parse(&d, json, config, &t);
    assert_string_equal(d.message, "");
    assert_int_equal(tokenizer_n_vocab(t), 5);
    assert_int_equal(tokenizer_id(t, "<s>"), 3); /* numbered on, as the reference does; not 9 */
    assert_int_equal(tokenizer_id(t, "</s>"), 4);
    assert_int_equal(tokenizer_id(t, "ab"), 2);
    assert_int_equal(tokenizer_id(t, "x"), -1);
    assert_string_equal(tokenizer_token(t, 3, &n), "<s>");
    assert_int_equal(n, 3);
    assert_null(tokenizer_token(t, 5, &n));
    assert_int_equal(tokenizer_encode(&d, t, "ab<s>a", 6, true, &ids), QN_OK);
    const int32_t want[] = {0, 1, 3, 0}; /* b is an added token, so it is cut out first */
    assert_int_equal(ids.n, 4);
    assert_memory_equal(ids.items, want, sizeof want);
    assert_int_equal(tokenizer_bytes(&d, t, 2, &out), QN_OK);
    assert_string_equal(out.text, "ab");
    ARRAY_FINI(&ids);
    strbuf_fini(&out);
    tokenizer_free(t);
}

/* Bytes of a token in the middle of a text, for log-probabilities and the like. */
static void bytes_of_tokens(void **state) {
    struct tokenizer *t = open_golden("tests/golden/tokenizer/llama2");
    struct strbuf out = {0};
    (void)state;
    assert_int_equal(tokenizer_bytes(NULL, t, tokenizer_id(t, "<0xE2>"), &out), QN_OK);
    assert_int_equal(tokenizer_bytes(NULL, t, tokenizer_id(t, "\u2581"), &out), QN_OK);
    assert_string_equal(out.text, "\xE2 ");
    strbuf_fini(&out);
    tokenizer_free(t);
}

/* Dropout is for training: whatever it is, a text has its ids. */
static void dropout_is_not_applied(void **state) {
    struct tokenizer *t;
    struct diag d = {0};
    struct token_ids ids = {0};
    (void)state;
    assert_int_equal(parse(&d,
                           "{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"],"
                           "\"dropout\":1.0}}",
                           NULL, &t),
                     QN_OK);
    assert_int_equal(tokenizer_encode(&d, t, "ab", 2, true, &ids), QN_OK);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.items[0], 2);
    ARRAY_FINI(&ids);
    tokenizer_free(t);
}

/* Files beside tokenizer.json that say something else than tokens. */
static void bad_configs_are_refused(void **state) {
    static const struct {
        const char *config, *message;
    } cases[] = {
        {"[]", "tokenizer_config.json: want an object"},
        {"{\"added_tokens_decoder\":[]}",
         "tokenizer_config.json: added_tokens_decoder: want an object of at most 65536"},
        {"{\"added_tokens_decoder\":{\"x\":{\"content\":\"a\"}}}",
         "tokenizer_config.json: added_tokens_decoder.x: want an id"},
        {"{\"added_tokens_decoder\":{\"1\":7}}",
         "tokenizer_config.json: added_tokens_decoder.1: want an object"},
        {"{\"added_tokens_decoder\":{\"1\":{}}}",
         "tokenizer_config.json: added_tokens_decoder.1.content: want a string"},
        {"{\"eos_token\":7}",
         "tokenizer_config.json: eos_token: want a token, as text or as an object"},
        {"{\"extra_special_tokens\":[null]}",
         "tokenizer_config.json: extra_special_tokens: want a token, as text or as an object"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct tokenizer *t;
        struct diag d = {0};
        assert_int_equal(parse(&d, "{" SMALL "}", cases[i].config, &t), QN_EFORMAT);
        assert_string_equal(d.message, cases[i].message);
    }
}

static void missing_files(void **state) {
    struct tokenizer *t;
    struct diag d = {0};
    (void)state;
    assert_int_equal(tokenizer_open(&d, "tests/model", &t), QN_ENOENT);
    assert_string_equal(d.message, "tests/model: want tokenizer.json, have no tokenizer");
    diag_clear(&d);
    assert_int_equal(tokenizer_open(&d, "tests/golden/none", &t), QN_ENOENT);
    assert_non_null(strstr(d.message, "tests/golden/none"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_name_the_field),
        cmocka_unit_test(deep_sequences_are_refused),
        cmocka_unit_test(texts_that_explode_are_refused),
        cmocka_unit_test(bad_ids_are_named),
        cmocka_unit_test(invalid_text_is_replaced),
        cmocka_unit_test(long_runs_are_fast),
        cmocka_unit_test(lookups),
        cmocka_unit_test(bytes_of_tokens),
        cmocka_unit_test(dropout_is_not_applied),
        cmocka_unit_test(bad_configs_are_refused),
        cmocka_unit_test(missing_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

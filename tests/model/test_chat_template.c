/* Chat templates against what jinja2, set up as transformers sets it up, gives for them:
 * tests/golden/chat, made by tools/golden_chat.py. */
#include "base/array.h"
#include "base/checked.h"
#include "base/jsonio.h"
#include "base/mapfile.h"
#include "model/chat_template.h"
#include "model/jinja/jinja.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#undef fail /* cmocka has a macro of that name */

#define GOLDEN "tests/golden/chat/"

enum { NOW = 1721995200 /* 2024-07-26 12:00 UTC */, MAX_WRONG = 10 };

struct golden {
    ARRAY(char *) conversations;
    struct chat_template *template;
    char name[64];
    int n_cases, n_errors, n_refused, n_wrong;
};

/* Calls `each` with every line of a file. */
static void for_lines(const char *path, struct golden *g,
                      void (*each)(struct golden *, size_t line, const json_t *)) {
    struct diag d = {0};
    struct mapfile f;
    mapfile_open(&d, path, 0, &f);
    assert_string_equal(d.message, "");
    const char *p = (const char *)f.data, *end = p + f.bytes;
    for (size_t line = 1; p < end; line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        json_t *row;
        assert_non_null(stop);
        jsonio_parse(&d, path, p, (size_t)(stop - p), &row);
        assert_string_equal(d.message, "");
        each(g, line, row);
        json_decref(row);
        p = stop + 1;
    }
    mapfile_close(&f);
}

static const char *text_of(const json_t *row, const char *key) {
    return json_string_value(json_object_get(row, key));
}

static void judge(struct golden *g, size_t line, const json_t *row, const char *name, int rc,
                  const struct strbuf *out, const struct diag *d) {
    const json_t *want = json_object_get(row, "text");
    bool same = want == NULL ? rc != QN_OK && strstr(d->message, name) != NULL
                             : rc == QN_OK && out->n == json_string_length(want) &&
                                   memcmp(strbuf_text(out), json_string_value(want), out->n) == 0;
    bool refused = want != NULL && (rc == QN_EUNSUPPORTED || rc == QN_ELIMIT);
    g->n_cases++;
    g->n_errors += want == NULL;
    g->n_refused += refused;
    if (!same && !refused && g->n_wrong++ < MAX_WRONG)
        print_error("line %zu (%s): want '%s', have '%s' (%s)\n", line, name,
                    want == NULL ? "an error" : json_string_value(want), strbuf_text(out),
                    d->message);
}

/* The lines of conversations.jsonl, as they are: they have integers that jansson has not. */
static void read_conversations(struct golden *g) {
    FILE *f = fopen(GOLDEN "conversations.jsonl", "r");
    size_t capacity;
    char *line = NULL;
    assert_non_null(f);
    while (capacity = 0, getline(&line, &capacity, f) > 0) {
        assert_int_equal(ARRAY_PUSH(NULL, &g->conversations, line), QN_OK);
        line = NULL;
    }
    free(line);
    fclose(f);
}

static void open_template(struct golden *g, const char *name) {
    char path[200];
    struct mapfile f;
    struct diag d = {0};
    if (strcmp(g->name, name) == 0) return;
    chat_template_free(g->template);
    snprintf(g->name, sizeof g->name, "%s", name);
    snprintf(path, sizeof path, GOLDEN "%s.jinja", name);
    assert_int_equal(mapfile_open(&d, path, 0, &f), QN_OK);
    chat_template_parse(&d, name, (const char *)f.data, f.bytes, "<s>", "</s>", &g->template);
    assert_string_equal(d.message, "");
    mapfile_close(&f);
}

static void check_case(struct golden *g, size_t line, const json_t *row) {
    const struct chat_options options = {.now = NOW};
    size_t i = (size_t)json_integer_value(json_object_get(row, "conversation"));
    struct strbuf out = {0};
    struct diag d = {0};
    open_template(g, text_of(row, "template"));
    assert_in_range(i, 0, g->conversations.n - 1);
    const char *talk = g->conversations.items[i];
    int rc = chat_template_render(&d, g->template, talk, strlen(talk), &options, &out);
    judge(g, line, row, g->name, rc, &out, &d);
    strbuf_fini(&out);
}

static void check_construct(struct golden *g, size_t line, const json_t *row) {
    const struct chat_options options = {.now = NOW};
    const json_t *program = json_object_get(row, "program");
    const char *talk = text_of(row, "conversation");
    struct strbuf out = {0};
    struct diag d = {0};
    struct chat_template *c;
    int rc = chat_template_parse(&d, "x.jinja", json_string_value(program),
                                 json_string_length(program), NULL, NULL, &c);
    if (rc == QN_OK) rc = chat_template_render(&d, c, talk, strlen(talk), &options, &out);
    chat_template_free(c);
    judge(g, line, row, "x.jinja: line ", rc, &out, &d);
    strbuf_fini(&out);
}

static void say(const char *what, const struct golden *g) {
    print_message("%s: %d cases, %d of them errors, %d refused, %d wrong\n", what, g->n_cases,
                  g->n_errors, g->n_refused, g->n_wrong);
}

static void templates_equal_jinja2(void **state) {
    struct golden g = {0};
    (void)state;
    read_conversations(&g);
    for_lines(GOLDEN "cases.jsonl", &g, check_case);
    say("chat templates", &g);
    chat_template_free(g.template);
    for (size_t i = 0; i < g.conversations.n; i++) free(g.conversations.items[i]);
    ARRAY_FINI(&g.conversations);
    assert_true(g.n_cases >= 1000);
    assert_int_equal(g.n_refused, 0);
    assert_int_equal(g.n_wrong, 0);
}

static void constructs_equal_jinja2(void **state) {
    struct golden g = {0};
    (void)state;
    for_lines(GOLDEN "constructs.jsonl", &g, check_construct);
    say("constructs", &g);
    assert_true(g.n_cases >= 300);
    assert_true(g.n_refused * 20 <= g.n_cases); /* wordcount, %c and the like */
    assert_int_equal(g.n_wrong, 0);
}

/* Every name works. */
static void names_work(void **state) {
    static const struct {
        const char *name, *want;
    } cases[] = {
        {"chatml", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n U <|im_end|>\n"
                   "<|im_start|>assistant\n"},
        {"qwen2", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n U <|im_end|>\n"
                  "<|im_start|>assistant\n"},
        {"qwen3", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n U <|im_end|>\n"
                  "<|im_start|>assistant\n<think>\n\n</think>\n\n"},
        {"llama2", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\n U [/INST]"},
        {"llama3", "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        {"llama3.1", "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
                     "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\nS<|eot_id|>"
                     "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
                     "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        {"mistral", "<s>[INST] S\n\n U [/INST]"},
        {"mistral-v1", "<s> [INST] S\n\n U  [/INST]"},
        {"mistral-tekken", "<s>[INST]S\n\n U [/INST]"},
    };
    static const char talk[] =
        "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\" U \"}]";
    const struct chat_options options = {.add_generation_prompt = true,
                                         .kwargs = "{\"enable_thinking\": false}"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct chat_template *c;
        struct strbuf out = {0};
        struct diag d = {0};
        assert_non_null(strstr(chat_template_names(), cases[i].name));
        chat_template_open(&d, NULL, cases[i].name, &c);
        assert_string_equal(d.message, "");
        chat_template_render(&d, c, talk, sizeof talk - 1, &options, &out);
        assert_string_equal(d.message, "");
        assert_string_equal(strbuf_text(&out), cases[i].want);
        strbuf_fini(&out);
        chat_template_free(c);
    }
}

/* A program and a conversation of one message whose rendering must fail with these words. */
static void fails(const char *program, size_t n, int code, const char *words) {
    static const char talk[] = "[{\"role\":\"user\",\"content\":\"x\"}]";
    struct chat_template *c;
    struct strbuf out = {0};
    struct diag d = {0};
    int rc = chat_template_parse(&d, "x.jinja", program, n, "", "", &c);
    if (rc == QN_OK) rc = chat_template_render(&d, c, talk, sizeof talk - 1, NULL, &out);
#ifdef __SANITIZE_ADDRESS__ /* there 2,000 ms may be over before the last step */
    if (strcmp(words, "steps") == 0 && strstr(d.message, "took more than 2000 ms") != NULL)
        words = "took";
#endif
    if (rc != code || strstr(d.message, words) == NULL)
        print_error("%.100s: code %d, want %d: '%s', want '%s'\n", program, rc, code, d.message,
                    words);
    assert_int_equal(rc, code);
    assert_non_null(strstr(d.message, words));
    strbuf_fini(&out);
    chat_template_free(c);
}

static void what_is_unknown_is_refused(void **state) {
    static const struct {
        const char *program;
        int code;
        const char *words;
    } cases[] = {
        {"a\n{% include 'b' %}", QN_EUNSUPPORTED, "x.jinja: line 2: the statement 'include'"},
        {"{% for m in messages recursive %}{% endfor %}", QN_EUNSUPPORTED, "recursive"},
        {"\n\n{{ messages | groupby('role') }}", QN_EUNSUPPORTED, "line 3: no filter is named"},
        {"{{ 'x'.encode() }}", QN_EUNSUPPORTED, "attribute 'encode' of a str"},
        {"{{ messages.__class__ }}", QN_EUNSUPPORTED, "__class__"},
        {"{{ cycler(1) }}", QN_EUNSUPPORTED, "cycler"},
        {"{{ messages | map('upper') }}", QN_EUNSUPPORTED, "address"},
        {"{{ 9223372036854775807 + 1 }}", QN_EUNSUPPORTED, "64 bits"},
        {"{{ 'stra\xC3\x9F"
         "e' | upper }}",
         QN_EUNSUPPORTED, "U+00DF"},
        {"{{ messages.append(1) }}", QN_EINVAL, "unsafe"},
        {"{{ nothing.x }}", QN_EINVAL, "line 1: 'nothing' is undefined"},
        {"{{ raise_exception('no ' ~ messages[0].role) }}", QN_EINVAL, "no user"},
        {"{% if %}", QN_EFORMAT, "line 1: want an expression, have %}"},
        {"{{ 1", QN_EFORMAT, "a tag does not end"},
        {"\xFF", QN_EFORMAT, "UTF-8"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        fails(cases[i].program, strlen(cases[i].program), cases[i].code, cases[i].words);
}

static void repeat(struct strbuf *b, const char *text, size_t n) {
    while (n-- > 0) strbuf_str(b, text);
}

static void bounds_say_which(void **state) {
    struct strbuf b = {0};
    (void)state;
    repeat(&b, "x", JINJA_MAX_PROGRAM + 1);
    fails(b.text, b.n, QN_ELIMIT, "a chat template of more than 1048576 bytes");
    strbuf_clear(&b);
    repeat(&b, "{{ ", 1);
    repeat(&b, "(", 200);
    repeat(&b, ")", 200);
    repeat(&b, "}}", 1);
    fails(b.text, b.n, QN_ELIMIT, "nested");
    strbuf_clear(&b);
    repeat(&b, "{{ 1", 1);
    repeat(&b, " + 1", 1000);
    repeat(&b, " }}", 1);
    fails(b.text, b.n, QN_ELIMIT, "levels deep");
    strbuf_clear(&b);
    for (int i = 0; i <= JINJA_MAX_NAMES; i++) strbuf_printf(&b, "{%% set x%d = 1 %%}", i);
    fails(b.text, b.n, QN_ELIMIT, "names");
    strbuf_fini(&b);
#define FAILS(program, words) fails(program, sizeof program - 1, QN_ELIMIT, words)
    FAILS("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
          "steps");
    FAILS("{{ 'x' * 99999999 }}", "a text of more than 16 MiB");
    FAILS("{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "a text of more than 16 MiB");
    FAILS("{{ [1] * 99999999 }}", "more than");
    FAILS("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "levels deep");
    FAILS("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "levels deep");
    FAILS("{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% "
          "endfor %}"
          "{{ ns.x == [ns.x] }}",
          "levels deep");
    FAILS(
        "{% set x = 'ab' * 4000000 %}{% for i in range(99999) %}{{ x is in x ~ 'c' }}{% endfor %}",
        "more than");
}

/* What is no conversation. */
static void conversations_are_checked(void **state) {
    static const struct {
        const char *talk, *kwargs, *words;
    } cases[] = {
        {"", NULL, "messages: line 1, column 1"},
        {"[]", NULL, "messages: want at least one"},
        {"{}", NULL, "messages: want a list"},
        {"3", NULL, "messages: want a list, have a int"},
        {"[3]", NULL, "messages[0]: want an object, have a int"},
        {"{\"messages\": [{}], \"tools\": [1]}", NULL, "tools[0]: want an object"},
        {"{\"messages\": [{}], \"tools\": {}}", NULL, "tools: want a list, have a dict"},
        {"{\"messages\": [{}], \"tolls\": []}", NULL, "tolls: no field"},
        {"{\"messages\": [{}], \"kwargs\": {\"tools\": 1}}", NULL, "'tools' is no further"},
        {"[{}]", "[]", "chat_template_kwargs: want an object"},
        {"[{}]", "{", "chat_template_kwargs: line 1, column 2"},
        {"[{}", NULL, "column 4"},
        {"[{\"a\": \"\\ud800\"}]", NULL, "surrogate"},
        {"[{\"a\": \"\xFF\"}]", NULL, "UTF-8"},
        {"[{\"a\": 01}]", NULL, "want , or }"},
    };
    struct chat_template *c;
    (void)state;
    assert_int_equal(chat_template_open(NULL, NULL, "chatml", &c), QN_OK);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct chat_options options = {.kwargs = cases[i].kwargs};
        struct strbuf out = {0};
        struct diag d = {0};
        assert_int_not_equal(
            chat_template_render(&d, c, cases[i].talk, strlen(cases[i].talk), &options, &out),
            QN_OK);
        if (strstr(d.message, cases[i].words) == NULL)
            print_error("%s: '%s', want '%s'\n", cases[i].talk, d.message, cases[i].words);
        assert_non_null(strstr(d.message, cases[i].words));
        strbuf_fini(&out);
    }
    chat_template_free(c);
}

/* Directories. */

static void write_file(const char *dir, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void remove_file(const char *dir, const char *name) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    remove(path);
}

/* What a directory's template says; of an error the message. */
static void says(const char *dir, const char *name, const char *talk, const char *want) {
    struct chat_template *c;
    struct strbuf out = {0};
    struct diag d = {0};
    if (chat_template_open(&d, dir, name, &c) == QN_OK)
        chat_template_render(&d, c, talk, strlen(talk), NULL, &out);
    chat_template_free(c);
    const char *have = d.code == QN_OK ? strbuf_text(&out) : d.message;
    if (strstr(have, want) == NULL) print_error("'%s', want '%s'\n", have, want);
    assert_non_null(strstr(have, want));
    strbuf_fini(&out);
}

/* No template, one in the config, a list of them, files, a name, a file by name: each wins over
 * those before it. Special tokens from both files. */
static void directories(void **state) {
    static const char talk[] = "[{}]", tools[] = "{\"messages\": [{}], \"tools\": [{}]}";
    char dir[] = "/tmp/quern-chat-XXXXXX", path[300];
    (void)state;
    assert_non_null(mkdtemp(dir));
    says(dir, NULL, talk, "no chat template (neither chat_template.jinja nor");
    write_file(dir, "tokenizer_config.json",
               "{\"chat_template\": \"one {{ bos_token }}{{ eos_token is defined }}\","
               " \"bos_token\": {\"content\": \"<b>\"}, \"added_tokens_decoder\": {}}");
    write_file(dir, "special_tokens_map.json", "{\"bos_token\": \"<m>\", \"eos_token\": \"<e>\"}");
    says(dir, NULL, talk, "one <b>False");
    write_file(dir, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"rag\"}, {\"name\": "
               "\"default\", \"template\": \"two {{ bos_token }}{{ eos_token }}\"}, {\"name\": "
               "\"tool_use\", \"template\": \"use\"}], \"bos_token\": \"<b>\"}");
    says(dir, NULL, talk, "two <m><e>");
    says(dir, NULL, tools, "use");
    says(dir, "rag", tools, "rag");
    says(dir, "none", talk, "the directory has: rag, default, tool_use; built in are: chatml");
    write_file(dir, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"rag\"}]}");
    says(dir, NULL, talk, "choose one with --chat-template NAME: rag");
    write_file(dir, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"default\", \"template\": \"two\"}, {\"name\": "
               "\"tool_use\", \"template\": \"{% bad %}\"}]}");
    says(dir, NULL, talk, "two");
    says(dir, NULL, tools, "want a statement, have 'bad'");
    write_file(dir, "tokenizer_config.json", "{\"chat_template\": 7}");
    says(dir, NULL, talk, "chat_template: want a text or a list");
    write_file(dir, "chat_template.jinja", "file\n");
    says(dir, NULL, talk, "file");
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    write_file(path, "tool_use.jinja", "more");
    says(dir, NULL, tools, "more");
    says(dir, "tool_use", talk, "more");
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    says(NULL, path, talk, "file");
    says(NULL, "no/such.jinja", talk, "no file, and no template of that name");
    remove_file(dir, "additional_chat_templates/tool_use.jinja");
    remove_file(dir, "additional_chat_templates");
    remove_file(dir, "chat_template.jinja");
    remove_file(dir, "tokenizer_config.json");
    remove_file(dir, "special_tokens_map.json");
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_equal_jinja2),
        cmocka_unit_test(constructs_equal_jinja2),
        cmocka_unit_test(names_work),
        cmocka_unit_test(what_is_unknown_is_refused),
        cmocka_unit_test(bounds_say_which),
        cmocka_unit_test(conversations_are_checked),
        cmocka_unit_test(directories),
    };
    setenv("TZ", "UTC", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

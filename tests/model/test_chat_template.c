/* Chat templates against jinja2's rendering of the same programs: tests/golden/tokenizer/chat, made
 * by tools/golden_tokenizer.py. */
#include "base/checked.h"
#include "base/jsonio.h"
#include "base/mapfile.h"
#include "model/chat_template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#undef fail /* cmocka has a macro of that name */

#define GOLDEN "tests/golden/tokenizer/chat/"

enum { MAX_TEMPLATES = 32, MAX_MESSAGES = 16 };

struct golden {
    struct chat_template *templates[MAX_TEMPLATES];
    char names[MAX_TEMPLATES][32];
    int n, n_cases, n_errors, n_wrong;
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
        assert_int_equal(jsonio_parse(&d, path, p, (size_t)(stop - p), &row), QN_OK);
        each(g, line, row);
        json_decref(row);
        p = stop + 1;
    }
    mapfile_close(&f);
}

static const char *text_of(const json_t *row, const char *key) {
    return json_string_value(json_object_get(row, key));
}

static void add_template(struct golden *g, size_t line, const json_t *row) {
    struct diag d = {0};
    const json_t *program = json_object_get(row, "program");
    (void)line;
    snprintf(g->names[g->n], sizeof g->names[0], "%s", text_of(row, "name"));
    chat_template_parse(&d, g->names[g->n], json_string_value(program), json_string_length(program),
                        text_of(row, "bos"), text_of(row, "eos"), &g->templates[g->n]);
    assert_string_equal(d.message, "");
    g->n++;
}

static const struct chat_template *find_template(const struct golden *g, const char *name) {
    for (int i = 0; i < g->n; i++)
        if (strcmp(g->names[i], name) == 0) return g->templates[i];
    return NULL;
}

static void check_case(struct golden *g, size_t line, const json_t *row) {
    struct chat_message messages[MAX_MESSAGES];
    struct chat_options options = {.date = text_of(row, "date")};
    const json_t *list = json_object_get(row, "messages"), *m;
    const json_t *thinking = json_object_get(row, "enable_thinking");
    const json_t *want = json_object_get(row, "text");
    struct strbuf out = {0};
    struct diag d = {0};
    size_t i;
    options.add_generation_prompt = json_is_true(json_object_get(row, "add_generation_prompt"));
    if (thinking != NULL)
        options.thinking = json_is_true(thinking) ? CHAT_THINKING_ON : CHAT_THINKING_OFF;
    assert_in_range(json_array_size(list), 1, MAX_MESSAGES);
    json_array_foreach(list, i, m) {
        const json_t *content = json_object_get(m, "content");
        messages[i] = (struct chat_message){text_of(m, "role"), json_string_value(content),
                                            json_string_length(content)};
    }
    int rc = chat_template_render(&d, find_template(g, text_of(row, "template")), messages,
                                  json_array_size(list), &options, &out);
    bool same = want == NULL ? rc == QN_EINVAL && strstr(d.message, "messages[") != NULL
                             : rc == QN_OK && out.n == json_string_length(want) &&
                                   memcmp(strbuf_text(&out), json_string_value(want), out.n) == 0;
    g->n_cases++;
    g->n_errors += want == NULL;
    if (!same && g->n_wrong++ < 10)
        print_error("line %zu (%s): want '%s', have '%s' (%s)\n", line, text_of(row, "template"),
                    want == NULL ? "an error" : json_string_value(want), strbuf_text(&out),
                    d.message);
    strbuf_fini(&out);
}

static void compare_golden(void **state) {
    struct golden g = {0};
    (void)state;
    for_lines(GOLDEN "templates.jsonl", &g, add_template);
    for_lines(GOLDEN "cases.jsonl", &g, check_case);
    print_message("chat templates: %d cases of %d programs, %d of them errors, %d wrong\n",
                  g.n_cases, g.n, g.n_errors, g.n_wrong);
    for (int i = 0; i < g.n; i++) chat_template_free(g.templates[i]);
    assert_true(g.n_cases >= 500);
    assert_int_equal(g.n_wrong, 0);
}

/* Every name works, and says the same as the program it stands for. */
static void names_stand_for_programs(void **state) {
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
    const struct chat_message messages[] = {{"system", "S", 1}, {"user", " U ", 3}};
    const struct chat_options options = {.add_generation_prompt = true,
                                         .thinking = CHAT_THINKING_OFF};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct chat_template *c;
        struct strbuf out = {0};
        struct diag d = {0};
        assert_non_null(strstr(chat_template_names(), cases[i].name));
        chat_template_named(&d, cases[i].name, NULL, NULL, &c);
        assert_string_equal(d.message, "");
        assert_int_equal(chat_template_render(&d, c, messages, 2, &options, &out), QN_OK);
        assert_string_equal(strbuf_text(&out), cases[i].want);
        strbuf_fini(&out);
        chat_template_free(c);
    }
}

/* Programs that are none of ours, or write something else than what we would write. */
static void others_are_refused(void **state) {
    static const char *const programs[] = {
        "",
        "{{ messages }}",
        "{% for message in messages %}{{ message.role + ': ' + message.content }}{% endfor %}",
        "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n",
        "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' }}\n{{ 'x' }}",
        "{{ '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' }}",
        "{% macro x() %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' "
        "}}{% endmacro %}",
        "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>' + message.content }}",
        "{{ '[INST] ' + message.content }}",
        "{{ '[INST] <<SYS>>' }}",
        "{{ 'unclosed",
        "{% unclosed",
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(programs); i++) {
        struct chat_template *c;
        struct diag d = {0};
        int rc = chat_template_parse(&d, "x.jinja", programs[i], strlen(programs[i]), "", "", &c);
        if (rc == QN_OK) print_error("accepted: %s\n", programs[i]);
        assert_true(rc == QN_EUNSUPPORTED || rc == QN_EFORMAT);
        assert_null(c);
        assert_non_null(strstr(d.message, "x.jinja"));
        if (strchr(programs[i], '<') == NULL && rc == QN_EUNSUPPORTED)
            assert_non_null(strstr(d.message, "--chat-template NAME"));
    }
    struct chat_template *c;
    struct diag d = {0};
    assert_int_equal(chat_template_named(&d, "vicuna", NULL, NULL, &c), QN_EINVAL);
    assert_non_null(strstr(d.message, "mistral-tekken"));
}

static void write_file(const char *dir, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* The form that the directory gives, or the code of the error. */
static int open_form(const char *dir, const char *name, const char **form, struct diag *d) {
    struct chat_template *c;
    int rc = chat_template_open(d, dir, name, &c);
    if (rc == QN_OK) *form = chat_template_form(c);
    chat_template_free(c);
    return rc;
}

/* No program, one in the config, a list of them, a file of its own, a name: each wins over those
 * before it. */
static void directories(void **state) {
    char dir[] = "/tmp/quern-chat-XXXXXX", path[300];
    const char *form = "";
    struct diag d = {0};
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(open_form(dir, NULL, &form, &d), QN_ENOENT);
    assert_non_null(strstr(d.message, "--chat-template NAME"));
    write_file(dir, "tokenizer_config.json",
               "{\"chat_template\":\"{{ '[INST] ' + message.content + '[/INST]' }}"
               "{{ message.content + eos_token }}\"}");
    assert_int_equal(open_form(dir, NULL, &form, NULL), QN_OK);
    assert_string_equal(form, "mistral");
    write_file(dir, "tokenizer_config.json",
               "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"x\"},{\"name\":\"default\","
               "\"template\":\"{{ '<|im_start|>' + message.role + '\\n' + message.content + "
               "'<|im_end|>' }}\"}],\"bos_token\":{\"content\":\"<b>\"}}");
    assert_int_equal(open_form(dir, NULL, &form, NULL), QN_OK);
    assert_string_equal(form, "chatml");
    write_file(dir, "chat_template.jinja",
               "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + "
               "message.content + '<|eot_id|>' }}\n");
    assert_int_equal(open_form(dir, NULL, &form, NULL), QN_OK);
    assert_string_equal(form, "llama3");
    assert_int_equal(open_form(dir, "llama2", &form, NULL), QN_OK);
    assert_string_equal(form, "llama2");
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    unlink(path);
    rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compare_golden),
        cmocka_unit_test(names_stand_for_programs),
        cmocka_unit_test(others_are_refused),
        cmocka_unit_test(directories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Answers taken apart: a corpus of outputs of every form, each whole, byte by byte, and cut at
 * every place; what the pieces say is the same. */
#include "chat/answer.h"

#include "base/checked.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": "
    "\"integer\"}, \"sure\": {\"type\": \"boolean\"}, \"list\": {\"type\": \"array\"}, \"maybe\": "
    "{\"type\": [\"string\", \"null\"]}}}}}, {\"type\": \"function\", \"function\": {\"name\": "
    "\"time.now\"}}, {\"type\": \"function\", \"function\": {\"name\": \"f\"}}]";

/* What the pieces say: thoughts in <>, calls as {name arguments}, text as it is. */
static void show(const struct answer *a, enum piece_kind *last, struct strbuf *out) {
    size_t n;
    const struct piece *pieces = answer_pieces(a, &n);
    for (size_t i = 0; i < n; i++) {
        const enum piece_kind kind = pieces[i].kind;
        const bool in_call = *last == PIECE_CALL || *last == PIECE_ARGUMENTS;
        if (kind != *last || kind == PIECE_CALL) {
            if (*last == PIECE_REASONING) strbuf_char(out, '>');
            if (in_call && kind != PIECE_ARGUMENTS) strbuf_char(out, '}');
            if (kind == PIECE_REASONING) strbuf_char(out, '<');
            if (kind == PIECE_CALL) strbuf_char(out, '{');
            if (kind == PIECE_ARGUMENTS) strbuf_char(out, ' ');
        }
        assert_true(kind == PIECE_CALL || pieces[i].n > 0);
        strbuf_add(out, answer_text(a) + pieces[i].first, pieces[i].n);
        *last = kind;
    }
}

static void close_shown(enum piece_kind last, struct strbuf *out) {
    if (last == PIECE_REASONING) strbuf_char(out, '>');
    if (last == PIECE_CALL || last == PIECE_ARGUMENTS) strbuf_char(out, '}');
    strbuf_str(out, "");
}

struct answer_case {
    const char *form, *thinks, *text, *shown;
    const char *prompt;
    size_t max_calls;
};

/* Reads text[0, n) in pieces that end at cuts[n_cuts]. */
static void read_cut(const struct answer_case *c, const size_t *cuts, size_t n_cuts,
                     struct strbuf *out) {
    struct diag d = {0};
    struct answer *a;
    enum piece_kind last = 0;
    const struct answer_params p = {.form = c->form ? tool_form_find(c->form) : NULL,
                                    .thinks = c->thinks ? reasoning_form_find(c->thinks) : NULL,
                                    .tools = tools,
                                    .prompt = c->prompt,
                                    .max_calls = c->max_calls};
    assert_int_equal(answer_new(&d, &p, &a), QN_OK);
    size_t from = 0;
    for (size_t i = 0; i <= n_cuts; i++) {
        const size_t to = i < n_cuts ? cuts[i] : strlen(c->text);
        assert_int_equal(answer_read(&d, a, c->text + from, to - from, i == n_cuts), QN_OK);
        show(a, &last, out);
        from = to;
    }
    close_shown(last, out);
    answer_free(a);
}

static void check_cut(const struct answer_case *c, const size_t *cuts, size_t n_cuts) {
    struct strbuf out = {0};
    read_cut(c, cuts, n_cuts, &out);
    if (strcmp(strbuf_text(&out), c->shown) != 0)
        fail_msg("%s %s, %zu cuts:\n%s\nwant %s\nhave %s", c->form ? c->form : "-",
                 c->thinks ? c->thinks : "-", n_cuts, c->text, c->shown, strbuf_text(&out));
    strbuf_fini(&out);
}

/* Forms have no names here but those of tool_form_find: of Mistral's two, both are read alike. */
static const struct answer_case cases[] = {
    /* Without forms nothing is looked at. */
    {NULL, NULL, " <think>x</think> <tool_call> ", " <think>x</think> <tool_call> ", NULL, 0},
    {"hermes", NULL, "", "", NULL, 0},
    {"hermes", NULL, " \n", " \n", NULL, 0},
    {"hermes", NULL, "Hello <b>you</b>\n", "Hello <b>you</b>\n", NULL, 0},

    /* Hermes. */
    {"hermes", NULL,
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
     "{weather {\"city\": \"Oslo\"}}", NULL, 0},
    {"hermes", NULL,
     "Let me "
     "see.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</"
     "tool_call>\n<tool_call>{\"name\":\"time.now\"}</tool_call>\n",
     "Let me see.{f {}}{time.now {}}", NULL, 0},
    {"hermes", NULL,
     "<tool_call>{\"arguments\": {\"a\": \"}\\\"]\"}, \"id\": [1, {\"x\": \"]\"}], \"name\": "
     "\"f\", \"n\": null}</tool_call> Done. ",
     "{f {\"a\": \"}\\\"]\"}}Done. ", NULL, 0},
    {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, 2",
     "{f {\"a\": [1, 2}", NULL, 0},
    {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "{f {\"a\": 1}}",
     NULL, 0},
    {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call> x",
     "{f {\"a\": 1}}x", NULL, 0},
    {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"parameters\": {}}}</tool_call>",
     "{f {}}}</tool_call>", NULL, 0},
    {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": {}} </tool_x>", "{f {}}</tool_x>",
     NULL, 0},
    {"hermes", NULL, "a <tool_call> b", "a <tool_call> b", NULL, 0},
    {"hermes", NULL, "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
     "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>", NULL, 0},
    {"hermes", NULL, "<tool_call>{\"name\": \"weathe\", \"arguments\": {}}</tool_call>",
     "<tool_call>{\"name\": \"weathe\", \"arguments\": {}}</tool_call>", NULL, 0},
    {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>", NULL, 0},
    {"hermes", NULL, "<tool_call><tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>{f {}}",
     NULL, 0},
    {"hermes", NULL, "<<tool_call>{\"name\": \"f\"}</tool_call><tool_", "<{f {}}<tool_", NULL, 0},
    {"hermes", NULL, "The mark is <tool_call", "The mark is <tool_call", NULL, 0},
    {"hermes", NULL, "<tool_call>{\"name\": \"f\"}</tool_call>{\"name\": \"f\"}",
     "{f {}}{\"name\": \"f\"}", NULL, 0},
    {"hermes", NULL,
     "<tool_call>{\"name\": \"f\"}</tool_call> and <tool_call>{\"name\": \"f\"}</tool_call>",
     "{f {}}and{f {}}", NULL, 0},
    {"hermes", NULL,
     "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"f\"}</tool_call>", "{f {}}",
     NULL, 1},
    {"hermes", NULL, "\xc3\xa4<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\xc3\xa4\"}}",
     "\xc3\xa4{f {\"a\":\"\xc3\xa4\"}}", NULL, 0},

    /* Llama 3. */
    {"llama3_json", NULL, "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}",
     "{weather {\"city\": \"Oslo\"}}", NULL, 0},
    {"llama3_json", NULL,
     " \n{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"time.now\", \"arguments\": {\"z\": "
     "1}}",
     "{f {}}{time.now {\"z\": 1}}", NULL, 0},
    {"llama3_json", NULL,
     "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "{f {}}", NULL,
     0},
    {"llama3_json", NULL, "Sure: <|python_tag|> {\"name\": \"f\"}", "Sure:{f {}}", NULL, 0},
    {"llama3_json", NULL, "Sure: {\"name\": \"f\", \"parameters\": {}}",
     "Sure: {\"name\": \"f\", \"parameters\": {}}", NULL, 0},
    {"llama3_json", NULL, "{\"name\": \"Ada\", \"parameters\": {}}",
     "{\"name\": \"Ada\", \"parameters\": {}}", NULL, 0},
    {"llama3_json", NULL, "{\"a\": {\"name\": \"f\"}, \"b\": 2}",
     "{\"a\": {\"name\": \"f\"}, \"b\": 2}", NULL, 0},
    {"llama3_json", NULL, "{{\"name\": \"f\"}", "{{\"name\": \"f\"}", NULL, 0},
    {"llama3_json", NULL, "{\"name\": \"f\", \"parameters\": {}}; x", "{f {}}; x", NULL, 0},
    {"llama3_json", NULL, "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\"}",
     "{f {}}; {\"name\": \"g\"}", NULL, 0},
    {"llama3_json", NULL, "{\"na", "{\"na", NULL, 0},

    /* Mistral. */
    {"mistral", NULL,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"time.now\", "
     "\"arguments\": {}, \"id\": \"abcdefghi\"}]",
     "{f {\"a\": 1}}{time.now {}}", NULL, 0},
    {"mistral", NULL, "[TOOL_CALLS]{\"name\": \"f\"} x", "{f {}}x", NULL, 0},
    {"mistral", NULL,
     "[TOOL_CALLS]weather[ARGS]{\"city\": \"[Oslo]\"}[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}",
     "{weather {\"city\": \"[Oslo]\"}}{f {}}", NULL, 0},
    {"mistral", NULL, "See. [TOOL_CALLS]time.now{\"a\": {}}", "See.{time.now {\"a\": {}}}", NULL,
     0},
    {"mistral", NULL, "[TOOL_CALLS] [1, 2]", "[TOOL_CALLS] [1, 2]", NULL, 0},
    {"mistral", NULL, "[TOOL_CALLS]nothing[ARGS]{}", "[TOOL_CALLS]nothing[ARGS]{}", NULL, 0},
    {"mistral", NULL, "[TOOL_CALLS]f[ARG]{}", "[TOOL_CALLS]f[ARG]{}", NULL, 0},
    {"mistral", NULL, "[TOOL_CALLS] [{\"name\": \"f\"}, x", "{f {}}, x", NULL, 0},
    {"mistral", NULL, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}", "{f {}}", NULL, 0},
    {"mistral", NULL, "a [TOOL] [b]", "a [TOOL] [b]", NULL, 0},

    /* Pythonic. */
    {"pythonic", NULL, "[weather(city=\"Oslo\", days=3, sure=True), f()]",
     "{weather {\"city\": \"Oslo\", \"days\": 3, \"sure\": true}}{f {}}", NULL, 0},
    {"pythonic", NULL,
     "[ time.now( a = 'it\\'s \"x\"]' , b = [1, -2.5e3, (None,)], c = {'k': {}, \"l\": false} ) "
     "]\n",
     "{time.now {\"a\": \"it's \\\"x\\\"]\", \"b\": [1, -2.5e3, [null]], \"c\": {\"k\": {}, \"l\": "
     "false}}}",
     NULL, 0},
    {"pythonic", NULL, "<|python_start|>[f(a=\"\\u00e9\\x41\\U0001f600\")]<|python_end|>",
     "{f {\"a\": \"\\u00e9\\u0041\\ud83d\\ude00\"}}", NULL, 0},
    {"pythonic", NULL, "x <|python_start|>[f()] y", "x{f {}}y", NULL, 0},
    {"pythonic", NULL, "[1] says so.", "[1] says so.", NULL, 0},
    {"pythonic", NULL, "[f is a letter]", "[f is a letter]", NULL, 0},
    {"pythonic", NULL, "[f(1)]", "[f(1)]", NULL, 0},
    {"pythonic", NULL, "[f(a=1), and so on]", "[f(a=1), and so on]", NULL, 0},
    {"pythonic", NULL, "[f(a=1", "[f(a=1", NULL, 0},
    {"pythonic", NULL, "[f(a=01)]", "[f(a=01)]", NULL, 0},
    {"pythonic", NULL, "Use [f()]", "Use [f()]", NULL, 0},
    {"pythonic", NULL, "[]", "[]", NULL, 0},

    /* Qwen3 XML. */
    {"qwen3_xml", NULL,
     "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</"
     "parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
     "{weather {\"city\": \"Oslo\", \"days\": 3}}", NULL, 0},
    {"qwen3_xml", NULL,
     "I "
     "look.\n<function=weather><parameter=city>\n\n\"a\"\t<b>\n</para\n\n</"
     "parameter><parameter=sure>True</parameter></function> x",
     "I look.{weather {\"city\": \"\\n\\\"a\\\"\\t<b>\\n</para\\n\", \"sure\": true}}x", NULL, 0},
    {"qwen3_xml", NULL,
     "<tool_call>\n<function=f>\n</function>\n</"
     "tool_call>\n<tool_call>\n<function=time.now>\n<parameter=any>\n{\"a\": "
     "[1]}\n</parameter>\n<parameter=b>\n{a\n</parameter>\n</function>\n</tool_call>",
     "{f {}}{time.now {\"any\": {\"a\": [1]}, \"b\": \"{a\"}}", NULL, 0},
    {"qwen3_xml", NULL,
     "<tool_call><function=weather><parameter=maybe>\nnull\n</parameter><parameter=city>\n12\n</"
     "parameter></function>",
     "{weather {\"maybe\": null, \"city\": \"12\"}}", NULL, 0},
    {"qwen3_xml", NULL,
     "<tool_call><function=weather><parameter=maybe>\n12\n</parameter><parameter=list>\n[1,\n</"
     "parameter></function></tool_call>",
     "{weather {\"maybe\": \"12\", \"list\": \"[1,\"}}", NULL, 0},
    {"qwen3_xml", NULL, "<tool_call><function=g></function></tool_call>",
     "<tool_call><function=g></function></tool_call>", NULL, 0},
    {"qwen3_xml", NULL, "<tool_call>{\"name\": \"f\"}</tool_call>",
     "<tool_call>{\"name\": \"f\"}</tool_call>", NULL, 0},
    {"qwen3_xml", NULL, "<tool_call><function=f><param>x", "{f {}}<param>x", NULL, 0},
    {"qwen3_xml", NULL, "<tool_call><function=weather><parameter=city>Os",
     "{weather {\"city\": \"Os}", NULL, 0},
    {"qwen3_xml", NULL, "1 <function 2", "1 <function 2", NULL, 0},

    /* Thoughts. */
    {NULL, "qwen3", "<think>\nHm, 1 < 2.\n\nSo.\n</think>\n\nYes.\n", "<Hm, 1 < 2.\n\nSo.>Yes.\n",
     NULL, 0},
    {NULL, "qwen3", "\n <think> </think>Yes", "Yes", NULL, 0},
    {NULL, "qwen3", " No <think>x</think>", " No <think>x</think>", NULL, 0},
    {NULL, "qwen3", "<thin", "<thin", NULL, 0},
    {NULL, "qwen3", "<think>a </th", "<a </th>", NULL, 0},
    {NULL, "qwen3", "a </think> b", "a </think> b", "...<think>\n\n</think>\n\n", 0},
    {NULL, "qwen3", "a </think> b", "<a>b", "...<think>\n", 0},
    {NULL, "qwen3", "<think>a</think> b", "<a>b", "say <think>: \n", 0},
    {NULL, "deepseek_r1", "a </think> b", "<a>b", NULL, 0},
    {NULL, "deepseek_r1", "\n<think>a < <think></think> b</think>", "<a < <think>>b</think>", NULL,
     0},
    {NULL, "deepseek_r1", "never ends", "<never ends>", "x", 0},
    {NULL, "deepseek_r1", "b", "b", "<think></think>\n", 0},
    {NULL, "mistral", "[THINK]a[/THINK]b", "<a>b", NULL, 0},
    {"hermes", "qwen3",
     "<think>\n<tool_call> is the mark\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
     "{}}\n</tool_call>",
     "<<tool_call> is the mark>{f {}}", NULL, 0},
    {"llama3_json", "qwen3", "<think>a</think>{\"name\": \"f\"}", "<a>{f {}}", NULL, 0},
    {"hermes", "qwen3", "<tool_call>{\"name\": \"f\"}</tool_call>", "{f {}}", NULL, 0},
    {"pythonic", "mistral", "[f()]", "{f {}}", NULL, 0},
    {"mistral", "mistral", "[TOOL_CALLS]f{}", "{f {}}", NULL, 0},
};

static void test_cut_anywhere(void **state) {
    size_t cuts[600];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const size_t n = strlen(cases[i].text);
        assert_true(n < COUNT_OF(cuts));
        check_cut(&cases[i], NULL, 0);
        for (size_t k = 0; k < n; k++) cuts[k] = k + 1;
        check_cut(&cases[i], cuts, n);
        for (size_t first = 0; first <= n; first++)
            for (size_t second = first; second <= n; second++)
                check_cut(&cases[i], (const size_t[]){first, second}, 2);
    }
}

/* Every beginning of every text, as an answer that is cut off has it: it says something, and the
 * same byte by byte. */
static void test_cut_off(void **state) {
    size_t cuts[600];
    char text[600];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (size_t n = 0; n < strlen(cases[i].text); n++) {
            struct strbuf whole = {0};
            struct answer_case c = cases[i];
            memcpy(text, c.text, n);
            text[n] = '\0';
            c.text = text;
            read_cut(&c, NULL, 0, &whole);
            c.shown = strbuf_text(&whole);
            for (size_t k = 0; k < n; k++) cuts[k] = k + 1;
            check_cut(&c, cuts, n);
            strbuf_fini(&whole);
        }
}

static void test_tables(void **state) {
    static const struct {
        const char *chat_template, *form, *thinks;
    } signs[] = {{"{{ '<tool_call>' }} \"arguments\"", "hermes", NULL},
                 {"<tool_call> <arg_key>", NULL, NULL},
                 {"<tool_call> <function= </think>", "qwen3_xml", "qwen3"},
                 {"[TOOL_CALLS] [THINK]a[/THINK]", "mistral", "mistral"},
                 {"<|python_tag|>", "llama3_json", NULL},
                 {"<|python_start|> {\"name\": function name", "pythonic", NULL},
                 {"<|im_start|>", NULL, NULL}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(signs); i++) {
        const struct tool_form *f = tool_form_of(signs[i].chat_template);
        const struct reasoning_form *r = reasoning_form_of(signs[i].chat_template);
        assert_string_equal(f ? f->name : "-", signs[i].form ? signs[i].form : "-");
        assert_string_equal(r ? r->name : "-", signs[i].thinks ? signs[i].thinks : "-");
    }
    assert_ptr_equal(tool_form_named("mistral", "[ARGS]"), &form_mistral_args);
    assert_ptr_equal(tool_form_named("mistral", ""), &form_mistral);
    assert_ptr_equal(tool_form_find("qwen3_coder"), &form_qwen3_xml);
    assert_null(tool_form_find("nothing"));
}

static void test_refused(void **state) {
    static const struct {
        const char *tools, *message;
    } wrong[] = {
        {"{}", "tools: want an array"},
        {"[{}]", "tools[0].function: want an object"},
        {"[{\"function\": {\"name\": \"a b\"}}]", "tools[0].function.name: want 1 to 128"},
        {"[{\"function\": {\"name\": \"a\"}}, {\"function\": {\"name\": \"a\"}}]",
         "tools[1].function.name: 'a' is there twice"},
        {"[{\"function\": {\"name\": \"a\", \"parameters\": {\"type\": \"string\"}}}]",
         "tools[0].function.parameters.type: want 'object'"},
        {"[{\"function\": {\"name\": \"a\", \"parameters\": 1}}]",
         "tools[0].function.parameters: want"},
        {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
         "tools: want at most 64 values inside"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct diag d = {0};
        struct answer *a;
        const struct answer_params p = {.form = &form_hermes, .tools = wrong[i].tools};
        assert_int_not_equal(answer_new(&d, &p, &a), QN_OK);
        if (!strstr(d.message, wrong[i].message)) fail_msg("%s", d.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

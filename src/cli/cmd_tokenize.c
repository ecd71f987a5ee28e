/* cmd_tokenize.c - quern tokenize: text to token ids. */
#include "cli/chat_prompt.h"
#include "cli/jsonl.h"

#include <stdlib.h>
#include <string.h>

static json_t *ids_json(const int32_t *ids, size_t n) {
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(array, json_integer(ids[i]));
    return array;
}

/* `lines`: the file of the text; NULL: it is not from a file. */
static int tokenize(const struct options *o, const qn_tokenizer *t, const struct jsonl *lines,
                    const char *text, size_t n) {
    int32_t *ids;
    size_t n_ids;
    qn_error error;
    const bool json = lines || cli_wants_json(o);
    int special = !options_flag(o, OPT_NO_SPECIAL_TOKENS);
    if (qn_tokenize(t, text, n, special, &ids, &n_ids, &error) != QN_OK)
        return lines ? jsonl_fail(lines, error.message) : cli_failed(&error);
    int rc = EXIT_OK;
    if (json) {
        rc = cli_print_json(json_pack("{s:o}", "ids", ids_json(ids, n_ids)));
    } else {
        for (size_t i = 0; i < n_ids; i++) printf("%s%d", i ? "," : "", ids[i]);
        putchar('\n');
    }
    qn_free(ids);
    return rc;
}

static int tokenize_lines(const struct options *o, const qn_tokenizer *t) {
    struct jsonl lines;
    json_t *line;
    int rc = jsonl_open(&lines, "-");
    while (rc == EXIT_OK && (rc = jsonl_next(&lines, &line)) == EXIT_OK && line) {
        json_t *text = json_object_get(line, "text");
        if (json_is_string(text))
            rc = tokenize(o, t, &lines, json_string_value(text), json_string_length(text));
        else
            rc = jsonl_fail(&lines, "text: want a string");
        json_decref(line);
    }
    jsonl_close(&lines);
    return rc;
}

/* One conversation: its prompt, and the prompt's ids. */
static int tokenize_chat(const qn_tokenizer *t, const struct chat_prompt *p,
                         const struct jsonl *line) {
    char *text = NULL;
    size_t n = 0, n_ids = 0;
    int32_t *ids = NULL;
    qn_error error;
    if (strlen(line->line) != line->n)
        return cli_error("stdin: line %lu: a NUL in JSON", line->number);
    int rc = chat_prompt_render(p, line->line, &text, &n, &error);
    if (rc == QN_OK) rc = qn_tokenize(t, text, n, 0, &ids, &n_ids, &error);
    if (rc == QN_OK)
        rc = cli_print_json(
            json_pack("{s:o, s:o}", "prompt", json_stringn(text, n), "ids", ids_json(ids, n_ids)));
    else
        rc = cli_error("stdin: line %lu: %s", line->number, error.message);
    qn_free(text);
    qn_free(ids);
    return rc;
}

static int tokenize_chats(const struct options *o, const char *dir, const qn_tokenizer *t) {
    struct chat_prompt p;
    struct jsonl lines;
    int rc = chat_prompt_open(o, dir, &p);
    if (rc != EXIT_OK) return rc;
    rc = jsonl_open(&lines, "-");
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (rc == EXIT_OK && (rc = jsonl_line(&lines)) == EXIT_OK && lines.n > 0)
        rc = tokenize_chat(t, &p, &lines);
    jsonl_close(&lines);
    chat_prompt_close(&p);
    return rc;
}

int cmd_tokenize(const struct options *o) {
    const char *dir = options_text(o, OPT_TOKENIZER, NULL);
    const char *prompt = options_text(o, OPT_PROMPT, NULL);
    const char *file = options_text(o, OPT_PROMPT_FILE, NULL);
    if (!dir) return cli_usage("which tokenizer? quern tokenize --tokenizer DIR");
    if (options_flag(o, OPT_JSONL) + options_flag(o, OPT_CHAT) + !!prompt + !!file != 1)
        return cli_usage("give one of --jsonl, --chat, --prompt and --prompt-file");
    qn_tokenizer *t;
    qn_error error;
    char *text = NULL;
    size_t n = 0;
    if (file) {
        int rc = cli_read_file(file, &text, &n);
        if (rc != EXIT_OK) return rc;
    }
    int rc = EXIT_OK;
    if (qn_tokenizer_open(dir, &t, &error) != QN_OK)
        rc = cli_failed(&error);
    else {
        if (prompt)
            rc = tokenize(o, t, NULL, prompt, strlen(prompt));
        else if (file)
            rc = tokenize(o, t, NULL, text, n);
        else if (options_flag(o, OPT_CHAT))
            rc = tokenize_chats(o, dir, t);
        else
            rc = tokenize_lines(o, t);
        qn_tokenizer_close(t);
    }
    free(text);
    return rc;
}

/* cmd_detokenize.c - quern detokenize: token ids to text. */
#include "cli/jsonl.h"

#include <stdlib.h>

/* `lines`: the file of the ids; NULL: they are not from a file. */
static int detokenize(const struct options *o, const qn_tokenizer *t, const struct jsonl *lines,
                      const int32_t *ids, size_t n) {
    char *text;
    size_t n_text;
    qn_error error;
    const bool json = lines || cli_wants_json(o);
    int skip = options_flag(o, OPT_SKIP_SPECIAL_TOKENS);
    if (qn_detokenize(t, ids, n, skip, &text, &n_text, &error) != QN_OK)
        return lines ? jsonl_fail(lines, error.message) : cli_failed(&error);
    int rc = EXIT_OK;
    if (json)
        rc = cli_print_json(json_pack("{s:o}", "text", cli_json_text(text, n_text)));
    else
        fwrite(text, 1, n_text, stdout), putchar('\n');
    qn_free(text);
    return rc;
}

static int detokenize_lines(const struct options *o, const qn_tokenizer *t) {
    struct jsonl lines;
    json_t *line;
    int rc = jsonl_open(&lines, "-");
    while (rc == EXIT_OK && (rc = jsonl_next(&lines, &line)) == EXIT_OK && line) {
        json_t *array = json_object_get(line, "ids");
        int32_t *ids = NULL;
        size_t n = 0;
        struct diag d = {0};
        if (!json_is_array(array))
            rc = jsonl_fail(&lines, "ids: want an array");
        else if (jsonl_ids(&d, "ids", array, &ids, &n) != QN_OK)
            rc = jsonl_fail(&lines, d.message);
        if (rc == EXIT_OK) rc = detokenize(o, t, &lines, ids, n);
        free(ids);
        json_decref(line);
    }
    jsonl_close(&lines);
    return rc;
}

/* The ids of --prompt-ids as 32-bit numbers. */
static int option_ids(const struct options *o, int32_t **ids, size_t *n) {
    const struct option_value *v = &o->values[OPT_PROMPT_IDS];
    *n = v->n;
    *ids = malloc((v->n ? v->n : 1) * sizeof **ids);
    if (!*ids) return cli_error("out of memory");
    for (size_t i = 0; i < v->n; i++) {
        if (v->integers[i] > INT32_MAX)
            return cli_error("--prompt-ids: %lld is not a token id", (long long)v->integers[i]);
        (*ids)[i] = (int32_t)v->integers[i];
    }
    return EXIT_OK;
}

int cmd_detokenize(const struct options *o) {
    const char *dir = options_text(o, OPT_TOKENIZER, NULL);
    if (!dir) return cli_usage("which tokenizer? quern detokenize --tokenizer DIR");
    if (options_flag(o, OPT_JSONL) + o->values[OPT_PROMPT_IDS].given != 1)
        return cli_usage("give one of --jsonl and --prompt-ids");
    qn_tokenizer *t;
    qn_error error;
    if (qn_tokenizer_open(dir, &t, &error) != QN_OK) return cli_failed(&error);
    int rc;
    if (options_flag(o, OPT_JSONL))
        rc = detokenize_lines(o, t);
    else {
        int32_t *ids = NULL;
        size_t n = 0;
        rc = option_ids(o, &ids, &n);
        if (rc == EXIT_OK) rc = detokenize(o, t, NULL, ids, n);
        free(ids);
    }
    qn_tokenizer_close(t);
    return rc;
}

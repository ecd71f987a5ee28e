#include "cli/prompts.h"

#include "base/array.h"
#include "base/checked.h"
#include "cli/jsonl.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPTS = 1 << 20 };

/* Fields of a line that are not about sampling. */
static const char *const line_fields[] = {"prompt", "prompt_ids", "custom_id"};

static void prompt_fini(struct prompt *p) {
    free(p->text);
    free(p->ids);
    free(p->refusal);
    json_decref(p->fields);
}

void prompts_fini(struct prompts *p) {
    for (size_t i = 0; i < p->n; i++) prompt_fini(&p->items[i]);
    ARRAY_FINI(p);
}

int prompt_refuse(struct prompt *p, const char *reason) {
    if (!p->refusal) p->refusal = strdup(reason);
    return p->refusal ? EXIT_OK : cli_error("out of memory");
}

static int push(struct prompts *prompts, struct prompt p) {
    if (ARRAY_PUSH(NULL, prompts, p) == QN_OK) return EXIT_OK;
    prompt_fini(&p);
    return cli_error("out of memory");
}

/* ---- a line ------------------------------------------------------------------------------- */

static int take_text(struct diag *d, const json_t *text, struct prompt *p) {
    p->n_text = json_string_length(text);
    p->text = malloc(p->n_text + 1);
    if (!p->text) return fail_nomem(d, p->n_text, "a prompt");
    memcpy(p->text, json_string_value(text), p->n_text + 1);
    return p->n_text > 0 ? QN_OK : fail(d, QN_EINVAL, "prompt: empty, want at least one token");
}

static int take_line(struct diag *d, struct prompt *p) {
    const json_t *text = json_object_get(p->fields, "prompt");
    const json_t *ids = json_object_get(p->fields, "prompt_ids");
    struct sampling *s = malloc(sizeof *s); /* 4 KB */
    if (!s) return fail_nomem(d, sizeof *s, "a prompt");
    *s = (struct sampling){0};
    qn_sampling_params_init(&s->params, NULL);
    int rc = sampling_from_line(d, p->fields, line_fields, COUNT_OF(line_fields), s);
    sampling_fini(s);
    free(s);
    TRY(rc);
    if (json_is_array(ids) && !text) return jsonl_ids(d, "prompt_ids", ids, &p->ids, &p->n_ids);
    if (json_is_string(text) && !ids) return take_text(d, text, p);
    return fail(d, QN_EINVAL, "want either prompt (a string) or prompt_ids (an array)");
}

static int push_line(struct prompts *prompts, unsigned long number, json_t *line, struct diag *d) {
    struct prompt p = {.line = number, .fields = line};
    int rc = EXIT_OK;
    if (d->code == QN_OK) (void)take_line(d, &p); /* an error becomes the line's result */
    if (d->code != QN_OK) rc = prompt_refuse(&p, d->message);
    if (rc == EXIT_OK)
        prompts->max_logprobs = MAX(prompts->max_logprobs, sampling_logprobs_of_line(line));
    if (rc == EXIT_OK) return push(prompts, p);
    prompt_fini(&p);
    return rc;
}

static int from_file(const char *path, struct prompts *prompts) {
    struct jsonl lines;
    int rc = jsonl_open(&lines, path);
    while (rc == EXIT_OK) {
        struct diag d = {0};
        json_t *line;
        const int read = jsonl_read(&d, &lines, &line);
        if (read == QN_EIO) rc = cli_error("%s", d.message);
        if (read != QN_EFORMAT && !line) break;
        if (prompts->n == MAX_PROMPTS) {
            json_decref(line);
            rc = cli_error("%s: more than %d prompts", path, MAX_PROMPTS);
        } else {
            rc = push_line(prompts, lines.number, line, &d);
        }
    }
    jsonl_close(&lines);
    if (rc == EXIT_OK && prompts->n == 0) rc = cli_error("%s: no prompts", path);
    return rc;
}

int prompt_sampling(struct diag *d, const struct prompt *p, const struct sampling *base,
                    struct sampling *s) {
    sampling_copy(s, base);
    if (!p->fields) return QN_OK;
    return sampling_from_line(d, p->fields, line_fields, COUNT_OF(line_fields), s);
}

/* ---- options ------------------------------------------------------------------------------ */

static int from_ids(const struct option_value *v, struct prompts *prompts) {
    struct prompt p = {.n_ids = v->n};
    p.ids = malloc((v->n ? v->n : 1) * sizeof *p.ids);
    if (!p.ids) return cli_error("out of memory");
    for (size_t i = 0; i < v->n; i++) {
        if (v->integers[i] > INT32_MAX) {
            free(p.ids);
            return cli_error("--prompt-ids: %lld is not a token id", (long long)v->integers[i]);
        }
        p.ids[i] = (int32_t)v->integers[i];
    }
    return push(prompts, p);
}

int prompts_read(const struct options *o, struct prompts *prompts) {
    const char *text = options_text(o, OPT_PROMPT, NULL);
    const char *file = options_text(o, OPT_PROMPT_FILE, NULL);
    const char *many = options_text(o, OPT_PROMPTS_FILE, NULL);
    const struct option_value *ids = &o->values[OPT_PROMPT_IDS];
    if (!!text + !!file + !!many + ids->given != 1)
        return cli_usage("give one of --prompt, --prompt-file, --prompt-ids and --prompts-file");
    if (ids->given && options_flag(o, OPT_NO_SPECIAL_TOKENS))
        return cli_usage("--no-special-tokens: has no effect on --prompt-ids, which are taken as "
                         "they are");
    if (many) return from_file(many, prompts);
    if (ids->given) return from_ids(ids, prompts);
    struct prompt p = {0};
    if (file) {
        int rc = cli_read_file(file, &p.text, &p.n_text);
        return rc == EXIT_OK ? push(prompts, p) : rc;
    }
    p.text = strdup(text);
    p.n_text = strlen(text);
    return p.text ? push(prompts, p) : cli_error("out of memory");
}

#include "model/generation_config.h"

#include "base/jsonio.h"
#include "model/hf_config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static const struct generation_config defaults = {
    .do_sample = true,
    .temperature = 1,
    .top_p = 1,
    .repetition_penalty = 1,
};

/* A number in [low, high], or in (low, high] if `open_low`. */
static int number(struct diag *d, const char *file, const json_t *root, const char *key, double low,
                  double high, bool open_low, float *out) {
    double v;
    TRY(jsonio_double(d, file, root, key, *out, &v));
    /* As the float that it will be: a tiny double is 0 by then. */
    if (v < low || v > high || (open_low && (float)v <= (float)low))
        return fail(d, QN_EFORMAT, "%s: %s: want a number %s %g up to %g, have %g", file, key,
                    open_low ? "above" : "from", low, high, v);
    *out = (float)v;
    return QN_OK;
}

static int parse(struct diag *d, const char *file, const json_t *root, uint32_t vocab,
                 struct generation_config *c) {
    int64_t top_k;
    if (!json_is_object(root)) return fail(d, QN_EFORMAT, "%s: want a JSON object", file);
    c->found = true;
    /* transformers' default is greedy, vLLM's is to sample: only an explicit false counts. */
    TRY(jsonio_bool(d, file, root, "do_sample", true, &c->do_sample));
    TRY(number(d, file, root, "temperature", 0, 100, false, &c->temperature));
    TRY(number(d, file, root, "top_p", 0, 1, true, &c->top_p));
    TRY(number(d, file, root, "min_p", 0, 1, false, &c->min_p));
    TRY(number(d, file, root, "repetition_penalty", 0, 100, true, &c->repetition_penalty));
    TRY(jsonio_int(d, file, root, "top_k", -1, INT32_MAX, 0, &top_k));
    c->top_k = top_k > 0 ? (int32_t)top_k : 0;
    if (!c->do_sample) c->temperature = 0;
    return hf_config_token_ids(d, file, root, "eos_token_id", vocab, c->eos, &c->n_eos);
}

int generation_config_parse(struct diag *d, const char *file, const char *text, size_t n,
                            uint32_t vocab, struct generation_config *c) {
    json_t *root;
    *c = defaults;
    TRY(jsonio_parse(d, file, text, n, &root));
    int rc = parse(d, file, root, vocab, c);
    json_decref(root);
    return rc;
}

int generation_config_load(struct diag *d, const char *dir, uint32_t vocab,
                           struct generation_config *c) {
    json_t *root;
    struct stat s;
    char *path;
    *c = defaults;
    if (asprintf(&path, "%s/generation_config.json", dir) < 0) return fail_nomem(d, 0, "a path");
    int rc = QN_OK;
    if (stat(path, &s) == 0 || errno != ENOENT) {
        rc = jsonio_load(d, path, HF_CONFIG_MAX_BYTES, &root);
        if (rc == QN_OK) {
            rc = parse(d, path, root, vocab, c);
            json_decref(root);
        }
    }
    free(path);
    return rc;
}

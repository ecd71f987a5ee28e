#include "model/generation_config.h"

#include "base/jsonio.h"
#include "model/hf_config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static void set_defaults(struct generation_config *c) {
    *c = (struct generation_config){.do_sample = true};
    for (int i = 0; i < N_SAMPLING_PARAMS; i++) c->sampling[i] = sampling_table[i].neutral;
}

static int read_number(struct diag *d, const char *file, const json_t *root,
                       const struct sampling_row *row, double *out) {
    const bool above = row->kind == SAMPLING_ABOVE;
    double v;
    TRY(jsonio_double(d, file, root, row->name, *out, &v));
    /* Compares as float, the later type: a tiny double is 0 then. */
    if (v < row->low || v > row->high || (above && (float)v <= (float)row->low))
        return fail(d, QN_EFORMAT, "%s: %s: want a number %s %g up to %g, have %g", file, row->name,
                    above ? "above" : "from", row->low, row->high, v);
    *out = (float)v;
    return QN_OK;
}

static int read_int(struct diag *d, const char *file, const json_t *root,
                    const struct sampling_row *row, double *out) {
    int64_t v;
    TRY(jsonio_int(d, file, root, row->name, (int64_t)row->low, (int64_t)row->high, (int64_t)*out,
                   &v));
    *out = (double)v;
    return QN_OK;
}

static int parse(struct diag *d, const char *file, const json_t *root, uint32_t vocab,
                 struct generation_config *c) {
    if (!json_is_object(root)) return fail(d, QN_EFORMAT, "%s: want a JSON object", file);
    c->found = true;
    /* transformers' default is greedy, vLLM's is to sample: only an explicit false counts. */
    TRY(jsonio_bool(d, file, root, "do_sample", true, &c->do_sample));
    for (int i = 0; i < N_SAMPLING_PARAMS; i++) {
        const struct sampling_row *row = &sampling_table[i];
        if (!row->model) continue;
        TRY((row->kind == SAMPLING_INT ? read_int : read_number)(d, file, root, row,
                                                                 &c->sampling[i]));
    }
    if (!c->do_sample) c->sampling[SAMPLING_PARAM_TEMPERATURE] = 0;
    return hf_config_token_ids(d, file, root, "eos_token_id", vocab, c->eos, &c->n_eos);
}

int generation_config_parse(struct diag *d, const char *file, const char *text, size_t n,
                            uint32_t vocab, struct generation_config *c) {
    json_t *root;
    set_defaults(c);
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
    set_defaults(c);
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

/* generation_config.h - a model's own default sampling (generation_config.json; may be missing). */
#ifndef QN_MODEL_GENERATION_CONFIG_H
#define QN_MODEL_GENERATION_CONFIG_H

#include "base/sampling.h"
#include "graph/model_spec.h"

#include <stdbool.h>
#include <stddef.h>

/* Values for requests that give none. Without a file, or for fields that it leaves out: plain
 * sampling (temperature 1, everything else off), like vLLM. */
struct generation_config {
    bool found;                         /* the file exists */
    bool do_sample;                     /* false with a file: greedy; temperature is 0 then */
    double sampling[N_SAMPLING_PARAMS]; /* for parameters marked `model` in sampling.def; the others
                                         * are neutral */
    uint32_t n_eos;
    int32_t eos[SPEC_MAX_EOS]; /* ids below vocab that end a generation, besides the spec's */
};

/* Reads <dir>/generation_config.json; no file gives the defaults. Errors: mapfile_open's,
 * QN_EFORMAT naming file and field. */
int generation_config_load(struct diag *d, const char *dir, uint32_t vocab,
                           struct generation_config *c);
int generation_config_parse(struct diag *d, const char *file, const char *text, size_t n,
                            uint32_t vocab, struct generation_config *c);

#endif

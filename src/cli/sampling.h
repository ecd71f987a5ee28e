/* sampling.h - the sampling parameters of a request, from options and from the fields of a prompts
 * file. One table has all fields; an option is one of them under its own name.
 */
#ifndef QN_CLI_SAMPLING_H
#define QN_CLI_SAMPLING_H

#include "cli/cli.h"

enum { SAMPLING_MAX_N = 128 };

/* The parameters with the memory they point to. Copy with sampling_copy, not by assignment. The
 * strings belong to the options or the JSON object, which must live as long. */
struct sampling {
    qn_sampling_params params;
    uint32_t n; /* outputs of one prompt */
    const char *stop[QN_MAX_STOP];
    int32_t stop_ids[QN_MAX_STOP_TOKEN_IDS];
    qn_logit_bias bias[QN_MAX_LOGIT_BIAS];
    json_t *owned; /* array of values made from options and fields; NULL: none */
};

/* The engine's defaults (NULL: neutral ones), overridden by options. Called twice: first without an
 * engine before any long work, so that a wrong option ends the command at once; then with the
 * engine. The second time `checked` is the first result, which has read the files that options name
 * and must live as long. Prints errors; returns an exit code. sampling_fini is needed in every
 * case. */
int sampling_from_options(const struct options *o, const qn_engine *engine, uint32_t max_tokens,
                          const struct sampling *checked, struct sampling *s);
void sampling_fini(struct sampling *s);
/* `from` must live as long; `to` needs sampling_fini. */
void sampling_copy(struct sampling *to, const struct sampling *from);

/* Overrides *s with the sampling fields of a line; its other fields must be among `others`. Errors:
 * QN_EINVAL naming the field, and for an unknown name the nearest field. */
int sampling_from_line(struct diag *d, const json_t *line, const char *const *others,
                       size_t n_others, struct sampling *s);

/* Most likely tokens that the options or fields of a line request; 0 for a value that is no
 * number. */
uint32_t sampling_logprobs_of_options(const struct options *o);
uint32_t sampling_logprobs_of_line(const json_t *line);

/* Warns of stop strings that can never be found, because the text has no special tokens. */
void sampling_warn(const struct options *o, const qn_engine *engine, const struct sampling *s);

#endif

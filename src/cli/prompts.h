/* prompts.h - the prompts of one `quern generate`, from options or from the lines of a file.
 *
 * An unusable line keeps its place, with the reason, so that every line has a result. prompts_read
 * makes them; cmd_generate.c runs and owns them.
 */
#ifndef QN_CLI_PROMPTS_H
#define QN_CLI_PROMPTS_H

#include "cli/sampling.h"

struct prompt {
    char *text; /* NULL: ids */
    size_t n_text;
    int32_t *ids;
    size_t n_ids;
    unsigned long line; /* in the prompts file; 0: from options */
    json_t *fields;     /* the line; NULL: from options, or not an object */
    char *refusal;      /* why the prompt is not run; NULL: it is run */
};

struct prompts {
    struct prompt *items;
    size_t n, capacity;
    uint32_t max_logprobs; /* the most that a line requests */
};

/* Prints the error; returns an exit code. prompts_fini is needed in every case. */
int prompts_read(const struct options *o, struct prompts *p);
void prompts_fini(struct prompts *p);

/* Stores why a prompt has no result. Returns an exit code. */
int prompt_refuse(struct prompt *p, const char *reason);

/* The sampling of a prompt: `base`, overridden by its line. Errors: QN_EINVAL naming the field. */
int prompt_sampling(struct diag *d, const struct prompt *p, const struct sampling *base,
                    struct sampling *s);

#endif

/* prompts.h - the prompts of one `quern generate`, from options or from a file with a line each.
 *
 * A line that cannot be used keeps its place with the reason, so that there is a result for every
 * line. Made by prompts_read; cmd_generate.c runs them and owns them.
 */
#ifndef QN_CLI_PROMPTS_H
#define QN_CLI_PROMPTS_H

#include "cli/sampling.h"

struct prompt {
    char *text; /* NULL: ids */
    size_t n_text;
    int32_t *ids;
    size_t n_ids;
    unsigned long line; /* of the prompts file, 0: not from one */
    json_t *fields;     /* the line, NULL: not from one, or no object */
    char *refusal;      /* why it is not run; NULL: it is */
};

struct prompts {
    struct prompt *items;
    size_t n, capacity;
    uint32_t max_logprobs; /* that some line wants */
};

/* Prints the error; returns an exit code. prompts_fini is needed in every case. */
int prompts_read(const struct options *o, struct prompts *p);
void prompts_fini(struct prompts *p);

/* Keeps the reason why a prompt has no result. Returns an exit code. */
int prompt_refuse(struct prompt *p, const char *reason);

/* The sampling of a prompt: `base`, overridden by its line. Errors: QN_EINVAL naming the field. */
int prompt_sampling(struct diag *d, const struct prompt *p, const struct sampling *base,
                    struct sampling *s);

#endif

/* component.h - the reader's place in tokenizer.json, and the members of a component. For
 * src/model/tokenizer_{parse,post,config}.c only. */
#ifndef QN_MODEL_COMPONENT_H
#define QN_MODEL_COMPONENT_H

#include "base/jsonio.h"
#include "model/tokenizer_internal.h"

enum { COMPONENT_MAX_TEXT = 4096 }; /* bytes of a pattern, a replacement, an added token */

/* The reader's place: "FILE: pre_tokenizer.pretokenizers[1]". */
struct component {
    struct tokenizer *t;
    const char *file;
    char field[160];
    int depth; /* Sequences around it */
};

/* The member key[idx] of `at`. */
struct component component_inside(const struct component *at, const char *key, size_t idx);
/* QN_EUNSUPPORTED: "FILE: FIELD<what>: 'value' is not supported". */
int component_unsupported(struct diag *d, const struct component *at, const char *what,
                          const char *value);
int component_bool(struct diag *d, const struct component *at, const json_t *o, const char *key,
                   bool fallback, bool *out);
/* A string of at most COMPONENT_MAX_TEXT bytes, copied into the tokenizer's arena, with its length;
 * with fallback NULL it is required. */
int component_text(struct diag *d, const struct component *at, const json_t *o, const char *key,
                   const char *fallback, const char **out, size_t *n);
/* The component's type, borrowed from o; refuses components that are nested too deep. */
int component_type(struct diag *d, const struct component *at, const json_t *o, const char **type);
/* Runs `parse` over the members of a Sequence. */
int component_sequence(struct diag *d, const struct component *at, const json_t *o, const char *key,
                       int (*parse)(struct diag *, const struct component *, const json_t *));

/* ---- tokenizer_parse.c ---- */

/* Reads an added token from an object; is_special: ignores its member `special`. */
int tokenizer_parse_token(struct diag *d, const struct component *at, const json_t *o,
                          bool is_special, struct added_token *a);
/* Adds a, which needs no id. A known text keeps its id and gets the flags of a; a token of the
 * model keeps the model's id; other tokens get the next free ids. A special token stays special. */
int tokenizer_parse_add(struct diag *d, struct tokenizer *t, struct added_token a);

/* ---- tokenizer_post.c ---- */

/* Reads the post-processor into t->post. */
int tokenizer_post_parse(struct diag *d, const struct component *at, const json_t *o);

/* ---- tokenizer_config.c ---- */

/* A file beside tokenizer.json; root NULL: there is none. */
struct side_file {
    const char *name;
    json_t *root;
};
struct tokenizer_side_files {
    struct side_file config, special_tokens_map, added_tokens;
};

/* Adds the tokens that the files beside tokenizer.json name, with their flags, and finds the eos.
 */
int tokenizer_config_merge(struct diag *d, struct tokenizer *t,
                           const struct tokenizer_side_files *side);

#endif

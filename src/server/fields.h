/* fields.h - the fields of a request's body, as fields.def lists them.
 *
 * fields_read checks every field of an object against its row. A field that passes is available as
 * a JSON value of the right type and range. The values belong to the object.
 */
#ifndef QN_SERVER_FIELDS_H
#define QN_SERVER_FIELDS_H

#include "base/strbuf.h"
#include "server/problem.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    COMPLETIONS = 1 << 0,
    CHAT = 1 << 1,
    MESSAGES = 1 << 2,
    COUNT = 1 << 3,
    RESPONSES = 1 << 4,
    TOKENIZE = 1 << 5,
    DETOKENIZE = 1 << 6,
};

enum field_kind {
    FIELD_BOOL,
    FIELD_INT,
    FIELD_NUMBER,
    FIELD_ABOVE,
    FIELD_TEXT,
    FIELD_STOPS,
    FIELD_IDS,
    FIELD_BIAS,
    FIELD_PROMPT,
    FIELD_CONTENT,
    FIELD_ARRAY,
    FIELD_OBJECT,
    FIELD_OPTIONS,
    FIELD_TOOLS,
    FIELD_CHOICE,
    FIELD_ANY,
    /* as sampling.def has them */
    FIELD_FLAG = FIELD_BOOL,
    FIELD_COUNT = FIELD_INT,
    FIELD_OPTIONAL = FIELD_INT,
    FIELD_SEED = FIELD_INT,
    FIELD_TEXTS = FIELD_STOPS,
};

enum field_use { USE_USED, USE_NEEDED, USE_QUIET, USE_NEUTRAL };

enum field {
#define FIELD(ID, name, kind, low, high, use, apis, neutral, about) F_##ID,
#include "server/fields.def"
#undef FIELD
    N_FIELDS
};

struct field_row {
    const char *name;
    enum field_kind kind;
    double low, high;
    enum field_use use;
    uint32_t apis; /* bits of COMPLETIONS ... */
    const char *neutral, *about;
};

extern const struct field_row field_table[N_FIELDS];

struct fields {
    const json_t *value[N_FIELDS]; /* NULL: not given, or null */
};

/* Limits beyond those of the table. */
struct field_limits {
    int64_t n_vocab;      /* token ids must be smaller; 0: not checked */
    int64_t max_logprobs; /* of logprobs and top_logprobs */
    bool strict;          /* unknown names are refused */
};

/* Reads the object's fields for one API. `ignored` collects the unknown names, with
 * ", " between them. */
int fields_read(struct problem *p, const json_t *object, uint32_t api,
                const struct field_limits *limits, struct fields *f, struct strbuf *ignored);

static inline bool fields_has(const struct fields *f, enum field field) {
    return f->value[field] != NULL;
}
int64_t fields_int(const struct fields *f, enum field field, int64_t fallback);
double fields_number(const struct fields *f, enum field field, double fallback);
bool fields_bool(const struct fields *f, enum field field, bool fallback);
const char *fields_text(const struct fields *f, enum field field, const char *fallback);

#endif

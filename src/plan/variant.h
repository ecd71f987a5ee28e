/* variant.h - the variants of a program, and the operators by which each runs a layer: every way is
 * listed with its cost, and the cheapest possible way is taken, in one place.
 *
 * Made by engine/compile.c before the first stage; shown by `quern inspect --why`.
 */
#ifndef QN_PLAN_VARIANT_H
#define QN_PLAN_VARIANT_H

#include "base/status.h"
#include "plan/device.h"

enum { PLAN_MAX_VARIANTS = 32, PLAN_WAYS = 4 };

/* What plan_variants plans for. */
struct plan_request {
    const struct model_spec *spec;
    const struct device *device;
    uint32_t n_slots, max_model_len, max_batched_tokens;
    /* Ways that a user may switch off (engine/compile_option.c). */
    bool cut_qkv, join_heads, cut_linear, group_experts;
    uint32_t whole_from; /* rows from which one task may have a whole context; 0: never */
    bool places_all;     /* there are no JIT tasks */
    bool rides;          /* events may be carried by data (task/transport.c) */
};

/* One way to do a thing. */
struct plan_way {
    const char *operators; /* "attention_step attention_merge" */
    const char *why_not;   /* what it lacks; NULL: it is possible */
    double ns;             /* the layer's time by this way (plan/cost.h); negative: unknown */
};

/* A choice between several ways. */
struct plan_choice {
    const char *what; /* "attention" */
    struct plan_way ways[PLAN_WAYS];
    uint32_t n, taken;
    const char *why; /* why that way was taken */
};

struct plan_variant {
    uint32_t n_rows, context;
    bool decode_only;                                   /* each of its rows is another request's */
    uint32_t cuts;                                      /* enum kgraph_cut */
    const char *why;                                    /* why there is such a variant */
    struct plan_choice attention, qkv, linear, experts; /* experts.n 0: there are none */
};

/* Sets variants[0..*n), ascending by rows and context. Errors: QN_ELIMIT: too many. */
int plan_variants(struct diag *d, const struct plan_request *r,
                  struct plan_variant variants[PLAN_MAX_VARIANTS], uint32_t *n);

#endif

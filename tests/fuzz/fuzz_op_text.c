/* Any bytes as an operator's text. What is refused says where; what is accepted has nodes that read
 * earlier ones, the same normal forms in two tables, and the same values as itself in the fields.
 */
#include "block/compare.h"
#include "block/op_text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LOOK_UPS = 100000 };

static void check_nodes(const struct expr *x) {
    for (uint32_t i = 0; i < x->n_nodes; i++)
        for (int k = 0; k < BLOCK_MAX_ARITY; k++)
            if (x->nodes[i].in[k] >= (int32_t)i) abort();
    for (uint32_t i = 0; i < x->n_out; i++)
        if (x->out[i].node < 0 || x->out[i].node >= (int32_t)x->n_nodes) abort();
}

/* A hash of the outputs' forms. */
static uint64_t forms_of(const struct expr *x) {
    struct forms *f;
    form_id args[EXPR_MAX_ARGS], nodes[EXPR_MAX_NODES];
    uint64_t hash = 0;
    if (forms_new(NULL, &f) != QN_OK) abort();
    forms_bound(f, LOOK_UPS);
    for (uint32_t i = 0; i < x->n_args; i++) args[i] = expr_arg_form(f, x, i, i);
    expr_forms(f, x, args, NULL, nodes);
    for (uint32_t i = 0; i < x->n_out; i++) {
        struct strbuf text = {0};
        hash = hash * 31 + form_hash(f, nodes[x->out[i].node]);
        form_dump(f, nodes[x->out[i].node], NULL, &text);
        strbuf_fini(&text);
        if (nodes[x->out[i].node] != FORM_NONE &&
            !form_equal(f, nodes[x->out[i].node], nodes[x->out[i].node]))
            abort();
    }
    forms_free(f);
    return hash;
}

static void check_values(const struct expr *x) {
    struct matching m;
    struct diag d = {0};
    struct strbuf line = {0};
    enum field_answer answer = FIELD_SAME;
    if (matching_make(&d, x, x, &m) != QN_OK) abort();
    const struct compare_case c = {&m, 0};
    if (compare_fields(&d, &c, 1, &answer, &line) == QN_OK && answer == FIELD_DIFFERS) abort();
    strbuf_fini(&line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct expr x;
    struct diag d = {0};
    if (op_text_parse(&d, "fuzz", (const char *)data, size, &x) != QN_OK) {
        if (strncmp(d.message, "fuzz:", 5) != 0) abort();
        return 0;
    }
    struct strbuf text = {0};
    check_nodes(&x);
    expr_dump(&x, &text);
    strbuf_fini(&text);
    if (forms_of(&x) != forms_of(&x)) abort();
    check_values(&x);
    return 0;
}

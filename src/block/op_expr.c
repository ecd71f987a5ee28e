#include "block/op_expr.h"
#include "block/op_text.h"

#include <stdio.h>
#include <string.h>

#define MEANS(ID, text) [OP_##ID] = (text),
static const char *const texts[N_OP_KINDS] = {
#include "graph/op.def"
};

const char *op_expr_text(enum op_kind kind) {
    return texts[kind];
}

int op_expr_parse(struct diag *d, enum op_kind kind, struct expr *x) {
    char name[64];
    if (texts[kind] == NULL)
        return fail(d, QN_EINTERNAL, "op.def: %s has no meaning", op_name(kind));
    snprintf(name, sizeof name, "op.def: %s", op_name(kind));
    return op_text_parse(d, name, texts[kind], strlen(texts[kind]), x);
}

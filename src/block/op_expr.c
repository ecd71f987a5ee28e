#include "block/op_expr.h"
#include "block/op_text.h"

#include <stdio.h>
#include <string.h>

#define MEANS(ID, text) [OP_##ID] = (text),
static const char *const texts[N_OP_KINDS] = {
#include "graph/op.def"
};
#define MEANS_LATENT(ID, text) [OP_##ID] = (text),
static const char *const latent_texts[N_OP_KINDS] = {
#include "graph/op.def"
};

const char *op_expr_text(enum op_kind kind, bool latent) {
    return latent && latent_texts[kind] != NULL ? latent_texts[kind] : texts[kind];
}

int op_expr_parse(struct diag *d, enum op_kind kind, bool latent, struct expr *x) {
    const char *text = op_expr_text(kind, latent);
    char name[64];
    if (text == NULL) return fail(d, QN_EINTERNAL, "op.def: %s has no meaning", op_name(kind));
    snprintf(name, sizeof name, "op.def: %s", op_name(kind));
    return op_text_parse(d, name, text, strlen(text), x);
}

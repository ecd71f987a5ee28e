#include "graph/op.h"

#include <string.h>

struct row {
    const char *name;
    enum op_launch launch;
    enum op_split split;
    const char *inputs, *outputs;
};

static const struct row rows[N_OP_KINDS] = {
    [OP_NONE] = {"nop", LAUNCH_AOT, SPLIT_ROWS, "", ""},
#define OP(ID, name, launch, split, inputs, outputs)                                               \
    [OP_##ID] = {#name, LAUNCH_##launch, SPLIT_##split, inputs, outputs},
#include "graph/op.def"
#undef OP
};

/* Reads "x norm* bq?*" into slots; returns their number. */
static int read_slots(const char *text, struct op_slot *slots, int max) {
    int n = 0;
    while (*text != '\0' && n < max) {
        size_t len = strcspn(text, " ");
        size_t name = strcspn(text, " ?*+!^");
        struct op_slot *s = &slots[n++];
        *s = (struct op_slot){0};
        memcpy(s->name, text, name < sizeof s->name ? name : sizeof s->name - 1);
        s->optional = memchr(text, '?', len) != NULL;
        s->weight = memchr(text, '*', len) != NULL;
        s->state = memchr(text, '+', len) != NULL;
        s->flagged = memchr(text, '!', len) != NULL;
        s->packable = memchr(text, '^', len) != NULL;
        text += len + strspn(text + len, " ");
    }
    return n;
}

void op_describe(enum op_kind kind, struct op_info *info) {
    const struct row *r = &rows[kind];
    *info = (struct op_info){.name = r->name, .launch = r->launch, .split = r->split};
    info->n_in = read_slots(r->inputs, info->in, OP_MAX_IN);
    info->n_out = read_slots(r->outputs, info->out, OP_MAX_OUT);
}

const char *op_name(uint32_t kind) {
    return kind < N_OP_KINDS ? rows[kind].name : "?";
}

enum op_kind op_find(const char *name) {
    for (int i = 1; i < N_OP_KINDS; i++)
        if (strcmp(rows[i].name, name) == 0) return (enum op_kind)i;
    return OP_NONE;
}

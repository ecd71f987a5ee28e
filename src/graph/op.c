#include "graph/op.h"

#include <string.h>

struct row {
    const char *name;
    enum op_target target;
    enum op_launch launch;
    enum op_split split;
    const char *inputs, *outputs;
};

static const struct row rows[N_OP_KINDS] = {
    [OP_NONE] = {"nop", OP_ON_ANY, LAUNCH_AOT, SPLIT_ROWS, "", ""},
#define OP(ID, name, target, launch, split, inputs, outputs)                                       \
    [OP_##ID] = {#name, OP_ON_##target, LAUNCH_##launch, SPLIT_##split, inputs, outputs},
#include "graph/op.def"
#undef OP
};

/* Reads one of "x norm* bq?*"; returns the text after it. */
static const char *read_slot(const char *text, struct op_slot *s) {
    size_t n = 0; /* of the name */
    *s = (struct op_slot){0};
    for (; *text != '\0' && *text != ' '; text++) switch (*text) {
        case '?': s->optional = true; break;
        case '*': s->weight = true; break;
        case '+': s->state = true; break;
        case '!': s->flagged = true; break;
        case '~': s->paired = true; break;
        case '&': s->filled = true; break;
        case '^': s->packable = true; break;
        default:
            if (n < sizeof s->name - 1) s->name[n++] = *text;
        }
    while (*text == ' ') text++;
    return text;
}

/* Returns how many there are. */
static int read_slots(const char *text, struct op_slot *slots, int max) {
    int n = 0;
    while (*text != '\0' && n < max) text = read_slot(text, &slots[n++]);
    return n;
}

void op_describe(enum op_kind kind, struct op_info *info) {
    const struct row *r = &rows[kind];
    *info = (struct op_info){.name = r->name};
    info->n_in = read_slots(r->inputs, info->in, OP_MAX_IN);
    info->n_out = read_slots(r->outputs, info->out, OP_MAX_OUT);
}

enum op_target op_target_of(uint32_t kind) {
    return rows[kind].target;
}

enum op_launch op_launch_of(uint32_t kind) {
    return rows[kind].launch;
}

enum op_split op_split_of(uint32_t kind) {
    return rows[kind].split;
}

const char *op_name(uint32_t kind) {
    return kind < N_OP_KINDS ? rows[kind].name : "?";
}

enum op_kind op_find(const char *name) {
    for (int i = 1; i < N_OP_KINDS; i++)
        if (strcmp(rows[i].name, name) == 0) return (enum op_kind)i;
    return OP_NONE;
}

#include "graph/op.h"

#include <pthread.h>
#include <string.h>

struct row {
    const char *name;
    enum op_target target;
    enum op_launch launch;
    enum op_split split;
    const char *attributes, *rows, *units, *inputs, *outputs;
};

static const struct row rows[N_OP_KINDS] = {
    [OP_NONE] = {"nop", OP_ON_ANY, LAUNCH_AOT, SPLIT_ROWS, "", "1", "1", "", ""},
#define OP(ID, name, target, launch, split, attributes, rows, units, inputs, outputs)              \
    [OP_##ID] = {#name, OP_ON_##target, LAUNCH_##launch, SPLIT_##split, attributes,                \
                 rows,  units,          inputs,          outputs},
#include "graph/op.def"
};

static int is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Copies the name at the start of `text`; returns the text after it. */
static const char *read_name(const char *text, char name[OP_NAME_CHARS]) {
    size_t n = 0;
    for (; is_name(*text); text++)
        if (n < OP_NAME_CHARS - 1) name[n++] = *text;
    name[n] = '\0';
    return text;
}

/* Notes where each dimension of "[r,min(a,b)]" begins; returns the text after the bracket. */
static const char *read_dims(const char *text, struct op_slot *s) {
    int depth = 0;
    if (*text != '[') return text;
    s->dim[s->n_dims++] = ++text;
    for (; *text != ']'; text++) {
        depth += (*text == '(') - (*text == ')');
        if (*text == ',' && depth == 0 && s->n_dims < OP_MAX_DIMS) s->dim[s->n_dims++] = text + 1;
    }
    return text + 1;
}

static const char *read_condition(const char *text, struct op_slot *s) {
    s->optional = true;
    if (*text == '-') return read_name(text + 1, s->without);
    return read_name(text, s->with);
}

/* Reads one of "x[r,H]! norm[H]?-squares*"; returns the text after it. */
static const char *read_slot(const char *text, struct op_slot *s) {
    *s = (struct op_slot){0};
    text = read_dims(read_name(text, s->name), s);
    while (*text != '\0' && *text != ' ') switch (*text++) {
        case '?': text = read_condition(text, s); break;
        case '*': s->weight = true; break;
        case '+': s->state = true; break;
        case '!': s->flagged = true; break;
        case '~': s->paired = true; break;
        case '&': s->sentinel = true; break;
        case '^': s->packable = true; break;
        case '=': s->packable = s->packed = true; break;
        case '#': s->integer = true; break;
        default: break; /* test_op checks that the table has no other marks */
        }
    while (*text == ' ') text++;
    return text;
}

/* Returns the number of slots. */
static int read_slots(const char *text, struct op_slot *slots, int max) {
    int n = 0;
    while (*text != '\0' && n < max) text = read_slot(text, &slots[n++]);
    return n;
}

static struct op_info infos[N_OP_KINDS];
static pthread_once_t infos_once = PTHREAD_ONCE_INIT;

static void read_rows(void) {
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        const struct row *r = &rows[kind];
        struct op_info *info = &infos[kind];
        *info = (struct op_info){
            .name = r->name, .attributes = r->attributes, .rows = r->rows, .units = r->units};
        info->n_in = read_slots(r->inputs, info->in, OP_MAX_IN);
        info->n_out = read_slots(r->outputs, info->out, OP_MAX_OUT);
    }
}

const struct op_info *op_info_of(enum op_kind kind) {
    (void)pthread_once(&infos_once, read_rows);
    return &infos[kind];
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

bool op_writes_stream(uint32_t kind) {
    const struct op_info *info = op_info_of((enum op_kind)kind);
    return info->n_out > STREAM_NORMED && strcmp(info->out[STREAM_NORMED].name, "normed") == 0;
}

bool op_writes_columns(uint32_t kind) {
    return op_writes_stream(kind) && op_split_of(kind) == SPLIT_TILES;
}

enum op_kind op_find(const char *name) {
    for (int i = 1; i < N_OP_KINDS; i++)
        if (strcmp(rows[i].name, name) == 0) return (enum op_kind)i;
    return OP_NONE;
}

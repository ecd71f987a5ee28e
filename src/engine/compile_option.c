#include "engine/compile_option.h"
#include "base/checked.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct key {
    const char *name, *values;
    bool (*set)(struct compile_options *o, const char *value);
};

/* A whole number from low to high. */
static bool number(const char *text, uint64_t low, uint64_t high, uint64_t *out) {
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *out >= low && *out <= high;
}

static bool one_of(const char *text, const char *const *names, int n, int *index) {
    for (*index = 0; *index < n; ++*index)
        if (strcmp(names[*index], text) == 0) return true;
    return false;
}

static bool set_launch(struct compile_options *o, const char *value) {
    static const char *const names[] = {"hybrid", "paper", "aot", "jit"};
    int i;
    if (!one_of(value, names, 4, &i)) return false;
    o->task.launch = (enum launch_policy)i;
    return true;
}

static bool set_events(struct compile_options *o, const char *value) {
    static const char *const names[] = {"fine", "coarse"};
    int i;
    if (!one_of(value, names, 2, &i)) return false;
    o->task.coarse_events = i == 1;
    return true;
}

static bool set_qkv(struct compile_options *o, const char *value) {
    static const char *const names[] = {"fused", "split", "joined"};
    int i;
    if (!one_of(value, names, 3, &i)) return false;
    o->cut_qkv = i >= 1;
    o->join_heads = i == 2;
    return true;
}

static bool set_attention(struct compile_options *o, const char *value) {
    static const char *const names[] = {"pieces", "whole", "batch"};
    int i;
    if (!one_of(value, names, 3, &i)) return false;
    o->whole_from = (uint32_t)i;
    return true;
}

static bool set_linear(struct compile_options *o, const char *value) {
    static const char *const names[] = {"whole", "parts"};
    int i;
    if (!one_of(value, names, 2, &i)) return false;
    o->cut_linear = i == 1;
    return true;
}

static bool set_moe(struct compile_options *o, const char *value) {
    static const char *const names[] = {"grouped", "slices", "static"};
    int i;
    if (!one_of(value, names, 3, &i)) return false;
    o->group_experts = i == 0;
    o->static_experts = i == 2;
    return true;
}

static bool set_workers(struct compile_options *o, const char *value) {
    static const char *const names[] = {"all", "alternate"};
    int i;
    if (!one_of(value, names, 2, &i)) return false;
    o->task.halves = i == 1;
    return true;
}

static bool set_event_fusion(struct compile_options *o, const char *value) {
    static const char *const names[] = {"on", "off"};
    int i;
    if (!one_of(value, names, 2, &i)) return false;
    o->task.no_event_fusion = i == 1;
    return true;
}

static bool set_tasks_per_worker(struct compile_options *o, const char *value) {
    uint64_t n;
    if (!number(value, 1, 64, &n)) return false;
    o->task.tasks_per_worker = (uint32_t)n;
    return true;
}

static bool set_transport_bytes(struct compile_options *o, const char *value) {
    return number(value, 0, 1u << 30, &o->task.transport_bytes);
}

static bool set_kv_block(struct compile_options *o, const char *value) {
    uint64_t n;
    if (!number(value, 1, ATTENTION_PIECE, &n) || ATTENTION_PIECE % n != 0) return false;
    o->kv_block = (uint32_t)n;
    return true;
}

static const struct key keys[] = {
    {"launch", "hybrid|paper|aot|jit", set_launch},
    {"events", "fine|coarse", set_events},
    {"qkv", "fused|split|joined", set_qkv},
    {"attention", "pieces|batch|whole", set_attention},
    {"linear", "whole|parts", set_linear},
    {"moe", "grouped|slices|static", set_moe},
    {"workers", "all|alternate", set_workers},
    {"event-fusion", "on|off", set_event_fusion},
    {"tasks-per-worker", "1 to 64", set_tasks_per_worker},
    {"carry-bytes", "bytes, 0: off", set_transport_bytes},
    {"kv-block", "a divisor of 128", set_kv_block},
};

/* tile.OP=ROWSxUNITS, 0 for no wish. */
static int set_tiles(struct diag *d, const char *op, const char *value, struct compile_options *o) {
    const enum op_kind kind = op_find(op);
    const char *x = strchr(value, 'x');
    char rows[16];
    uint64_t n_rows, n_units;
    if (kind == OP_NONE) return fail(d, QN_EINVAL, "compile option tile.%s: no such operator", op);
    if (x == NULL || (size_t)(x - value) >= sizeof rows)
        return fail(d, QN_EINVAL, "compile option tile.%s: want ROWSxUNITS, have %s", op, value);
    memcpy(rows, value, (size_t)(x - value));
    rows[x - value] = '\0';
    if (!number(rows, 0, PROG_MAX_ROWS, &n_rows) || !number(x + 1, 0, 1u << 16, &n_units))
        return fail(d, QN_EINVAL, "compile option tile.%s: want ROWSxUNITS, have %s", op, value);
    o->task.tiles[kind] = (struct tile_override){(uint32_t)n_rows, (uint32_t)n_units};
    return QN_OK;
}

static int unknown(struct diag *d, const char *name) {
    struct strbuf all = {0};
    for (size_t i = 0; i < COUNT_OF(keys); i++) strbuf_printf(&all, "%s, ", keys[i].name);
    int rc = fail(d, QN_EINVAL, "compile option %s: unknown; there are %stile.OPERATOR", name,
                  strbuf_text(&all));
    strbuf_fini(&all);
    return rc;
}

static int apply_one(struct diag *d, char *item, struct compile_options *o) {
    char *value = strchr(item, '=');
    if (value == NULL) return fail(d, QN_EINVAL, "compile option %s: want KEY=VALUE", item);
    *value++ = '\0';
    if (strncmp(item, "tile.", 5) == 0) return set_tiles(d, item + 5, value, o);
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        if (strcmp(keys[i].name, item) != 0) continue;
        if (keys[i].set(o, value)) return QN_OK;
        return fail(d, QN_EINVAL, "compile option %s: want %s, have %s", item, keys[i].values,
                    value);
    }
    return unknown(d, item);
}

int compile_option_apply(struct diag *d, const char *list, struct compile_options *o) {
    if (list == NULL || list[0] == '\0') return QN_OK;
    char *copy = strdup(list), *rest;
    if (copy == NULL) return fail_nomem(d, strlen(list), "compile options");
    int rc = QN_OK;
    for (char *item = strtok_r(copy, ",", &rest); item != NULL && rc == QN_OK;
         item = strtok_r(NULL, ",", &rest))
        rc = apply_one(d, item, o);
    free(copy);
    return rc;
}

/* program.c - a program as a file and as text; making one is program_make.c's. */
#include "task/program.h"
#include "base/checked.h"
#include "base/map.h"
#include "base/mapfile.h"
#include "graph/kernel_graph.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PROGRAM_BYTES = 1 << 30 };

const char *program_string(const struct prog_header *p, uint32_t offset) {
    return PROG(p, STRING) + offset;
}

/* ---- check -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint64_t size;
} sections[N_SECTIONS] = {
    [SECTION_MODEL] = {"model", sizeof(struct model_spec)},
    [SECTION_KV] = {"kv", sizeof(struct kv_row)},
    [SECTION_VARIANT] = {"variant", sizeof(struct prog_variant)},
    [SECTION_TENSOR] = {"tensor", sizeof(struct prog_tensor)},
    [SECTION_OP] = {"op", sizeof(struct prog_op)},
    [SECTION_TASK] = {"task", sizeof(struct prog_task)},
    [SECTION_EVENT] = {"event", sizeof(struct prog_event)},
    [SECTION_AOT] = {"aot", sizeof(uint32_t)},
    [SECTION_LIST] = {"list", sizeof(struct prog_list)},
    [SECTION_WEIGHT] = {"weight", sizeof(struct prog_weight)},
    [SECTION_PART] = {"part", sizeof(struct prog_part)},
    [SECTION_STRING] = {"string", 1},
};

/* The file being checked, for messages. */
struct check {
    struct diag *d;
    const char *name;
    const struct prog_header *p;
};

static int bad(const struct check *c, const char *what, uint64_t index, const char *field) {
    return fail(c->d, QN_EFORMAT, "%s: %s %llu: %s is out of bounds", c->name, what,
                (unsigned long long)index, field);
}

/* Whether [first, first + n) lies in a table of `count` elements. */
static bool inside(uint64_t first, uint64_t n, uint64_t count) {
    return range_inside(first, n, count);
}

static uint64_t count(const struct check *c, enum program_section s) {
    return c->p->section[s].count;
}

static bool is_for_cuda(const struct check *c) {
    return c->p->target == TARGET_CUDA;
}

/* Whether a tensor can have its transport, and has the space for it. */
static bool check_transport(const struct check *c, const struct prog_tensor *t) {
    const bool own = t->transport != TRANSPORT_COUNTER && t->transport != TRANSPORT_OWN;
    if (t->role == PROG_ACTIVATION && t->space != (own ? SPACE_OWN : SPACE_WORKSPACE)) return false;
    if (t->transport == TRANSPORT_COUNTER) return true;
    if (!is_for_cuda(c) || t->role != PROG_ACTIVATION) return false;
    if (t->transport == TRANSPORT_SPACE) return t->dtype == DTYPE_I32 && t->n_dims == 2;
    if (t->transport == TRANSPORT_SENTINEL) return t->dtype != DTYPE_I32;
    if (t->dtype != DTYPE_F32) return false;
    if (t->transport == TRANSPORT_FLAG || t->transport == TRANSPORT_OWN) return true;
    return t->transport == TRANSPORT_PAIR && t->n_dims == 2 && t->shape[1] % 2 == 0 &&
           (uint64_t)t->shape[0] * t->shape[1] <= STAGED_COLUMNS;
}

/* Whether a tensor's format and layout fit its role. Packed activations are for CUDA only. */
static bool check_format(const struct check *c, const struct prog_tensor *t) {
    if (t->layout >= N_LAYOUTS || t->dtype >= N_DTYPES) return false;
    if ((t->layout == LAYOUT_BLOCKS) != (t->role == PROG_STATE)) return false;
    const bool narrow = t->dtype == DTYPE_BF16 || t->dtype == DTYPE_F16;
    if (t->layout == LAYOUT_PACKED)
        return is_for_cuda(c) && t->role == PROG_ACTIVATION && t->n_dims == 2 && narrow;
    return t->role != PROG_ACTIVATION || !narrow;
}

/* Bytes of a tensor's elements in its layout, with their flags; false: too many. */
static bool count_bytes(const struct prog_tensor *t, uint64_t *bytes) {
    *bytes = dtype_bytes(t->dtype);
    for (int k = 0; k < t->n_dims; k++) {
        uint64_t n = t->shape[k];
        if (t->layout == LAYOUT_PACKED) n = k == 0 ? packed_rows(n) : packed_columns(n);
        if (n == 0 || !checked_mul(*bytes, n, bytes)) return false;
    }
    return t->transport != TRANSPORT_FLAG || checked_mul(*bytes, 2, bytes);
}

/* Whether a weight is a whole stack, with one tensor of the checkpoint for each matrix. */
static bool is_stack(const struct check *c, const struct prog_tensor *t) {
    if (t->n_parts != 1) return false;
    const struct prog_part *part = &PROG(c->p, PART)[t->part];
    return part->stack == t->shape[0] && part->rows == t->shape[1];
}

/* Whether a weight's rows are those of its parts, and its parts are its block's. */
static bool check_view(const struct check *c, const struct prog_tensor *t) {
    if (t->where >= count(c, SECTION_WEIGHT)) return false;
    const struct prog_weight *w = &PROG(c->p, WEIGHT)[t->where];
    if (t->part < w->first_part || !inside(t->part - w->first_part, t->n_parts, w->n_parts) ||
        !inside(w->first_part, w->n_parts, count(c, SECTION_PART)))
        return false;
    if (t->n_dims == 3) return is_stack(c, t);
    uint64_t rows = 0;
    for (uint32_t i = t->part; i < t->part + t->n_parts; i++) {
        if (PROG(c->p, PART)[i].stack != 0) return false;
        rows += PROG(c->p, PART)[i].rows;
    }
    return rows == t->shape[0];
}

static int check_header(const struct check *c, uint64_t bytes) {
    const struct prog_header *p = c->p;
    if (bytes < sizeof *p || memcmp(p->magic, PROGRAM_MAGIC, sizeof p->magic) != 0)
        return fail(c->d, QN_EFORMAT, "%s: not a quern program", c->name);
    if (p->version != PROGRAM_VERSION)
        return fail(c->d, QN_EFORMAT, "%s: version: want %d, have %u; compile it again", c->name,
                    PROGRAM_VERSION, p->version);
    if (p->total_bytes != bytes)
        return fail(c->d, QN_EFORMAT, "%s: total_bytes: the header says %llu, the file has %llu",
                    c->name, (unsigned long long)p->total_bytes, (unsigned long long)bytes);
    for (int i = 0; i < N_SECTIONS; i++) {
        uint64_t size;
        const struct prog_section *s = &p->section[i];
        if (s->offset % 64 != 0 || s->offset < sizeof *p ||
            !checked_mul(s->count, sections[i].size, &size) ||
            !range_inside(s->offset, size, bytes))
            return fail(c->d, QN_EFORMAT, "%s: section %s does not fit the file", c->name,
                        sections[i].name);
    }
    const struct {
        const char *field;
        uint64_t value, low, high;
    } bounds[] = {
        {"n_workers", p->n_workers, 1, PROG_MAX_WORKERS},
        {"n_ranks", p->n_ranks, 1, is_for_cuda(c) ? PROG_MAX_RANKS : 1},
        {"n_slots", p->n_slots, 1, PROG_MAX_SEQS},
        {"max_model_len", p->max_model_len, 1, SPEC_MAX_MODEL_LEN},
        {"kv_block", p->kv_block, 1, ATTENTION_PIECE},
        {"target", p->target, TARGET_CPU, TARGET_CUDA},
        {"workspace_bytes", p->workspace_bytes, 0, 1ull << 40},
        {"model_path", p->model_path, 0, count(c, SECTION_STRING) - 1},
        {"model count", count(c, SECTION_MODEL), 1, 1},
        {"variant count", count(c, SECTION_VARIANT), 1, PROG_MAX_VARIANTS},
        {"string count", count(c, SECTION_STRING), 1, UINT32_MAX},
        {"list count", count(c, SECTION_LIST), count(c, SECTION_VARIANT) * p->n_workers,
         count(c, SECTION_VARIANT) * p->n_workers},
    };
    for (size_t i = 0; i < COUNT_OF(bounds); i++)
        if (bounds[i].value < bounds[i].low || bounds[i].value > bounds[i].high)
            return fail(c->d, QN_EFORMAT, "%s: %s: want a number from %llu to %llu, have %llu",
                        c->name, bounds[i].field, (unsigned long long)bounds[i].low,
                        (unsigned long long)bounds[i].high, (unsigned long long)bounds[i].value);
    if (ATTENTION_PIECE % p->kv_block != 0)
        return fail(c->d, QN_EFORMAT, "%s: kv_block: want a divisor of %d, have %u", c->name,
                    ATTENTION_PIECE, p->kv_block);
    if (PROG(p, STRING)[count(c, SECTION_STRING) - 1] != '\0')
        return fail(c->d, QN_EFORMAT, "%s: the last name has no end", c->name);
    if (p->spec_hash != hash_bytes(PROG(p, MODEL), sizeof(struct model_spec), 0))
        return fail(c->d, QN_EFORMAT, "%s: spec_hash does not match the model section", c->name);
    return model_spec_verify(c->d, c->name, PROG(p, MODEL));
}

static int check_variants(const struct check *c) {
    const uint32_t all = c->p->max_model_len;
    /* Of the last number of rows: the longest contexts of its variants for any rows, and of those
     * that are decode only; 0: it has none. */
    uint32_t rows = 0, context = all, alone = 0;
    for (uint64_t i = 0; i < count(c, SECTION_VARIANT); i++) {
        const struct prog_variant *v = &PROG(c->p, VARIANT)[i];
        if (v->n_rows < MAX(rows, 1u) || v->n_rows > PROG_MAX_ROWS)
            return bad(c, "variant", i, "n_rows");
        /* The last variant of each number of rows takes all contexts. */
        if (v->n_rows != rows && (context != 0 ? context : alone) != all)
            return bad(c, "variant", i, "context");
        if (v->n_rows != rows) context = alone = 0;
        if (v->context < (v->decode_only ? 1 : context + 1) || v->context > all)
            return bad(c, "variant", i, "context");
        if (v->decode_only > 1 || (v->decode_only == 1 && context == all))
            return bad(c, "variant", i, "decode_only");
        if (v->n_logit_rows < 1 || v->n_logit_rows > v->n_rows)
            return bad(c, "variant", i, "n_logit_rows");
        if (!inside(v->first_op, v->n_ops, count(c, SECTION_OP)))
            return bad(c, "variant", i, "ops");
        if (!inside(v->first_task, v->n_tasks, count(c, SECTION_TASK)) || v->n_tasks == 0)
            return bad(c, "variant", i, "tasks");
        if (!inside(v->first_event, v->n_events, count(c, SECTION_EVENT)))
            return bad(c, "variant", i, "events");
        if (!inside(v->first_tensor, v->n_tensors, count(c, SECTION_TENSOR)))
            return bad(c, "variant", i, "tensors");
        if (!inside(v->start_event - (uint64_t)v->first_event, 1, v->n_events))
            return bad(c, "variant", i, "start_event");
        if (!inside(v->end_event - (uint64_t)v->first_event, 1, v->n_events) ||
            v->end_event == v->start_event)
            return bad(c, "variant", i, "end_event");
        rows = v->n_rows;
        if (v->decode_only)
            alone = v->context;
        else
            context = v->context;
    }
    if (context != all) /* the last one takes any rows, too */
        return bad(c, "variant", count(c, SECTION_VARIANT) - 1, "context");
    return QN_OK;
}

static int check_kv(const struct check *c) {
    if (count(c, SECTION_KV) != PROG(c->p, MODEL)->n_layers)
        return fail(c->d, QN_EFORMAT, "%s: kv count: want %u, one per layer, have %llu", c->name,
                    PROG(c->p, MODEL)->n_layers, (unsigned long long)count(c, SECTION_KV));
    for (uint64_t i = 0; i < count(c, SECTION_KV); i++) {
        const struct kv_row *r = &PROG(c->p, KV)[i];
        if (r->heads < 1 || r->heads > SPEC_MAX_HEADS) return bad(c, "kv", i, "heads");
        if (r->k_width < 1 || r->k_width > KV_MAX_WIDTH) return bad(c, "kv", i, "k_width");
        if (r->v_in_k > 1) return bad(c, "kv", i, "v_in_k");
        if (r->v_width < 1 || r->v_width > (r->v_in_k ? r->k_width : KV_MAX_WIDTH))
            return bad(c, "kv", i, "v_width");
        if (r->dtype > DTYPE_F16) return bad(c, "kv", i, "dtype");
    }
    return QN_OK;
}

static int check_tensors(const struct check *c) {
    for (uint64_t i = 0; i < count(c, SECTION_TENSOR); i++) {
        const struct prog_tensor *t = &PROG(c->p, TENSOR)[i];
        uint64_t bytes;
        if (t->name >= count(c, SECTION_STRING)) return bad(c, "tensor", i, "name");
        if (t->role > PROG_STATE) return bad(c, "tensor", i, "role");
        if (!check_format(c, t)) return bad(c, "tensor", i, "dtype or layout");
        if (t->n_dims < 1 || t->n_dims > 4) return bad(c, "tensor", i, "n_dims");
        if (!check_transport(c, t)) return bad(c, "tensor", i, "transport or space");
        if (!count_bytes(t, &bytes)) return bad(c, "tensor", i, "shape");
        if (bytes != t->bytes) return bad(c, "tensor", i, "bytes");
        const bool lies =
            t->role == PROG_WEIGHT ? t->space == SPACE_WEIGHTS && check_view(c, t)
            : t->role == PROG_STATE
                ? t->space == SPACE_KV && t->where < count(c, SECTION_KV)
                : t->where % 64 == 0 && range_inside(t->where, t->bytes, c->p->workspace_bytes);
        if (!lies) return bad(c, "tensor", i, "where");
    }
    return QN_OK;
}

/* An operand must lie in its variant and have the role that op.def gives its slot. */
static bool operand_fits(const struct check *c, const struct prog_variant *v, uint32_t t,
                         const struct op_slot *slot) {
    if (t == PROG_NONE) return slot->optional;
    if (!inside(t - (uint64_t)v->first_tensor, 1, v->n_tensors)) return false;
    const uint8_t role = slot->weight ? PROG_WEIGHT : slot->state ? PROG_STATE : PROG_ACTIVATION;
    return PROG(c->p, TENSOR)[t].role == role;
}

/* Only CUDA's kernels know a residual stream that its writer norms. */
static bool norms_fit(const struct check *c, const struct prog_op *op, const struct op_info *info) {
    for (int k = 0; k < info->n_in && !is_for_cuda(c); k++)
        if (op->in[k] != PROG_NONE &&
            (strcmp(info->in[k].name, "next") == 0 || strcmp(info->in[k].name, "squares") == 0))
            return false;
    return true;
}

/* With several rows, the CPU's ATTENTION_STEP would read keys that other tasks of the iteration
 * write. */
static bool step_fits(const struct check *c, const struct prog_variant *v,
                      const struct prog_op *op) {
    if (op->kind == OP_ATTENTION_WHOLE) return op->n_rows <= STEP_ROWS || v->decode_only;
    return op->kind != OP_ATTENTION_STEP || op->n_rows <= (is_for_cuda(c) ? STEP_ROWS : 1u);
}

/* The KV cache that an operator reads or writes; NULL: none. */
static const struct prog_tensor *state_of(const struct prog_header *p, const struct prog_op *op) {
    const struct op_info *info = op_info_of(op->kind);
    for (int i = 0; i < info->n_in; i++)
        if (info->in[i].state) return &PROG(p, TENSOR)[op->in[i]];
    for (int i = 0; i < info->n_out; i++)
        if (info->out[i].state) return &PROG(p, TENSOR)[op->out[i]];
    return NULL;
}

/* An operator's KV row must be the one that the model's attention caches. */
static int check_op_kv(const struct check *c, uint64_t i) {
    const struct prog_op *op = &PROG(c->p, OP)[i];
    const struct kv_row *r = program_kv_row(c->p, op);
    if (r == NULL) return QN_OK;
    const struct kv_row want = spec_kv_row(PROG(c->p, MODEL), r->dtype);
    if (memcmp(r, &want, sizeof want) == 0)
        return state_of(c->p, op)->shape[1] == kv_vectors(r) ? QN_OK : bad(c, "op", i, "kv");
    return fail(c->d, QN_EUNSUPPORTED,
                "%s: op %llu: %s wants a KV row of %u heads, keys of %u elements, values of %u%s; "
                "its layer has %u heads, keys of %u, values of %u%s",
                c->name, (unsigned long long)i, op_name(op->kind), want.heads, want.k_width,
                want.v_width, want.v_in_k ? " inside the keys" : "", r->heads, r->k_width,
                r->v_width, r->v_in_k ? " inside the keys" : "");
}

static int check_ops(const struct check *c, const struct prog_variant *v) {
    for (uint64_t i = v->first_op; i < (uint64_t)v->first_op + v->n_ops; i++) {
        const struct prog_op *op = &PROG(c->p, OP)[i];
        if (op->kind == OP_NONE || op->kind >= N_OP_KINDS) return bad(c, "op", i, "kind");
        if (op_target_of(op->kind) == (is_for_cuda(c) ? OP_ON_CPU : OP_ON_CUDA))
            return fail(c->d, QN_EFORMAT,
                        "%s: op %llu: backend %s, which the program is for, has no %s", c->name,
                        (unsigned long long)i, is_for_cuda(c) ? "cuda" : "cpu", op_name(op->kind));
        const struct op_info *info = op_info_of(op->kind);
        if (op->layer >= (int64_t)PROG(c->p, MODEL)->n_layers ||
            (op->layer < 0 && /* these store at their layer's place */
             (op->kind == OP_ROUTE || op->kind == OP_ROUTE_TOP_K)))
            return bad(c, "op", i, "layer");
        if (op->gang < 1 || op->gang > PROG_MAX_GANG || op->gang > c->p->n_workers)
            return bad(c, "op", i, "gang");
        if (!norms_fit(c, op, info)) return bad(c, "op", i, "in");
        if (!step_fits(c, v, op)) return bad(c, "op", i, "n_rows");
        for (int k = 0; k < OP_MAX_IN; k++)
            if (k < info->n_in ? !operand_fits(c, v, op->in[k], &info->in[k])
                               : op->in[k] != PROG_NONE)
                return bad(c, "op", i, "in");
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (k < info->n_out ? !operand_fits(c, v, op->out[k], &info->out[k])
                                : op->out[k] != PROG_NONE)
                return bad(c, "op", i, "out");
        TRY(check_op_kv(c, i));
    }
    return QN_OK;
}

static int check_tasks(const struct check *c, const struct prog_variant *v) {
    for (uint64_t i = v->first_task; i < (uint64_t)v->first_task + v->n_tasks; i++) {
        const struct prog_task *t = &PROG(c->p, TASK)[i];
        if (t->worker != PROG_JIT && t->worker >= c->p->n_workers)
            return bad(c, "task", i, "worker");
        if (!inside(t->wait - (uint64_t)v->first_event, 1, v->n_events))
            return bad(c, "task", i, "wait");
        if (!inside(t->trigger - (uint64_t)v->first_event, 1, v->n_events))
            return bad(c, "task", i, "trigger");
        if (t->kind == OP_NONE) {
            if (t->op != PROG_NONE) return bad(c, "task", i, "op");
            continue;
        }
        if (!inside(t->op - (uint64_t)v->first_op, 1, v->n_ops)) return bad(c, "task", i, "op");
        const struct prog_op *op = &PROG(c->p, OP)[t->op];
        if (t->kind != op->kind) return bad(c, "task", i, "kind");
        if (t->row0 >= t->row1 || t->row1 > op->n_rows) return bad(c, "task", i, "rows");
        if (t->unit0 >= t->unit1) return bad(c, "task", i, "units");
        if (t->unit1 > (op_split_of(op->kind) == SPLIT_SLICES ? 1u << 20 : op->units))
            return bad(c, "task", i, "units");
    }
    return QN_OK;
}

/* Whether a part's rows lie in its block. */
static bool part_fits(const struct prog_part *p, const struct prog_weight *w) {
    if (p->rows == 0 || p->run == 0 || p->stride < p->run) return false;
    const uint64_t last = prog_part_row(p->at, p->run, p->stride, p->rows - 1);
    if (p->stack != 0 && p->step <= last - p->at) return false;
    return last + (uint64_t)p->step * (prog_part_tensors(p) - 1) < w->rows;
}

/* Whether a part's name is a pattern with one `*` if it is a stack's. */
static bool part_is_named(const struct check *c, const struct prog_part *p) {
    if (p->name >= count(c, SECTION_STRING)) return false;
    const char *star = strchr(program_string(c->p, p->name), '*');
    return p->stack == 0 || (star != NULL && strchr(star + 1, '*') == NULL);
}

static int check_weights(const struct check *c) {
    for (uint64_t i = 0; i < count(c, SECTION_WEIGHT); i++) {
        const struct prog_weight *w = &PROG(c->p, WEIGHT)[i];
        if (w->name >= count(c, SECTION_STRING)) return bad(c, "weight", i, "name");
        if (w->dtype >= N_DTYPES || !dtype_row(w->dtype)->is_float)
            return bad(c, "weight", i, "dtype");
        if (w->n_dims < 1 || w->n_dims > 2 || w->rows == 0 || (w->n_dims == 2 && w->cols == 0))
            return bad(c, "weight", i, "shape");
        if (!inside(w->first_part, w->n_parts, count(c, SECTION_PART)) || w->n_parts == 0)
            return bad(c, "weight", i, "parts");
        for (uint32_t k = w->first_part; k < w->first_part + w->n_parts; k++) {
            const struct prog_part *part = &PROG(c->p, PART)[k];
            if (!part_is_named(c, part)) return bad(c, "part", k, "name");
            if (!part_fits(part, w)) return bad(c, "part", k, "rows");
            if (!weight_source_fits(&part->source, part->rows, w->n_dims == 2 ? w->cols : 0))
                return bad(c, "part", k, "source");
        }
    }
    return QN_OK;
}

static int check_rest(const struct check *c) {
    for (uint64_t i = 0; i < count(c, SECTION_EVENT); i++) {
        const struct prog_event *e = &PROG(c->p, EVENT)[i];
        if (!inside(e->first_task, e->n_tasks, count(c, SECTION_TASK)) || e->n_jit > e->n_tasks)
            return bad(c, "event", i, "tasks");
        if (e->transport > (uint32_t)(is_for_cuda(c) ? TRANSPORT_FLAG : TRANSPORT_COUNTER))
            return bad(c, "event", i, "transport");
    }
    for (uint64_t i = 0; i < count(c, SECTION_AOT); i++)
        if (PROG(c->p, AOT)[i] >= count(c, SECTION_TASK)) return bad(c, "aot", i, "task");
    for (uint64_t i = 0; i < count(c, SECTION_LIST); i++)
        if (!inside(PROG(c->p, LIST)[i].first, PROG(c->p, LIST)[i].n, count(c, SECTION_AOT)))
            return bad(c, "list", i, "range");
    return check_weights(c);
}

int program_check(struct diag *d, const char *name, const void *p, uint64_t bytes) {
    const struct check c = {d, name, p};
    TRY(check_header(&c, bytes));
    TRY(check_kv(&c));
    TRY(check_variants(&c));
    TRY(check_tensors(&c));
    for (uint64_t i = 0; i < count(&c, SECTION_VARIANT); i++) {
        TRY(check_ops(&c, &PROG(c.p, VARIANT)[i]));
        TRY(check_tasks(&c, &PROG(c.p, VARIANT)[i]));
    }
    return check_rest(&c);
}

/* ---- files -------------------------------------------------------------------------------- */

/* The header as it goes into the file. */
static struct prog_header sealed(const struct prog_header *p) {
    struct prog_header h = *p;
    h.checksum = hash_bytes(p, p->total_bytes, 0);
    return h;
}

static bool write_sealed(FILE *f, const struct prog_header *p) {
    const struct prog_header h = sealed(p);
    const size_t rest = p->total_bytes - sizeof h;
    return fwrite(&h, 1, sizeof h, f) == sizeof h && fwrite(p + 1, 1, rest, f) == rest;
}

/* Refuses a file that was damaged by accident, before its tables are read. Changes on purpose are
 * for program_check and task_verify to find. */
static int unseal(struct diag *d, const char *path, struct prog_header *p, uint64_t bytes) {
    if (bytes < sizeof *p || memcmp(p->magic, PROGRAM_MAGIC, sizeof p->magic) != 0 ||
        p->version != PROGRAM_VERSION || p->total_bytes != bytes)
        return program_check(d, path, p, bytes); /* it says what is wrong */
    const uint64_t checksum = p->checksum;
    p->checksum = 0;
    if (hash_bytes(p, bytes, 0) != checksum)
        return fail(d, QN_EFORMAT, "%s: checksum: want %016llx, have %016llx; the file is damaged",
                    path, (unsigned long long)hash_bytes(p, bytes, 0),
                    (unsigned long long)checksum);
    return program_check(d, path, p, bytes);
}

int program_write(struct diag *d, const struct prog_header *p, const char *path) {
    struct strbuf temporary = {0};
    strbuf_printf(&temporary, "%s.tmp%ld", path, (long)getpid());
    int rc = strbuf_status(d, &temporary);
    FILE *f = rc == QN_OK ? fopen(temporary.text, "wb") : NULL;
    if (rc == QN_OK && f == NULL) rc = fail(d, QN_EIO, "%s: %s", temporary.text, strerror(errno));
    if (rc == QN_OK) {
        const bool written = write_sealed(f, p);
        if (fclose(f) != 0 || !written || rename(temporary.text, path) != 0) {
            rc = fail(d, QN_EIO, "%s: %s", path, strerror(errno));
            remove(temporary.text);
        }
    }
    strbuf_fini(&temporary);
    return rc;
}

int program_read(struct diag *d, const char *path, struct prog_header **p) {
    struct mapfile f;
    TRY(mapfile_open(d, path, MAX_PROGRAM_BYTES, &f));
    void *copy = malloc(MAX(f.bytes, 1u));
    int rc = copy == NULL ? fail_nomem(d, f.bytes, path) : QN_OK;
    if (rc == QN_OK) {
        memcpy(copy, f.data, f.bytes);
        rc = unseal(d, path, copy, f.bytes);
    }
    mapfile_close(&f);
    if (rc != QN_OK)
        free(copy);
    else
        *p = copy;
    return rc;
}

/* ---- KV cache ----------------------------------------------------------------------------- */

static const uint64_t MAX_KV_BYTES = 1ull << 46;

/* Bytes of the first n rows of SECTION_KV together, for one block each. */
static uint64_t block_of_rows(const struct prog_header *p, uint64_t n) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < n; i++) bytes += kv_block_bytes(&PROG(p, KV)[i], p->kv_block);
    return bytes;
}

int program_kv_bytes(struct diag *d, const struct prog_header *p, uint32_t n_blocks,
                     uint64_t *bytes) {
    const uint64_t block = block_of_rows(p, p->section[SECTION_KV].count);
    if (checked_mul(block, n_blocks, bytes) && *bytes <= MAX_KV_BYTES) return QN_OK;
    return fail(d, QN_ELIMIT, "KV cache: %u blocks of %llu bytes are too many", n_blocks,
                (unsigned long long)block);
}

uint64_t program_kv_at(const struct prog_header *p, uint64_t kv, uint32_t n_blocks) {
    return block_of_rows(p, kv) * n_blocks;
}

const struct kv_row *program_kv_row(const struct prog_header *p, const struct prog_op *op) {
    const struct prog_tensor *t = state_of(p, op);
    return t == NULL ? NULL : &PROG(p, KV)[t->where];
}

/* ---- text --------------------------------------------------------------------------------- */

void program_task_name(const struct prog_header *p, uint32_t task, struct strbuf *out) {
    const struct prog_task *t = &PROG(p, TASK)[task];
    strbuf_printf(out, "task %u %s", task, op_name(t->kind));
    if (t->op == PROG_NONE) return;
    const struct prog_op *op = &PROG(p, OP)[t->op];
    if (op->layer >= 0) strbuf_printf(out, " L%d", op->layer);
    if (op_split_of(op->kind) == SPLIT_SLICES)
        strbuf_printf(out, " slice %u of %u", t->unit0, t->unit1);
    else
        strbuf_printf(out, " rows %u-%u units %u-%u", t->row0, t->row1, t->unit0, t->unit1);
}

static void dump_variant(const struct prog_header *p, const struct prog_variant *v,
                         struct strbuf *out) {
    strbuf_printf(out, "variant rows %u logit rows %u context %u%s start %u end %u jit %u\n",
                  v->n_rows, v->n_logit_rows, v->context, v->decode_only ? " decode only" : "",
                  v->start_event, v->end_event, v->n_jit_tasks);
    for (uint32_t i = v->first_tensor; i < v->first_tensor + v->n_tensors; i++) {
        static const char *const roles[] = {"weight", "activation", "state"};
        static const char *const transports[] = {
            "", " flagged", " flagged pairs", " sentinel", " space of sentinels", " own"};
        const struct prog_tensor *t = &PROG(p, TENSOR)[i];
        strbuf_printf(out, "tensor %u %s %s at %llu bytes %llu%s\n", i, roles[t->role],
                      program_string(p, t->name), (unsigned long long)t->where,
                      (unsigned long long)t->bytes, transports[t->transport]);
    }
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++) {
        const struct prog_task *t = &PROG(p, TASK)[i];
        program_task_name(p, i, out);
        strbuf_printf(out, " wait %u trigger %u", t->wait, t->trigger);
        if (t->worker == PROG_JIT)
            strbuf_str(out, " jit\n");
        else
            strbuf_printf(out, " worker %u\n", t->worker);
    }
    for (uint32_t i = v->first_event; i < v->first_event + v->n_events; i++) {
        const struct prog_event *e = &PROG(p, EVENT)[i];
        strbuf_printf(out, "event %u triggers %u tasks %u-%u jit %u%s\n", i, e->n_triggers,
                      e->first_task, e->first_task + e->n_tasks, e->n_jit,
                      e->transport == TRANSPORT_FLAG ? " on data" : "");
    }
}

void program_dump(const struct prog_header *p, struct strbuf *out) {
    strbuf_printf(out, "program: %llu bytes, %u workers, %u slots, %u positions, workspace %llu\n",
                  (unsigned long long)p->total_bytes, p->n_workers, p->n_slots, p->max_model_len,
                  (unsigned long long)p->workspace_bytes);
    for (uint64_t i = 0; i < p->section[SECTION_VARIANT].count; i++)
        dump_variant(p, &PROG(p, VARIANT)[i], out);
}

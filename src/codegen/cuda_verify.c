/* cuda_verify.c - see cuda_verify.h. */
#include "codegen/cuda_verify.h"
#include "codegen/cuda_verify_proof.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

static const struct prog_tensor *tensor_of(const struct cuda_proof *f, uint32_t tensor) {
    return tensor == PROG_NONE ? NULL : &PROG(f->p, TENSOR)[tensor];
}

/* ---- fields: the only place that knows where the descriptor has its operands --------------- */

static const char *const field_names[N_FIELDS] = {"w",    "in",    "norm", "bias",
                                                  "more", "more2", "out",  "out2"};

static uint64_t field_of(const struct cuda_task *t, enum field field) {
    const uint64_t all[N_FIELDS] = {t->w,    t->in,    t->norm, t->bias,
                                    t->more, t->more2, t->out,  t->out2};
    return all[field];
}

/* The names of an operator's operands by field. Weights that lie behind another one (check_joined)
 * and the operands that RESET_SENTINELS waits for have none. */
#define OPERANDS(ID, ...) [OP_##ID] = #__VA_ARGS__,
static const char *const operands[N_OP_KINDS] = {
#include "kernels/cuda/form.def"
};

/* The names of the operands in struct cuda_beyond, whose address is the word `bias`. */
#define BEYOND(ID, ...) [OP_##ID] = #__VA_ARGS__,
static const char *const beyond[N_OP_KINDS] = {
#include "kernels/cuda/form.def"
};

/* Reads the name before the next comma; returns the text behind that comma. */
static const char *read_name(const char *text, char name[OP_NAME_CHARS]) {
    size_t n = 0;
    for (; *text != '\0' && *text != ','; text++)
        if (*text != ' ' && n < OP_NAME_CHARS - 1) name[n++] = *text;
    name[n] = '\0';
    return *text == ',' ? text + 1 : text;
}

static int slot_named(const struct op_slot *slots, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(slots[i].name, name) == 0) return i;
    return -1;
}

/* Finds the operands of an operator by the names of a row: outputs, or else inputs. */
static int find_operands(struct cuda_proof *f, enum op_kind kind, const char *text, int n,
                         struct cuda_operand *operand) {
    const struct op_info *info = op_info_of(kind);
    for (int i = 0; i < n; i++) {
        char name[OP_NAME_CHARS] = "";
        if (text != NULL) text = read_name(text, name);
        if (*name == '\0') continue;
        const int out = slot_named(info->out, info->n_out, name);
        const int in = slot_named(info->in, info->n_in, name);
        if (out < 0 && in < 0)
            return fail(f->d, QN_EINTERNAL, "form.def: %s has no operand %s", info->name, name);
        operand[i] = (struct cuda_operand){true, out >= 0, (uint8_t)(out >= 0 ? out : in)};
    }
    return QN_OK;
}

static int find_all_operands(struct cuda_proof *f) {
    for (int kind = 1; kind < N_OP_KINDS; kind++) {
        const enum op_kind op = (enum op_kind)kind;
        TRY(find_operands(f, op, operands[kind], N_FIELDS, f->operands[kind]));
        TRY(find_operands(f, op, beyond[kind], N_BEYOND, f->beyond[kind]));
    }
    return QN_OK;
}

static const struct prog_tensor *
operand_tensor(const struct cuda_proof *f, const struct prog_op *op, const struct cuda_operand *o) {
    if (!o->there) return NULL;
    return tensor_of(f, o->out ? op->out[o->slot] : op->in[o->slot]);
}

const struct prog_tensor *cuda_proof_tensor(const struct cuda_proof *f, const struct prog_op *op,
                                            enum field field) {
    return operand_tensor(f, op, &f->operands[op->kind][field]);
}

/* ---- places -------------------------------------------------------------------------------- */

/* The bytes [from, to) of the allocation that a block of weights takes. A matrix takes whole units
 * of the LM head: rows past its end are read, too, and must be zeros. */
struct claim {
    uint64_t from, to;
    uint32_t weight;
};

static struct claim claim_of(const struct cuda_proof *f, uint32_t weight) {
    const struct prog_weight *w = &PROG(f->p, WEIGHT)[weight];
    const uint64_t from = f->t->places[weight].offset;
    const uint64_t blocks =
        CEIL_DIV((uint64_t)w->rows, (uint64_t)LM_BLOCK) * ((uint64_t)LM_BLOCK / CUDA_PAGE_ROWS);
    const uint64_t k_tiles = CEIL_DIV((uint64_t)w->cols, (uint64_t)CUDA_PAGE_K);
    const uint64_t bytes = w->n_dims == 1 ? 4ull * w->rows : blocks * k_tiles * CUDA_PAGE_BYTES;
    return (struct claim){from, from + bytes, weight};
}

static int bad_place(const struct cuda_proof *f, uint32_t weight, const char *what) {
    return fail(f->d, QN_EVERIFY, "weight %s: %s",
                program_string(f->p, PROG(f->p, WEIGHT)[weight].name), what);
}

static int check_place(const struct cuda_proof *f, uint32_t weight) {
    const struct prog_weight *w = &PROG(f->p, WEIGHT)[weight];
    const struct cuda_place *at = &f->t->places[weight];
    const struct claim c = claim_of(f, weight);
    const uint32_t k_tiles = w->n_dims == 2 ? CEIL_DIV(w->cols, (uint32_t)CUDA_PAGE_K) : 0;
    if (at->k_tiles != k_tiles)
        return bad_place(f, weight, "k_tiles do not follow from its columns");
    if (at->reserved != 0) return bad_place(f, weight, "reserved is not 0");
    if (at->offset % (w->n_dims == 2 ? 128 : 16) != 0) return bad_place(f, weight, "not aligned");
    if (c.to > f->t->weight_bytes || c.from >= c.to)
        return bad_place(f, weight, "it does not lie in the allocation");
    return QN_OK;
}

static int by_from(const void *a, const void *b) {
    const struct claim *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

static int check_places(struct cuda_proof *f) {
    const uint64_t n = f->p->section[SECTION_WEIGHT].count;
    struct claim *claims;
    TRY(ARENA_NEW(f->d, &f->arena, &claims, n));
    for (uint32_t i = 0; i < n; i++) {
        TRY(check_place(f, i));
        claims[i] = claim_of(f, i);
    }
    qsort(claims, n, sizeof *claims, by_from);
    for (uint64_t i = 1; i < n; i++)
        if (claims[i].from < claims[i - 1].to)
            return bad_place(f, claims[i].weight, "it shares bytes with another");
    return QN_OK;
}

/* ---- weights of an operator as kernels index them ------------------------------------------ */

/* Whether row i of a tensor is row at + i / run * stride + i % run of its block; run 0: row i. In a
 * stack, the rows of matrix c lie c * step rows further on, a step being the whole row blocks that
 * a matrix needs. Of two matrices in turns, each has half of these row blocks. */
static bool lies_so(const struct cuda_proof *f, uint32_t tensor, uint32_t at, uint32_t run,
                    uint32_t stride) {
    const struct prog_tensor *t = tensor_of(f, tensor);
    const uint32_t rows = run == 0 ? CUDA_PAGE_ROWS : run, blocks = CEIL_DIV(t->shape[1], rows);
    uint32_t next = at;
    for (uint32_t i = t->part; i < t->part + t->n_parts; i++) {
        const struct prog_part *part = &PROG(f->p, PART)[i];
        const bool plain = part->run >= part->rows || part->run == part->stride;
        if (t->n_dims == 3 && part->step != blocks * CUDA_PAGE_ROWS) return false;
        if (part->at != next || (run == 0 ? !plain : part->run != run || part->stride != stride))
            return false;
        next += part->rows;
    }
    return true;
}

/* Every weight lies from its block's first row on, in order; gate and up lie in turns of half a row
 * block. */
static int check_joined(const struct cuda_proof *f, const struct prog_op *op) {
    const uint32_t half = CUDA_PAGE_ROWS / 2;
    for (int i = 0; i < OP_MAX_IN; i++) {
        const struct prog_tensor *t = tensor_of(f, op->in[i]);
        if (t == NULL || t->role != PROG_WEIGHT) continue;
        const struct op_info *info = op_info_of(op->kind);
        const int gate = slot_named(info->in, info->n_in, "wg");
        const bool turns = gate >= 0 && (i == gate || i == gate + 1);
        if (turns ? !lies_so(f, op->in[i], i == gate ? 0 : half, half, CUDA_PAGE_ROWS) ||
                        t->where != PROG(f->p, TENSOR)[op->in[gate]].where
                  : !lies_so(f, op->in[i], 0, 0, 0))
            return fail(f->d, QN_EVERIFY,
                        "operator %s, layer %d: weight %d is not where its kernels read it",
                        op_name(op->kind), op->layer, i);
    }
    return QN_OK;
}

/* ---- one task ------------------------------------------------------------------------------ */

static int bad_task(const struct cuda_proof *f, uint32_t task, const char *field, uint64_t want,
                    uint64_t have) {
    struct strbuf name = {0};
    program_task_name(f->p, task, &name);
    const int rc =
        fail(f->d, QN_EVERIFY, "%s: %s of its descriptor: want %llu, have %llu", strbuf_text(&name),
             field, (unsigned long long)want, (unsigned long long)have);
    strbuf_fini(&name);
    return rc;
}

int cuda_proof_wanted(const struct cuda_proof *f, uint32_t task, const struct cuda_wanted *w,
                      size_t n) {
    for (size_t i = 0; i < n; i++)
        if (w[i].want != w[i].have) return bad_task(f, task, w[i].field, w[i].want, w[i].have);
    return QN_OK;
}

/* Whether an event is a hint: it orders nothing, but says when to look. */
static bool is_hint(const struct cuda_proof *f, uint32_t event) {
    return PROG(f->p, EVENT)[event].transport != TRANSPORT_COUNTER;
}

/* Columns of a row of a tensor, all inner dimensions. */
static uint64_t columns_of(const struct prog_tensor *t) {
    uint64_t n = 1;
    for (int i = 1; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

uint32_t cuda_proof_rows_before(const struct prog_op *op) {
    if (op == NULL || (op->kind != OP_LM_HEAD && op->kind != OP_SAMPLE)) return 0;
    return op->attrs.band_first;
}

static int check_protocol(const struct cuda_proof *f, uint32_t task) {
    const struct prog_task *p = &PROG(f->p, TASK)[task];
    const struct cuda_task *t = &f->t->tasks[task];
    const bool waits = p->wait != f->v->start_event;
    const uint32_t before =
        cuda_proof_rows_before(p->op == PROG_NONE ? NULL : &PROG(f->p, OP)[p->op]);
    const struct cuda_wanted all[] = {
        {"kind", p->kind, t->kind},
        {"index", task, t->index},
        {"row0", p->row0 + before, t->row0},
        {"row1", p->row1 + before, t->row1},
        {"unit0", p->unit0, t->unit0},
        {"unit1", p->unit1, t->unit1},
        {"wait", waits ? p->wait : PROG_NONE, t->wait},
        {"wait_triggers", waits ? PROG(f->p, EVENT)[p->wait].n_triggers : 0, t->wait_triggers},
        {"trigger", p->trigger, t->trigger},
        {"flag trigger_watched", p->trigger == f->v->end_event,
         (t->flags & CUDA_TRIGGER_WATCHED) != 0},
        {"flag wait_hint", is_hint(f, p->wait), (t->flags & CUDA_WAIT_HINT) != 0},
        {"flag trigger_hint", is_hint(f, p->trigger), (t->flags & CUDA_TRIGGER_HINT) != 0},
    };
    return cuda_proof_wanted(f, task, all, COUNT_OF(all));
}

/* Bytes of the caches of all layers before `layer`. */
static uint64_t cache_at(const struct cuda_proof *f, uint64_t layer) {
    uint64_t at = 0;
    for (uint64_t i = 0; i < layer; i++)
        at += kv_block_bytes(&PROG(f->p, KV)[i], f->p->kv_block) * f->t->bases.n_kv_blocks;
    return at;
}

/* The address of a tensor, which lies in its space. */
static uint64_t address_of(const struct cuda_proof *f, const struct prog_tensor *t) {
    if (t == NULL) return 0;
    switch (t->role) {
    case PROG_WEIGHT: return f->t->bases.weights + f->t->places[t->where].offset;
    case PROG_ACTIVATION: return f->t->bases.workspace + t->where;
    default: return f->t->bases.kv + cache_at(f, t->where);
    }
}

/* The address of the table of embeddings, of which SAMPLE prefetches its token's row; 0: the
 * program has none. */
static uint64_t table_address(const struct cuda_proof *f) {
    for (uint64_t i = 0; i < f->p->section[SECTION_OP].count; i++) {
        const struct prog_op *op = &PROG(f->p, OP)[i];
        if (op->kind == OP_EMBED) return address_of(f, tensor_of(f, op->in[EMBED_TABLE]));
    }
    return 0;
}

/* The address of an operator's struct cuda_beyond: the rows follow the task table. */
static uint64_t beyond_address(const struct cuda_proof *f, const struct prog_op *op) {
    const uint64_t n_tasks = f->p->section[SECTION_TASK].count;
    const uint32_t row = f->beyond_row[op - PROG(f->p, OP)];
    return f->t->bases.tasks + n_tasks * sizeof(struct cuda_task) +
           row * sizeof(struct cuda_beyond);
}

static bool has_beyond(const struct prog_op *op) {
    return beyond[op->kind] != NULL;
}

/* Whether an operand lies in the workspace, if it is an activation. */
static bool is_inside(const struct cuda_proof *f, const struct prog_tensor *t) {
    return t == NULL || t->role != PROG_ACTIVATION ||
           range_inside(t->where, t->bytes, f->p->workspace_bytes);
}

/* The rows behind the task table are those of the operators that have one, in order. */
static int check_beyond(struct cuda_proof *f) {
    const uint64_t n_tasks = f->p->section[SECTION_TASK].count;
    const struct cuda_beyond *rows = (const struct cuda_beyond *)(f->t->tasks + n_tasks);
    uint32_t n = 0;
    TRY(ARENA_NEW(f->d, &f->kept, &f->beyond_row, f->p->section[SECTION_OP].count));
    for (uint64_t i = 0; i < f->p->section[SECTION_OP].count; i++) {
        const struct prog_op *op = &PROG(f->p, OP)[i];
        if (!has_beyond(op)) continue;
        f->beyond_row[i] = n++;
        for (int k = 0; k < N_BEYOND; k++) {
            const struct prog_tensor *t = operand_tensor(f, op, &f->beyond[op->kind][k]);
            const uint64_t want = address_of(f, t), have = rows[n - 1].at[k];
            if (have != want || have % 16 != 0 || !is_inside(f, t))
                return fail(f->d, QN_EVERIFY,
                            "operator %s, layer %d: address %d beyond its descriptors: want %llu, "
                            "have %llu",
                            op_name(op->kind), op->layer, k, (unsigned long long)want,
                            (unsigned long long)have);
        }
    }
    return QN_OK;
}

/* Bytes by which an operand begins before its tensor, if the tensor holds only a band's rows. */
static uint64_t bytes_before(const struct prog_op *op, enum field field,
                             const struct prog_tensor *t) {
    const bool head = op->kind == OP_LM_HEAD && (field == F_OUT || field == F_OUT2);
    const bool sample =
        op->kind == OP_SAMPLE && (field == F_IN || field == F_MORE || field == F_OUT);
    return head || sample ? cuda_proof_rows_before(op) * 4 * columns_of(t) : 0;
}

static int check_operands(const struct cuda_proof *f, uint32_t task, const struct prog_op *op,
                          uint64_t table) {
    for (int field = 0; field < N_FIELDS; field++) {
        const struct prog_tensor *t =
            op == NULL ? NULL : cuda_proof_tensor(f, op, (enum field)field);
        const uint64_t have = field_of(&f->t->tasks[task], (enum field)field);
        uint64_t want = address_of(f, t) - (t == NULL ? 0 : bytes_before(op, (enum field)field, t));
        if (field == F_W && op != NULL && op->kind == OP_SAMPLE) want = table;
        if (field == F_BIAS && op != NULL && has_beyond(op)) want = beyond_address(f, op);
        if (have != want) return bad_task(f, task, field_names[field], want, have);
        if (have % 16 != 0) return bad_task(f, task, "alignment of an operand", 0, have % 16);
        if (t != NULL && !is_inside(f, t))
            return bad_task(f, task, "an operand's end", f->p->workspace_bytes,
                            t->where + t->bytes);
    }
    return QN_OK;
}

/* ---- formats ------------------------------------------------------------------------------- */

enum format { PLAIN, FLAGGED, PAIRED, PACKED };

/* The format of a tensor's elements, from the number of its bytes. */
static enum format format_of(const struct prog_tensor *t) {
    if (t->layout == LAYOUT_PACKED) return PACKED;
    if (t->transport == TRANSPORT_PAIR) return PAIRED;
    uint64_t elements = 1;
    for (int i = 0; i < t->n_dims; i++) elements *= t->shape[i];
    return t->transport == TRANSPORT_SPACE || t->bytes == 4 * elements ? PLAIN : FLAGGED;
}

/* The format that the descriptor gives a field. Fields without a flag are plain. */
static enum format format_in(const struct cuda_task *t, const struct prog_op *op,
                             enum field field) {
    const bool stream = op_writes_stream(op->kind);
    const uint16_t flags = t->flags;
    switch (field) {
    case F_IN:
        return flags & CUDA_IN_PACKED    ? PACKED
               : flags & CUDA_IN_PAIRED  ? PAIRED
               : flags & CUDA_IN_FLAGGED ? FLAGGED
                                         : PLAIN;
    case F_OUT:
        return flags & CUDA_OUT_PACKED && !stream ? PACKED
               : flags & CUDA_OUT_PAIRED          ? PAIRED
               : flags & CUDA_OUT_FLAGGED         ? FLAGGED
                                                  : PLAIN;
    case F_OUT2: return flags & CUDA_OUT_PACKED && stream ? PACKED : PLAIN;
    case F_MORE: return flags & CUDA_MORE_FLAGGED ? FLAGGED : PLAIN;
    default: return PLAIN;
    }
}

/* The flags that a task may have: those of operands that it has, one format for each operand. A
 * loader that waits for a list of experts needs a counter: a hint orders nothing. */
static int check_bits(const struct cuda_proof *f, uint32_t task, const struct prog_op *op) {
    const uint16_t flags = f->t->tasks[task].flags;
    const bool list_known = f->list_known[task - f->v->first_task];
    const bool waits_for_list = op != NULL && cuda_lists_experts(op->kind) && !list_known;
    const struct prog_tensor *in = op == NULL ? NULL : cuda_proof_tensor(f, op, F_IN);
    const struct prog_tensor *more = op == NULL ? NULL : cuda_proof_tensor(f, op, F_MORE);
    const bool owns =
        op != NULL && op->kind == OP_LINEAR && more != NULL && more->transport == TRANSPORT_OWN;
    const uint16_t ins = CUDA_IN_FLAGGED | CUDA_IN_PAIRED | CUDA_IN_PACKED;
    const uint16_t outs = CUDA_OUT_FLAGGED | CUDA_OUT_PAIRED | CUDA_OUT_PACKED;
    const uint16_t events = CUDA_TRIGGER_WATCHED | CUDA_WAIT_HINT | CUDA_TRIGGER_HINT;
    const uint16_t known = ins | outs | events | CUDA_MORE_FLAGGED | CUDA_MORE_OWN |
                           CUDA_LIST_KNOWN | CUDA_SHARED_FLAGGED | CUDA_LOGITS_POLLED;
    const bool polls_more = op != NULL && more != NULL &&
                            (op->kind == OP_LINEAR || op->kind == OP_EXPERT_DOWN ||
                             op->kind == OP_LATENT_HEADS || op->kind == OP_EXPERT_GATE_UP);
    const bool polls_logits =
        op != NULL && op->kind == OP_EXPERT_GATE_UP && more != NULL &&
        (more->transport == TRANSPORT_FLAG || more->transport == TRANSPORT_SENTINEL);
    const bool stream =
        op != NULL && op_writes_stream(op->kind); /* out and out2 have formats of their own */
    const uint16_t packed = CUDA_OUT_PACKED;
    const struct cuda_wanted all[] = {
        {"unknown flags", 0, flags & (uint16_t)~known},
        {"flag list_known", list_known, (flags & CUDA_LIST_KNOWN) != 0},
        {"hint of a list", 0, waits_for_list && is_hint(f, PROG(f->p, TASK)[task].wait)},
        {"flags of in", 0, in == NULL ? flags & ins : 0},
        {"kinds of in", 1, MAX(1, __builtin_popcount(flags & ins))},
        {"flags of out", 0, op == NULL ? flags & outs : 0},
        {"kinds of out", 1, MAX(1, __builtin_popcount(flags & (stream ? outs & ~packed : outs)))},
        {"flag more_flagged", 0, polls_more ? 0 : flags & CUDA_MORE_FLAGGED},
        {"flag more_own", owns, (flags & CUDA_MORE_OWN) != 0},
        {"flag logits_polled", polls_logits, (flags & CUDA_LOGITS_POLLED) != 0},
    };
    return cuda_proof_wanted(f, task, all, COUNT_OF(all));
}

/* The operands in struct cuda_beyond are plain, but for `shared`, which may carry flags. */
static int check_beyond_formats(const struct cuda_proof *f, uint32_t task,
                                const struct prog_op *op) {
    const bool flagged = (f->t->tasks[task].flags & CUDA_SHARED_FLAGGED) != 0;
    bool shares = false;
    for (int k = 0; op != NULL && k < N_BEYOND; k++) {
        const struct prog_tensor *x = operand_tensor(f, op, &f->beyond[op->kind][k]);
        const enum format have = k == BEYOND_SHARED && flagged ? FLAGGED : PLAIN;
        if (x == NULL) continue;
        shares = shares || k == BEYOND_SHARED;
        if (format_of(x) != have)
            return bad_task(f, task, "an operand beyond its words", format_of(x), have);
    }
    return flagged && !shares ? bad_task(f, task, "flag shared_flagged", 0, 1) : QN_OK;
}

static int check_formats(const struct cuda_proof *f, uint32_t task, const struct prog_op *op) {
    static const uint8_t fields[] = {F_IN, F_MORE, F_MORE2, F_OUT, F_OUT2};
    const struct cuda_task *t = &f->t->tasks[task];
    bool packs = false;
    TRY(check_bits(f, task, op));
    TRY(check_beyond_formats(f, task, op));
    for (size_t i = 0; op != NULL && i < COUNT_OF(fields); i++) {
        const enum field field = (enum field)fields[i];
        const struct prog_tensor *x = cuda_proof_tensor(f, op, field);
        if (x == NULL || x->role != PROG_ACTIVATION) continue;
        if (format_of(x) != format_in(t, op, field))
            return bad_task(f, task, field_names[field], format_of(x), format_in(t, op, field));
        packs = packs || (field >= F_OUT && format_of(x) == PACKED);
    }
    if (!packs && (t->flags & CUDA_OUT_PACKED) != 0)
        return bad_task(f, task, "flag out_packed", 0, 1);
    return QN_OK;
}

/* ---- numbers that follow from shapes ------------------------------------------------------- */

/* Groups of eight rows of a packed tensor: pieces of 1 KB for every 64 columns. */
static uint32_t eights_in(const struct prog_tensor *t) {
    if (t == NULL || t->role != PROG_ACTIVATION || format_of(t) != PACKED) return 0;
    const uint64_t columns = CEIL_DIV((uint64_t)t->shape[1], (uint64_t)PACK_K) * PACK_K;
    return (uint32_t)(t->bytes / (columns * 2 * PACK_ROWS));
}

/* Groups of rows of the packed operand: the result, else the input. */
static uint32_t eights_of(const struct cuda_proof *f, const struct prog_op *op) {
    static const uint8_t fields[] = {F_OUT, F_OUT2, F_IN};
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        const uint32_t n = eights_in(cuda_proof_tensor(f, op, (enum field)fields[i]));
        if (n != 0) return n;
    }
    return 0;
}

static uint64_t pieces_of(const struct cuda_proof *f, const struct prog_op *op) {
    const uint64_t state = (uint64_t)op->attrs.heads * (op->attrs.DV + (uint64_t)PART_HEAD);
    const struct prog_tensor *squares = cuda_proof_tensor(f, op, F_MORE2);
    switch (op->kind) {
    case OP_ATTENTION_SPLIT:
    case OP_ATTENTION_STEP: return columns_of(cuda_proof_tensor(f, op, F_OUT)) / state;
    case OP_LATENT_MERGE:
    case OP_ATTENTION_MERGE: return columns_of(cuda_proof_tensor(f, op, F_IN)) / state;
    case OP_PACK_LOGITS: return eights_in(cuda_proof_tensor(f, op, F_IN));
    case OP_ROUTE:
    case OP_ROUTE_TOP_K: return (uint64_t)op->layer;
    case OP_LATENT_NORM: return columns_of(cuda_proof_tensor(f, op, F_IN));
    case OP_LATENT_HEADS: return columns_of(cuda_proof_tensor(f, op, F_MORE));
    case OP_LINEAR_SPLITK: /* of a part's columns */
        return columns_of(cuda_proof_tensor(f, op, F_OUT)) /
               MIN(cuda_k_tiles(op->k), (uint32_t)PARTIALS) / CUDA_PAGE_ROWS;
    case OP_SPLITK_SUM: return columns_of(cuda_proof_tensor(f, op, F_IN)) / f->spec->hidden;
    case OP_EXPERT_GATE_UP: return 0; /* its more2 are slots */
    default: return squares != NULL && squares->role == PROG_ACTIVATION ? columns_of(squares) : 0;
    }
}

/* Operators whose k is the window of their layer. */
static bool sees_context(uint32_t kind) {
    return kind == OP_ATTENTION_MERGE || kind == OP_ATTENTION_STEP || kind == OP_ATTENTION_WHOLE ||
           kind == OP_ATTENTION || kind == OP_ATTENTION_SPLIT;
}

static uint64_t length_of(const struct cuda_proof *f, const struct prog_op *op) {
    switch (op->kind) {
    case OP_PACK:
    case OP_PACK_LOGITS:
    case OP_LATENT_HEADS: return columns_of(cuda_proof_tensor(f, op, F_IN));
    case OP_LATENT_NORM: return columns_of(cuda_proof_tensor(f, op, F_OUT));
    case OP_RESET_SENTINELS: return cuda_proof_tensor(f, op, F_OUT)->bytes / RESET_UNITS;
    case OP_ROUTE:
    case OP_ROUTE_LIST: return cuda_proof_tensor(f, op, F_IN)->shape[0];
    default: return sees_context(op->kind) ? op->attrs.window : op->k;
    }
}

static int check_numbers(const struct cuda_proof *f, uint32_t task, const struct prog_op *op) {
    const struct cuda_task *t = &f->t->tasks[task];
    const uint64_t k = op == NULL ? 0 : length_of(f, op);
    const uint64_t multiplied = op != NULL && op->kind == OP_LATENT_HEADS ? op->k : k;
    const bool tiled = op != NULL && op->kind != OP_RESET_SENTINELS && op->kind != OP_ROUTE &&
                       op->kind != OP_ROUTE_LIST && !sees_context(op->kind);
    const struct cuda_wanted all[] = {
        {"units", op == NULL ? 0 : op->units, t->units},
        {"k", k, t->k},
        {"k_tiles", tiled ? CEIL_DIV(multiplied, (uint64_t)CUDA_PAGE_K) : 0, t->k_tiles},
        {"n_pieces", op == NULL ? 0 : pieces_of(f, op), t->n_pieces},
        {"eights", op == NULL ? 0 : eights_of(f, op), t->eights},
    };
    return cuda_proof_wanted(f, task, all, COUNT_OF(all));
}

/* ---- an operator --------------------------------------------------------------------------- */

static int by_rows(const void *a, const void *b) {
    const struct cuda_task *x = a, *y = b;
    if (x->row0 != y->row0) return x->row0 < y->row0 ? -1 : 1;
    return x->unit0 < y->unit0 ? -1 : x->unit0 > y->unit0;
}

static int check_op(struct cuda_proof *f, const struct prog_op *op, struct cuda_task *t,
                    uint64_t n) {
    TRY(check_joined(f, op));
    qsort(t, n, sizeof *t, by_rows);
    if (!cuda_proof_covers(f, op, t, n))
        return fail(f->d, QN_EVERIFY,
                    "operator %s, layer %d: its descriptors do not make up its output once",
                    op_name(op->kind), op->layer);
    return QN_OK;
}

/* Checks the descriptors of each operator, in copies that it sorts. */
static int check_ops(struct cuda_proof *f) {
    const struct prog_variant *v = f->v;
    uint32_t *first;
    struct cuda_task *of_op;
    TRY(ARENA_NEW(f->d, &f->arena, &first, v->n_ops + 2));
    TRY(ARENA_NEW(f->d, &f->arena, &of_op, v->n_tasks));
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++)
        if (PROG(f->p, TASK)[i].op != PROG_NONE) first[PROG(f->p, TASK)[i].op - v->first_op + 2]++;
    for (uint32_t o = 0; o < v->n_ops; o++) first[o + 2] += first[o + 1];
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++)
        if (PROG(f->p, TASK)[i].op != PROG_NONE)
            of_op[first[PROG(f->p, TASK)[i].op - v->first_op + 1]++] = f->t->tasks[i];
    for (uint32_t o = 0; o < v->n_ops; o++)
        TRY(check_op(f, &PROG(f->p, OP)[v->first_op + o], of_op + first[o],
                     first[o + 1] - first[o]));
    return QN_OK;
}

/* The list of experts that a task of that kind reads; PROG_NONE: it is of another kind. */
static uint32_t list_of(const struct cuda_proof *f, uint32_t task, enum op_kind kind) {
    const uint32_t o = PROG(f->p, TASK)[task].op;
    if (o == PROG_NONE || PROG(f->p, OP)[o].kind != kind) return PROG_NONE;
    return PROG(f->p, OP)[o].in[kind == OP_EXPERT_DOWN ? DOWN_LIST : GATE_UP_LIST];
}

static bool op_writes(const struct prog_op *op, uint32_t tensor) {
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (op->out[i] == tensor) return true;
    return false;
}

/* Whether the operator that writes EXPERT_DOWN's list writes its slots and weights, too. */
static bool routes_whole(const struct cuda_proof *f, const struct prog_op *down) {
    for (const struct prog_op *op = down; op-- > &PROG(f->p, OP)[f->v->first_op];)
        if (op_writes(op, down->in[DOWN_LIST]))
            return op_writes(op, down->in[DOWN_SLOTS]) && op_writes(op, down->in[DOWN_WEIGHT]);
    return false;
}

/* A worker goes through its list in order. At EXPERT_GATE_UP its loader and its compute warps wait
 * for the event that orders the list of experts. From there on they may read that list of experts,
 * and the compute warps its slots and weights. All of these live until EXPERT_DOWN is done. */
static int find_known_lists(struct cuda_proof *f) {
    const uint64_t at = (uint64_t)(f->v - PROG(f->p, VARIANT)) * f->p->n_workers;
    TRY(ARENA_NEW(f->d, &f->arena, &f->list_known, f->v->n_tasks));
    for (uint64_t w = 0; w < f->p->n_workers; w++) {
        const struct prog_list *l = &PROG(f->p, LIST)[at + w];
        uint32_t read = PROG_NONE;
        for (uint32_t i = l->first; i < l->first + l->n; i++) {
            const uint32_t task = PROG(f->p, AOT)[i];
            const uint32_t up = list_of(f, task, OP_EXPERT_GATE_UP);
            const uint32_t down = list_of(f, task, OP_EXPERT_DOWN);
            if (up != PROG_NONE) read = up;
            f->list_known[task - f->v->first_task] =
                down != PROG_NONE && down == read &&
                routes_whole(f, &PROG(f->p, OP)[PROG(f->p, TASK)[task].op]);
        }
    }
    return QN_OK;
}

static int check_variant(struct cuda_proof *f) {
    const uint64_t table = table_address(f);
    TRY(find_known_lists(f));
    for (uint32_t i = f->v->first_task; i < f->v->first_task + f->v->n_tasks; i++) {
        const uint32_t o = PROG(f->p, TASK)[i].op;
        const struct prog_op *op = o == PROG_NONE ? NULL : &PROG(f->p, OP)[o];
        TRY(check_protocol(f, i));
        TRY(check_operands(f, i, op, table));
        TRY(check_formats(f, i, op));
        TRY(check_numbers(f, i, op));
        TRY(cuda_proof_walk(f, i, op));
    }
    return check_ops(f);
}

int cuda_verify(struct diag *d, const struct prog_header *program, const struct cuda_tables *t) {
    struct cuda_proof f = {.d = d,
                           .p = program,
                           .spec = PROG(program, MODEL),
                           .t = t,
                           .cc = t->bases.cc != 0 ? t->bases.cc : 90};
    int rc = find_all_operands(&f);
    if (rc == QN_OK) rc = check_places(&f);
    if (rc == QN_OK) rc = check_beyond(&f);
    for (uint64_t i = 0; i < program->section[SECTION_VARIANT].count && rc == QN_OK; i++) {
        f.v = &PROG(program, VARIANT)[i];
        rc = check_variant(&f);
        arena_fini(&f.arena);
    }
    arena_fini(&f.arena);
    arena_fini(&f.kept);
    return rc;
}

/* ---- without a device ---------------------------------------------------------------------- */

static int make_and_verify(struct diag *d, const struct prog_header *p, uint32_t cc,
                           struct cuda_place *places, struct cuda_task *tasks) {
    /* Addresses far from each other, like those of separate allocations. */
    struct cuda_tables t = {.places = places,
                            .tasks = tasks,
                            .bases = {.weights = 1ull << 40,
                                      .workspace = 2ull << 40,
                                      .kv = 3ull << 40,
                                      .tasks = 4ull << 40,
                                      .n_kv_blocks = 16,
                                      .cc = cc}};
    TRY(cuda_tables_plan(d, p, places, &t.weight_bytes));
    TRY(cuda_tables_check(d, p, &t.bases));
    TRY(cuda_tables_fill(d, p, places, &t.bases, tasks));
    return cuda_verify(d, p, &t);
}

int cuda_verify_program(struct diag *d, const struct prog_header *program, uint32_t cc) {
    struct arena arena = {0};
    struct cuda_place *places;
    struct cuda_task *tasks;
    const uint64_t n_tasks = CEIL_DIV(cuda_tables_bytes(program), sizeof *tasks);
    int rc = ARENA_NEW(d, &arena, &places, program->section[SECTION_WEIGHT].count);
    if (rc == QN_OK) rc = ARENA_NEW(d, &arena, &tasks, n_tasks);
    if (rc == QN_OK) rc = make_and_verify(d, program, cc, places, tasks);
    arena_fini(&arena);
    return rc;
}

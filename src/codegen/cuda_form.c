/* cuda_form.c - see cuda_form.h. The names in form.def's columns are defined here. */
#include "codegen/cuda_form.h"
#include "base/checked.h"
#include "codegen/cuda_tables.h"
#include "codegen/emit.h"
#include "graph/expert_list.h"
#include "plan/cost.h"

#include <assert.h>
#include <stdlib.h>

enum { LEAST = 1, MANY = UINT16_MAX + 1 };

/* A task for which a form is chosen. */
struct form_case {
    const struct cuda_form_host *host;
    const struct model_spec *spec;
    const struct prog_op *op;
    uint32_t rows;
    bool packed;
};

/* ---- column `has`: model and device ---- */

static bool has_any(const struct cuda_form_host *h) {
    (void)h;
    return true;
}
/* HEADS: keys and values are heads of their own. */
static bool has_heads(const struct cuda_form_host *h) {
    return !spec_is_latent(PROG(h->program, MODEL));
}
/* TWO_PIECES: a warp's share of a piece's keys and values is one page, and the ring holds the pages
 * of two pieces (attention_items.cuh). */
static bool has_two_pieces(const struct cuda_form_host *h) {
    const uint32_t warps = CUDA_COMPUTE_WARPS, share = ATTENTION_PIECE / warps;
    const uint32_t ring = cuda_lease_bytes(h->device.cc) - CUDA_SCRATCH_BYTES;
    return has_heads(h) && 2 * share * 2 * PROG(h->program, MODEL)->head_dim <= CUDA_PAGE_BYTES &&
           2 * warps * CUDA_PAGE_BYTES <= ring;
}
/* LATENT: keys and values are latents, and a part of a piece fits shared memory. */
static bool has_latent(const struct cuda_form_host *h) {
    return !has_heads(h) && cuda_latent_part(PROG(h->program, KV)->k_width, h->device.cc) != 0;
}
/* LATENT_PAGES: a piece of latents comes as pages. */
static bool has_latent_pages(const struct cuda_form_host *h) {
    return !has_heads(h) &&
           cuda_latent_paged(PROG(h->program, KV)->k_width, h->program->kv_block, h->device.cc);
}
/* PREFILL: a head's outputs fit registers, a piece fits shared memory. */
static bool has_prefill(const struct cuda_form_host *h) {
    return has_heads(h) && cuda_rows_fit(PROG(h->program, MODEL)->head_dim, h->device.cc);
}
/* PARTS: wgmma, for operators whose columns are cut into parts. */
static bool has_parts(const struct cuda_form_host *h) {
    return h->device.has.wgmma;
}
/* HEAD_TILES: wgmma, and tiles are whole heads. */
static bool has_head_tiles(const struct cuda_form_host *h) {
    return h->device.has.wgmma && has_heads(h) &&
           cuda_head_tiles(PROG(h->program, MODEL)->head_dim);
}

/* EXPERTS: the model has experts. ROUTER_ROW: and a row fits scratch. DOWN_ROW: and what a row's
 * experts make of it fits scratch. */
static bool has_experts(const struct cuda_form_host *h) {
    return PROG(h->program, MODEL)->experts.n != 0;
}
static bool has_router_row(const struct cuda_form_host *h) {
    return has_experts(h) && PROG(h->program, MODEL)->hidden <= CUDA_ROUTER_ROW_HIDDEN;
}
static bool has_down_row(const struct cuda_form_host *h) {
    const struct experts_spec *e = &PROG(h->program, MODEL)->experts;
    return has_experts(h) && expert_row_is_staged(e->width, e->top_k);
}

/* GROUPED: wgmma, for tiles of the slots of an expert. */
static bool has_grouped(const struct cuda_form_host *h) {
    return has_experts(h) && h->device.has.wgmma;
}

/* ---- column `when`: the task ---- */

static bool when_always(const struct form_case *c, const struct cuda_task *t) {
    (void)c;
    (void)t;
    return true;
}
/* WHOLE: the task has all rows of its graph. */
static bool when_whole(const struct form_case *c, const struct cuda_task *t) {
    return t->eights == CEIL_DIV(c->rows, (uint32_t)PACK_ROWS);
}

/* ALONE: the graph has one token row. */
static bool when_alone(const struct form_case *c, const struct cuda_task *t) {
    (void)t;
    return c->op->n_rows == 1;
}
/* UNCUT: the task has all token rows of its graph. */
static bool when_uncut(const struct form_case *c, const struct cuda_task *t) {
    return t->row0 == 0 && t->row1 == c->op->n_rows;
}

/* MERGED: the merged heads fit scratch, beside partial sums. */
static bool when_merged(const struct form_case *c, const struct cuda_task *t) {
    (void)t;
    return cuda_merge_group(spec_v_dim(c->spec), c->op->attrs.DV) != 0;
}

/* Query heads of an item of attention; token rows of an item of PREFILL. */
static uint32_t item_heads(const struct op_attrs *a) {
    return cuda_sub_heads(a->heads / a->kv, a->D);
}
static uint32_t item_rows(const struct op_attrs *a) {
    return CUDA_COMPUTE_WARPS * (16 / item_heads(a));
}

/* ---- column `walk` ---- */

static void walk_nothing(const struct form_case *c, struct cuda_task *t) {
    (void)c;
    (void)t;
}

static_assert(99 * 1024 - CUDA_SCRATCH_BYTES - CUDA_CONTROL_BYTES >=
                  CUDA_PAGE_BYTES * CUDA_COMPUTE_WARPS,
              "a ring of a page for each warp on every device");
static_assert(2 * STAGED_COLUMNS + 4 * LM_BLOCK + 4 * PARTIALS * CUDA_PAGE_ROWS <=
                  CUDA_SCRATCH_BYTES,
              "scratch for the widest staged row and a row block");

/* STAGED: scratch holds the activations and the partial sums of a group of row blocks, for the LM
 * head also a unit's results. */
static void walk_staged(const struct form_case *c, struct cuda_task *t) {
    const uint32_t unit_blocks = c->op->kind == OP_LM_HEAD ? LM_BLOCK / CUDA_PAGE_ROWS : 0;
    const uint32_t partials = PARTIALS * CUDA_PAGE_ROWS * 4;
    const uint32_t fixed = t->k_tiles * CUDA_PAGE_K * 2 + unit_blocks * CUDA_PAGE_ROWS * 4;
    t->tile = 1;
    t->columns = 0;
    t->unit_blocks = (uint8_t)unit_blocks;
    t->group = (uint8_t)MIN((CUDA_SCRATCH_BYTES - fixed) / partials, (uint32_t)CUDA_ROW_GROUP);
    if (unit_blocks != 0) t->group = (uint8_t)MIN((uint32_t)t->group, unit_blocks);
}

/* STREAM: row blocks in groups of nearly equal size. */
static void walk_stream(const struct form_case *c, struct cuda_task *t) {
    (void)c;
    const uint32_t blocks = t->block1 - t->block0;
    t->columns = (uint8_t)t->eights;
    t->tile = (uint8_t)(8 * t->columns);
    t->group = (uint8_t)CEIL_DIV(blocks, CEIL_DIV(blocks, cuda_packed_group(t->kind, t->columns)));
}

/* TILE: the smallest tile (matmul_tile.cuh) that has all rows, or the largest. */
static void walk_tile(const struct form_case *c, struct cuda_task *t) {
    const uint32_t blocks = t->block1 - t->block0;
    t->tile = c->rows > PACK_NARROW       ? PACK_TILE
              : c->rows > PACK_NARROW / 2 ? PACK_NARROW
                                          : PACK_NARROW / 2;
    t->group = blocks > 4 ? 8 : blocks > 2 || t->tile == PACK_TILE ? 4 : 2;
    /* Every pass over row blocks reads all activations again. */
    if (t->tile != PACK_TILE && CEIL_DIV(blocks, 12u) < CEIL_DIV(blocks, 8u)) t->group = 12;
    if (t->kind == OP_LINEAR_SPLITK && t->tile != PACK_TILE && blocks > 12) t->group = 16;
    /* The smallest tiles come in three sizes, since each size is more code to compile. */
    if (t->tile < PACK_NARROW && t->group < 12) t->group = t->group == 8 ? 12 : 4;
    t->columns = CUDA_LEASE;
}

/* WIDE: the same, but tiles of PACK_WIDE tokens on Hopper where tiles of PACK_TILE tokens would be
 * several, which all read the activations again. */
static void walk_wide(const struct form_case *c, struct cuda_task *t) {
    const bool several = t->block1 - t->block0 > PACK_TILE / CUDA_PAGE_ROWS;
    walk_tile(c, t);
    if (!c->host->device.has.wgmma || !several || t->tile != PACK_TILE || c->rows > PACK_WIDE)
        return;
    t->tile = PACK_WIDE;
    t->group = t->kind == OP_LINEAR_SPLITK ? 16 : 12;
}

/* GROUPED: tiles of the slots of an expert. */
static void walk_grouped(const struct form_case *c, struct cuda_task *t) {
    (void)c;
    t->tile = PACK_TILE;
    t->group = 8;
    t->columns = CUDA_LEASE;
}

/* MIXED: steps of 16 rows, in the leased ring. */
static void walk_mixed(const struct form_case *c, struct cuda_task *t) {
    (void)c;
    t->columns = CUDA_LEASE;
}

/* ROUTER: pages row block by row block, for up to CUDA_ROUTER_ROWS token rows at a time. */
static void walk_router(const struct form_case *c, struct cuda_task *t) {
    t->columns = 0;
    t->tile = (uint8_t)MIN(c->rows, (uint32_t)CUDA_ROUTER_ROWS);
}

static void walk_prefill(const struct form_case *c, struct cuda_task *t) {
    t->columns = CUDA_LEASE;
    t->tile = (uint8_t)item_rows(&c->op->attrs);
}

/* LATENT: items of a row and its heads, in the leased ring. */
static void walk_latent(const struct form_case *c, struct cuda_task *t) {
    (void)c;
    t->columns = CUDA_LEASE;
    t->tile = 1;
}

/* HEADS_OWN: pages in the image's order, once for each tile of rows. If a dot product takes several
 * pages, scratch holds the partial sums of a group. */
static void walk_heads_own(const struct form_case *c, struct cuda_task *t) {
    const bool sums = c->op->kind == OP_LATENT_VALUES;
    const uint32_t most = sums ? CUDA_VALUES_ROWS : PACK_TILE;
    t->tile = (uint8_t)MIN(CEIL_DIV(c->rows, (uint32_t)PACK_ROWS) * PACK_ROWS, most);
    t->group = sums ? (uint8_t)cuda_values_group(t->k_tiles, t->tile) : 1;
}

/* MERGED: the same for PACK_ROWS rows at a time, beside the merged heads. */
static void walk_merged(const struct form_case *c, struct cuda_task *t) {
    t->tile = PACK_ROWS;
    t->group = (uint8_t)cuda_merge_group(spec_v_dim(c->spec), c->op->attrs.DV);
}

/* ---- the table ---- */

enum form_layout { FROM_ANY, FROM_ROWS, FROM_PACKED };
enum form_k { K_WIDTH_0, K_WIDTH_1, K_WIDTH_2, K_WIDTH_3, K_ANY };
_Static_assert((int)K_ANY == (int)EMIT_LINEAR_WIDTHS, "one each");

/* A condition of column `has`, and the reason to print where it does not hold. */
struct form_has {
    bool (*holds)(const struct cuda_form_host *h);
    const char *lacks;
};
struct form_when {
    bool (*holds)(const struct form_case *c, const struct cuda_task *t);
    const char *lacks;
};

/* Names in capitals are form.def's. */
#define HAS_ANY          has_any, NULL
#define HAS_HEADS        has_heads, "keys and values are latents"
#define HAS_TWO_PIECES   has_two_pieces, "the ring does not hold two pieces of keys and values"
#define HAS_LATENT       has_latent, "no latents, or they do not fit shared memory"
#define HAS_LATENT_PAGES has_latent_pages, "no latents, or a piece of them is not pages of the ring"
#define HAS_PREFILL      has_prefill, "a piece of the context does not fit shared memory"
#define HAS_PARTS        has_parts, "only sm_90 has wgmma"
#define HAS_HEAD_TILES   has_head_tiles, "sm_90 has tiles of heads that are a part of 128 columns"
#define HAS_EXPERTS      has_experts, "the model has no experts"
#define HAS_GROUPED      has_grouped, "only sm_90 has tiles of so many rows of experts"
#define HAS_ROUTER_ROW   has_router_row, "a row does not fit shared memory twice"
#define HAS_DOWN_ROW     has_down_row, "a row's experts do not fit shared memory"
#define WHEN_ALWAYS      when_always, NULL
#define WHEN_WHOLE       when_whole, "its tasks have some of the rows"
#define WHEN_ALONE       when_alone, "its graph has several rows"
#define WHEN_UNCUT       when_uncut, "its tasks have some of the rows"
#define WHEN_MERGED      when_merged, "heads' outputs do not fit scratch"
#define WALK_NOTHING     walk_nothing
#define WALK_STAGED      walk_staged
#define WALK_STREAM      walk_stream
#define WALK_TILE        walk_tile
#define WALK_WIDE        walk_wide
#define WALK_GROUPED     walk_grouped
#define WALK_MIXED       walk_mixed
#define WALK_PREFILL     walk_prefill
#define WALK_ROUTER      walk_router
#define WALK_LATENT      walk_latent
#define WALK_HEADS_OWN   walk_heads_own
#define WALK_MERGED      walk_merged

struct form {
    const char *name;
    enum op_kind kind;
    enum cuda_form entry;
    uint32_t least, most;
    enum form_layout layout;
    enum form_k k;
    struct form_has has;
    struct form_when when;
    void (*walk)(const struct form_case *c, struct cuda_task *t);
};

static const struct form forms[] = {
#define FORM(kind, name, entry, least, most, layout, k, has, when, walk)                           \
    {#name,         OP_##kind, FORM_##entry, least,         most,                                  \
     FROM_##layout, K_##k,     {HAS_##has},  {WHEN_##when}, WALK_##walk},
#include "kernels/cuda/form.def"
};

/* Entries that may run in place of another one, `of`: form.def's NOW. */
static const struct {
    enum cuda_form entry, of;
    struct form_has has;
} replacements[] = {
#define NOW(entry, of, has, ...) {FORM_##entry, FORM_##of, {HAS_##has}},
#include "kernels/cuda/form.def"
};

struct cuda_form_host cuda_form_host_of(const struct prog_header *program,
                                        const struct device *device) {
    struct cuda_form_host host = {.program = program, .device = *device};
    for (uint32_t i = 0; i < EMIT_LINEAR_WIDTHS; i++)
        host.widths[i] = emit_linear_width(program, i);
    return host;
}

struct cuda_form_host cuda_form_host_for(const struct prog_header *program, uint32_t cc) {
    const struct device device = device_cuda(cc != 0 ? cc : 90, program->n_workers, 0);
    return cuda_form_host_of(program, &device);
}

/* Whether a matrix product's activations are packed; otherwise they are rows. */
static bool is_packed(const struct prog_header *p, const struct prog_op *op) {
    return cuda_has_pages(op->kind) && PROG(p, TENSOR)[op->in[0]].layout == LAYOUT_PACKED;
}

/* Why a form of the operator cannot run the task; NULL: it can. */
static const char *lacks(const struct form *f, const struct form_case *c,
                         const struct cuda_task *t) {
    if (c->rows < f->least) return "too few rows";
    if (c->rows > f->most) return "too many rows";
    if (f->layout == FROM_PACKED && !c->packed) return "its activations are not packed";
    if (f->layout == FROM_ROWS && c->packed) return "its activations are packed";
    if (f->k != K_ANY && c->op->k != c->host->widths[f->k])
        return "its products have another length";
    if (!f->has.holds(c->host)) return f->has.lacks;
    return f->when.holds(c, t) ? NULL : f->when.lacks;
}

static struct form_case case_of(const struct cuda_form_host *host, const struct prog_op *op,
                                const struct cuda_task *t) {
    return (struct form_case){host, PROG(host->program, MODEL), op, t->row1 - t->row0,
                              is_packed(host->program, op)};
}

/* The first form that can run the task; NULL: none. */
static const struct form *choose(const struct form_case *c, const struct cuda_task *t) {
    for (size_t i = 0; i < COUNT_OF(forms); i++)
        if (forms[i].kind == (enum op_kind)c->op->kind && lacks(&forms[i], c, t) == NULL)
            return &forms[i];
    return NULL;
}

void cuda_form_fill(const struct cuda_form_host *host, const struct prog_op *op,
                    struct cuda_task *t) {
    t->form = FORM_nothing;
    if (op == NULL) return;
    const struct form_case c = case_of(host, op, t);
    const struct form *f = choose(&c, t);
    assert(f != NULL); /* cuda_form_used */
    t->form = (uint8_t)f->entry;
    f->walk(&c, t);
}

const char *cuda_form_name(uint32_t kind, uint32_t form) {
    for (size_t i = 0; i < COUNT_OF(forms); i++)
        if (forms[i].kind == kind && forms[i].entry == form) return forms[i].name;
    return "?";
}

const char *cuda_entry_name(uint32_t entry) {
    static const char *const names[N_FORMS] = {
#define ENTRY(name, ...) [FORM_##name] = #name,
#include "kernels/cuda/form.def"
    };
    return entry < N_FORMS && names[entry] != NULL ? names[entry] : "?";
}

/* Bytes of weights that the tasks of an operator read: each row tile reads all of them. */
static uint64_t read_bytes(const struct form_case *c) {
    const struct prog_tensor *tensors = PROG(c->host->program, TENSOR);
    const struct prog_weight *weights = PROG(c->host->program, WEIGHT);
    uint64_t bytes = 0;
    for (int i = 0; i < OP_MAX_IN && cuda_has_pages(c->op->kind); i++) {
        const uint32_t in = c->op->in[i];
        if (in == PROG_NONE || tensors[in].role != PROG_WEIGHT) continue;
        const struct prog_weight *w = &weights[tensors[in].where];
        bytes += (uint64_t)w->rows * MAX(w->cols, 1u) * dtype_bytes((enum dtype)w->dtype);
    }
    return bytes * CEIL_DIV(c->op->n_rows, MAX(c->rows, 1u));
}

uint32_t cuda_form_stand_ins(const struct cuda_form_host *host, uint32_t entry,
                             const char *names[CUDA_FORM_ROWS]) {
    uint32_t n = 0;
    for (size_t i = 0; i < COUNT_OF(replacements) && n < CUDA_FORM_ROWS; i++)
        if (replacements[i].of == entry && replacements[i].has.holds(host))
            names[n++] = cuda_entry_name(replacements[i].entry);
    return n;
}

uint32_t cuda_form_list(const struct cuda_form_host *host, const struct prog_task *task,
                        uint32_t context, struct cuda_form_row rows[CUDA_FORM_ROWS]) {
    struct cuda_task t;
    uint32_t n = 0;
    if (task->op == PROG_NONE) return 0;
    cuda_tables_shape(host->program, task, &t);
    const struct form_case c = case_of(host, &PROG(host->program, OP)[task->op], &t);
    const struct form *taken = choose(&c, &t);
    const struct cost_attention a = {&host->device, c.spec, c.op->n_rows,
                                     CEIL_DIV(context, (uint32_t)ATTENTION_PIECE)};
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        if (forms[i].kind != (enum op_kind)c.op->kind || n == CUDA_FORM_ROWS) continue;
        rows[n++] = (struct cuda_form_row){
            .name = forms[i].name,
            .entry = forms[i].entry,
            .why_not = lacks(&forms[i], &c, &t),
            .ns = cost_operator(&a, (enum op_kind)c.op->kind, read_bytes(&c)),
            .taken = &forms[i] == taken,
        };
    }
    return n;
}

/* Adds the entries that may run in place of used ones. */
static void add_replacements(const struct cuda_form_host *host, bool *used) {
    for (size_t i = 0; i < COUNT_OF(replacements); i++)
        if (used[replacements[i].of] && replacements[i].has.holds(host))
            used[replacements[i].entry] = true;
}

int cuda_form_used(struct diag *d, const struct prog_header *program, uint32_t cc, bool *used) {
    const struct cuda_form_host host = cuda_form_host_for(program, cc);
    const struct prog_task *tasks = PROG(program, TASK);
    uint32_t op = PROG_NONE, n_rows = 0;
    for (int i = 0; i < N_FORMS; i++) used[i] = false;
    used[FORM_nothing] = true;
    for (uint64_t i = 0; i < program->section[SECTION_TASK].count; i++) {
        const struct prog_task *task = &tasks[i];
        /* Tasks of one operator with equally many rows have the same form. */
        if (task->op == PROG_NONE || (task->op == op && task->row1 - task->row0 == n_rows))
            continue;
        op = task->op;
        n_rows = task->row1 - task->row0;
        struct cuda_task t;
        cuda_tables_shape(program, task, &t);
        const struct form_case c = case_of(&host, &PROG(program, OP)[op], &t);
        const struct form *f = choose(&c, &t);
        if (f == NULL)
            return fail(d, QN_EUNSUPPORTED,
                        "operator %s: sm_%u has no form of it for %u rows (form.def)",
                        op_name(task->kind), host.device.cc, n_rows);
        used[f->entry] = true;
    }
    add_replacements(&host, used);
    return QN_OK;
}

void cuda_form_all(const struct prog_header *program, uint32_t cc, bool *used) {
    const struct cuda_form_host host = cuda_form_host_for(program, cc);
    for (int i = 0; i < N_FORMS; i++) used[i] = false;
    used[FORM_nothing] = true;
    for (size_t i = 0; i < COUNT_OF(forms); i++)
        if (forms[i].has.holds(&host) && (forms[i].k == K_ANY || host.widths[forms[i].k] != 0))
            used[forms[i].entry] = true;
    add_replacements(&host, used);
}

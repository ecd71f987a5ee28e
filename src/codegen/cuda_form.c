/* cuda_form.c - see cuda_form.h. The names in form.def's columns are defined here. */
#include "codegen/cuda_form.h"
#include "base/checked.h"
#include "codegen/cuda_tables.h"
#include "codegen/emit.h"

#include <stdlib.h>

enum { LEAST = 1, MANY = UINT16_MAX + 1 };

/* A task that looks for a form. */
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
/* The KV cache comes to attention as pages. */
static bool has_pages(const struct cuda_form_host *h) {
    return h->kv_pages;
}
/* Attention leases the ring. */
static bool has_leases(const struct cuda_form_host *h) {
    return h->leases && cuda_rows_fit(PROG(h->program, MODEL)->head_dim, h->cc);
}
/* wgmma: columns of an operator are cut into parts. */
static bool has_parts(const struct cuda_form_host *h) {
    return h->cc / 10 == 9;
}
/* 32 rows stream. */
static bool has_stream_32(const struct cuda_form_host *h) {
    return rows_stream(CUDA_WIDE * PACK_ROWS, PROG(h->program, MODEL)->hidden, h->cc / 10 == 9);
}

/* ---- column `when`: the task ---- */

static bool when_always(const struct form_case *c, const struct cuda_task *t) {
    (void)c;
    (void)t;
    return true;
}
/* It has all rows of its graph. */
static bool when_whole(const struct form_case *c, const struct cuda_task *t) {
    return t->eights == CEIL_DIV(c->rows, (uint32_t)PACK_ROWS);
}
/* ... and its result is normed. */
static bool when_normed(const struct form_case *c, const struct cuda_task *t) {
    return when_whole(c, t) && c->op->in[LINEAR_NEXT] != PROG_NONE;
}

/* Query heads that share a step of 16 rows; token rows of an item of attention by rows. */
static uint32_t step_heads(const struct model_spec *s) {
    return MIN(s->n_heads / s->n_kv_heads, 16u);
}
static uint32_t item_rows(const struct model_spec *s) {
    return CUDA_COMPUTE_WARPS * (16 / step_heads(s));
}

/* Half of the tasks have one of the items that warps share. */
static bool when_filling(const struct form_case *c, const struct cuda_task *t) {
    const struct model_spec *s = c->spec;
    const uint32_t heads = s->n_heads / s->n_kv_heads, rows = item_rows(s);
    const uint32_t items =
        CEIL_DIV(c->op->n_rows, rows) * s->n_kv_heads * CEIL_DIV(heads, step_heads(s));
    return c->op->n_rows >= rows && 2 * items >= t->unit1;
}

/* ---- column `walk` ---- */

static void walk_nothing(const struct form_case *c, struct cuda_task *t) {
    (void)c;
    (void)t;
}

/* Its activations and some row blocks' partial sums are in scratch, those of the LM head also a
 * unit's results. */
static void walk_staged(const struct form_case *c, struct cuda_task *t) {
    const uint32_t unit_blocks = c->op->kind == OP_LM_HEAD ? LM_BLOCK / CUDA_PAGE_ROWS : 0;
    const uint32_t partials = CUDA_PARTIALS * CUDA_PAGE_ROWS * 4;
    const uint32_t fixed = t->k_tiles * CUDA_PAGE_K * 2 + unit_blocks * CUDA_PAGE_ROWS * 4;
    t->tile = 1;
    t->columns = 0;
    t->unit_blocks = (uint8_t)unit_blocks;
    t->group = (uint8_t)MIN((CUDA_SCRATCH_BYTES - fixed) / partials, (uint32_t)CUDA_ROW_GROUP);
    if (unit_blocks != 0) t->group = (uint8_t)MIN((uint32_t)t->group, unit_blocks);
}

/* In groups of like size. */
static void walk_stream(const struct form_case *c, struct cuda_task *t) {
    (void)c;
    const uint32_t blocks = t->block1 - t->block0;
    t->columns = (uint8_t)t->eights;
    t->tile = (uint8_t)(8 * t->columns);
    const uint32_t most =
        t->columns == CUDA_WIDE ? cuda_wide_group(t->kind) : cuda_packed_group(t->kind, t->columns);
    t->group = (uint8_t)CEIL_DIV(blocks, CEIL_DIV(blocks, most));
}

/* The smallest of the tiles of packed.cuh. */
static void walk_tile(const struct form_case *c, struct cuda_task *t) {
    const uint32_t blocks = t->block1 - t->block0;
    t->tile = c->rows > PACK_NARROW       ? PACK_TILE
              : c->rows > PACK_NARROW / 2 ? PACK_NARROW
                                          : PACK_NARROW / 2;
    t->group = blocks > 4 ? 8 : blocks > 2 || t->tile == PACK_TILE ? 4 : 2;
    /* Every pass over row blocks reads all activations again. */
    if (t->tile != PACK_TILE && CEIL_DIV(blocks, 12u) < CEIL_DIV(blocks, 8u)) t->group = 12;
    if (t->kind == OP_LINEAR_PARTS && blocks > 12) t->group = 16;
    /* The smallest tiles come in three sizes, since each is more to compile. */
    if (t->tile < PACK_NARROW && t->group < 12) t->group = t->group == 8 ? 12 : 4;
    t->columns = CUDA_LEASE;
}

static void walk_by_steps(const struct form_case *c, struct cuda_task *t) {
    if (c->host->leases) t->columns = CUDA_LEASE;
}

static void walk_by_rows(const struct form_case *c, struct cuda_task *t) {
    t->columns = CUDA_LEASE;
    t->tile = (uint8_t)item_rows(c->spec);
}

/* ---- the table ---- */

enum form_layout { LAYOUT_ANY, LAYOUT_ROWS, LAYOUT_PACKED };
enum form_k { K_ANY, K_HEADS };

/* By enum form_has, form_when, form_walk: names in capitals are form.def's. */
#define HAS_ANY       has_any
#define HAS_PAGES     has_pages
#define HAS_LEASES    has_leases
#define HAS_PARTS     has_parts
#define HAS_STREAM_32 has_stream_32
#define WHEN_ALWAYS   when_always
#define WHEN_WHOLE    when_whole
#define WHEN_NORMED   when_normed
#define WHEN_FILLING  when_filling
#define WALK_NOTHING  walk_nothing
#define WALK_STAGED   walk_staged
#define WALK_STREAM   walk_stream
#define WALK_TILE     walk_tile
#define WALK_BY_STEPS walk_by_steps
#define WALK_BY_ROWS  walk_by_rows

struct form {
    const char *name;
    enum op_kind kind;
    enum cuda_form entry;
    uint32_t least, most;
    enum form_layout layout;
    enum form_k k;
    bool (*has)(const struct cuda_form_host *h);
    bool (*when)(const struct form_case *c, const struct cuda_task *t);
    void (*walk)(const struct form_case *c, struct cuda_task *t);
};

static const struct form forms[] = {
#define FORM(kind, name, entry, least, most, layout, k, has, when, walk)                           \
    {#name,           OP_##kind, FORM_##entry, least,       most,                                  \
     LAYOUT_##layout, K_##k,     HAS_##has,    WHEN_##when, WALK_##walk},
#include "kernels/cuda/form.def"
};

/* What stands in for an entry at run time. */
static const struct {
    enum cuda_form entry, of;
    bool (*has)(const struct cuda_form_host *h);
} replacements[] = {
#define NOW(entry, of, has, ...) {FORM_##entry, FORM_##of, HAS_##has},
#include "kernels/cuda/form.def"
};

struct cuda_form_host cuda_form_host_of(const struct prog_header *program, uint32_t cc) {
    return (struct cuda_form_host){.program = program,
                                   .cc = cc != 0 ? cc : 90,
                                   .kv_pages = emit_kv_pages(program),
                                   .leases = emit_attention_leases(program)};
}

/* A matrix product's activations are packed, or rows. */
static bool is_packed(const struct prog_header *p, const struct prog_op *op) {
    return cuda_has_pages(op->kind) && PROG(p, TENSOR)[op->in[0]].dtype != DTYPE_F32;
}

static bool can_run(const struct form *f, const struct form_case *c, const struct cuda_task *t) {
    if (f->kind != c->op->kind || c->rows < f->least || c->rows > f->most) return false;
    if (f->layout != LAYOUT_ANY && (f->layout == LAYOUT_PACKED) != c->packed) return false;
    if (f->k == K_HEADS && c->op->k != c->spec->n_heads * c->spec->head_dim) return false;
    return f->has(c->host) && f->when(c, t);
}

/* The row blocks of an operator with weights. */
static void fill_blocks(const struct prog_op *op, struct cuda_task *t) {
    if (!cuda_has_pages(op->kind)) return;
    const uint32_t per_block = op->kind == OP_GATED_MLP ? 8 : CUDA_PAGE_ROWS;
    const uint32_t blocks = LM_BLOCK / CUDA_PAGE_ROWS;
    t->block0 = op->kind == OP_LM_HEAD ? t->unit0 * blocks : t->unit0 / per_block;
    t->block1 = op->kind == OP_LM_HEAD ? t->unit1 * blocks : CEIL_DIV(t->unit1, per_block);
}

bool cuda_form_fill(const struct cuda_form_host *host, const struct prog_op *op,
                    struct cuda_task *t) {
    t->form = FORM_nothing;
    if (op == NULL) return true;
    const struct form_case c = {host, PROG(host->program, MODEL), op, t->row1 - t->row0,
                                is_packed(host->program, op)};
    fill_blocks(op, t);
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        if (!can_run(&forms[i], &c, t)) continue;
        t->form = (uint8_t)forms[i].entry;
        forms[i].walk(&c, t);
        return true;
    }
    return false;
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

/* Adds what may stand in for those that are used. */
static void add_replacements(const struct cuda_form_host *host, bool *used) {
    for (size_t i = 0; i < COUNT_OF(replacements); i++)
        if (used[replacements[i].of] && replacements[i].has(host))
            used[replacements[i].entry] = true;
}

int cuda_form_used(struct diag *d, const struct prog_header *program, uint32_t cc, bool *used) {
    const struct cuda_form_host host = cuda_form_host_of(program, cc);
    const uint64_t n = program->section[SECTION_TASK].count;
    for (int i = 0; i < N_FORMS; i++) used[i] = false;
    used[FORM_nothing] = true;
    for (uint64_t i = 0; i < n; i++) {
        const struct prog_task *task = &PROG(program, TASK)[i];
        struct cuda_task t;
        if (!cuda_tables_shape(&host, task, &t))
            return fail(d, QN_EUNSUPPORTED, "operator %s: sm_%u has no form of it for %u rows",
                        op_name(task->kind), host.cc, task->row1 - task->row0);
        used[t.form] = true;
    }
    add_replacements(&host, used);
    return QN_OK;
}

void cuda_form_all(const struct prog_header *program, uint32_t cc, bool *used) {
    const struct cuda_form_host host = cuda_form_host_of(program, cc);
    for (int i = 0; i < N_FORMS; i++) used[i] = false;
    used[FORM_nothing] = true;
    for (size_t i = 0; i < COUNT_OF(forms); i++)
        if (forms[i].has(&host)) used[forms[i].entry] = true;
    add_replacements(&host, used);
}

/* emit.c - see emit.h. */
#include "codegen/emit.h"
#include "codegen/cuda_abi.h"
#include "graph/expert_list.h"
#include "kernels/cuda/form.h"

#include <stdbool.h>
#include <string.h>

/* Name after QN_, field of struct model_spec. */
#define SPEC_CONSTANTS(X)                                                                          \
    X(HIDDEN, hidden)                                                                              \
    X(VOCAB, vocab)                                                                                \
    X(N_HEADS, n_heads)                                                                            \
    X(N_KV_HEADS, n_kv_heads)                                                                      \
    X(HEAD_DIM, head_dim)                                                                          \
    X(QKV_BIAS, qkv_bias)                                                                          \
    X(O_BIAS, o_bias)                                                                              \
    X(MLP_BIAS, mlp_bias)                                                                          \
    X(QK_NORM, qk_norm)                                                                            \
    X(WEIGHT_DTYPE, weight_dtype)                                                                  \
    X(EXPERTS, experts.n)                                                                          \
    X(TOP_K, experts.top_k)                                                                        \
    X(EXPERT_WIDTH, experts.width)                                                                 \
    X(EXPERT_GATES, experts.shared_gate)                                                           \
    X(EXPERT_NORMED, experts.normed)                                                               \
    X(EXPERT_GROUPS, experts.groups)                                                               \
    X(EXPERT_TOP_GROUPS, experts.top_groups)                                                       \
    X(SLIDING_WINDOW, sliding_window)

/* Whether there are JIT tasks: the image then has tasks_jit.cuh instead of tasks_aot.cuh. */
static bool has_jit(const struct prog_header *program) {
    const struct prog_task *t = PROG(program, TASK);
    for (uint64_t i = 0; i < program->section[SECTION_TASK].count; i++)
        if (t[i].worker == PROG_JIT) return true;
    return false;
}

static enum prog_transport transport_of(const struct prog_header *program, uint32_t tensor) {
    return tensor == PROG_NONE ? TRANSPORT_COUNTER
                               : (enum prog_transport)PROG(program, TENSOR)[tensor].transport;
}

/* Whether all activations between projections, MLP and LINEAR of a single row carry flags, in pairs
 * where they are rounded anyway. This is the usual case, in which their code has no branches for
 * flags (kernels/cuda/matmul/matvec.cuh). */
static bool has_row_flags(const struct prog_header *program) {
    const struct prog_op *o = PROG(program, OP);
    for (uint64_t i = 0; i < program->section[SECTION_OP].count; i++, o++) {
        const bool linear = o->kind == OP_LINEAR, mlp = o->kind == OP_GATED_MLP;
        if (o->n_rows != 1 || !(linear || mlp || o->kind == OP_QKV_LINEAR)) continue;
        if (transport_of(program, o->in[0]) != (linear ? TRANSPORT_PAIR : TRANSPORT_FLAG))
            return false;
        if (transport_of(program, o->out[0]) != (mlp ? TRANSPORT_PAIR : TRANSPORT_FLAG))
            return false;
        const uint32_t residual = linear ? o->in[LINEAR_RESIDUAL] : PROG_NONE;
        if (residual != PROG_NONE && transport_of(program, residual) != TRANSPORT_FLAG)
            return false;
    }
    return true;
}

/* Whether there is a LINEAR of several rows that no norm follows. */
static bool has_bare_rows(const struct prog_header *program) {
    const struct prog_op *o = PROG(program, OP);
    for (uint64_t i = 0; i < program->section[SECTION_OP].count; i++, o++)
        if (o->kind == OP_LINEAR && o->n_rows > 1 && o->in[LINEAR_NEXT] == PROG_NONE) return true;
    return false;
}

static bool is_linear(const struct prog_op *op) {
    return op->kind == OP_LINEAR || op->kind == OP_LINEAR_SPLITK;
}

/* Whether a linear operator before number `at` has dot products of the same length. */
static bool is_width_known(const struct prog_op *ops, uint64_t at) {
    for (uint64_t i = 0; i < at; i++)
        if (is_linear(&ops[i]) && ops[i].k == ops[at].k) return true;
    return false;
}

uint32_t emit_linear_width(const struct prog_header *program, uint32_t n) {
    const struct prog_op *ops = PROG(program, OP);
    for (uint64_t i = 0; i < program->section[SECTION_OP].count; i++)
        if (is_linear(&ops[i]) && !is_width_known(ops, i) && n-- == 0) return ops[i].k;
    return 0;
}

/* The lengths of LINEAR's dot products: each as a constant, all of them as a list. */
static void emit_linear_widths(const struct prog_header *program, struct strbuf *out) {
    uint32_t widths[EMIT_LINEAR_WIDTHS];
    for (uint32_t i = 0; i < EMIT_LINEAR_WIDTHS; i++) {
        widths[i] = emit_linear_width(program, i);
        strbuf_printf(out, "#define QN_LINEAR_WIDTH_%u %u\n", (unsigned)i, (unsigned)widths[i]);
    }
    uint32_t n = 0;
    strbuf_printf(out, "#define QN_LINEAR_WIDTHS(X)");
    for (; n < EMIT_LINEAR_WIDTHS && widths[n] != 0; n++)
        strbuf_printf(out, " X(%u, %u)", (unsigned)n, (unsigned)widths[n]);
    strbuf_printf(out, "\n#define QN_N_LINEAR_WIDTHS %u\n", (unsigned)n);
}

/* Widths of keys and values, and strides of the KV cache in elements: from a block to the next,
 * from a head's keys to the next head's, from a key to the value of the same head and position. */
static void emit_kv(const struct prog_header *program, struct strbuf *out) {
    const struct kv_row *r = PROG(program, KV);
    const uint32_t block = program->kv_block;
    strbuf_printf(out, "#define QN_KV_BLOCK %u\n", (unsigned)block);
    strbuf_printf(out, "#define QN_KV_DTYPE %u\n", (unsigned)r->dtype);
    strbuf_printf(out, "#define QN_KEY_DIM %u\n", (unsigned)r->k_width);
    strbuf_printf(out, "#define QN_VALUE_DIM %u\n", (unsigned)r->v_width);
    strbuf_printf(out, "#define QN_KV_BLOCK_STRIDE %u\n", (unsigned)kv_block_elements(r, block));
    strbuf_printf(out, "#define QN_KV_HEAD_STRIDE %u\n", (unsigned)kv_key_at(r, block, 1, 0));
    strbuf_printf(out, "#define QN_KV_VALUE_STRIDE %u\n", (unsigned)kv_values_at(r, block));
}

/* A float's bits: exact, whatever the locale writes for a decimal point. */
static void emit_float(const char *name, float v, struct strbuf *out) {
    uint32_t bits;
    __builtin_memcpy(&bits, &v, sizeof bits);
    strbuf_printf(out, "#define QN_%s 0x%08xu\n", name, (unsigned)bits);
}

uint32_t emit_placing(const struct prog_header *program) {
    const struct prog_op *ops = PROG(program, OP);
    for (uint64_t i = 0; i < program->section[SECTION_OP].count; i++)
        if (ops[i].kind == OP_EXPERT_GATE_UP) return ops[i].attrs.placed;
    return EXPERT_SLICED;
}

uint32_t emit_mlp_width(const struct prog_header *program) {
    const struct prog_op *ops = PROG(program, OP);
    uint32_t width = 0;
    for (uint64_t i = 0; i < program->section[SECTION_OP].count; i++) {
        if (ops[i].kind != OP_GATED_MLP) continue;
        if (width != 0 && ops[i].units != width) return 0;
        width = ops[i].units;
    }
    return width;
}

/* The eps of the latents' norm. */
static float latent_eps(const struct prog_header *program) {
    const struct prog_op *ops = PROG(program, OP);
    for (uint64_t i = 0; i < program->section[SECTION_OP].count; i++)
        if (ops[i].kind == OP_LATENT_HEADS) return ops[i].attrs.eps;
    return 0;
}

/* Constants of latent attention: elements of a head that RoPE turns, width of a head's value, the
 * factor of scores, the eps of the latents' norm. */
static void emit_latent(const struct prog_header *program, struct strbuf *out) {
    const struct model_spec *spec = PROG(program, MODEL);
    strbuf_printf(out, "#define QN_LATENT %d\n", spec_is_latent(spec) != 0);
    strbuf_printf(out, "#define QN_ROPE_DIM %u\n", (unsigned)spec_rope_dim(spec));
    strbuf_printf(out, "#define QN_HEAD_VALUE_DIM %u\n", (unsigned)spec_v_dim(spec));
    emit_float("SCALE_BITS", spec->latent.scale, out);
    emit_float("LATENT_EPS_BITS", latent_eps(program), out);
}

void emit_constants(const struct prog_header *program, struct strbuf *out) {
    const struct model_spec *spec = PROG(program, MODEL);
#define X(name, field) strbuf_printf(out, "#define QN_" #name " %u\n", (unsigned)spec->field);
    SPEC_CONSTANTS(X)
#undef X
    emit_float("RMS_EPS_BITS", spec->rms_eps, out);
    emit_float("EXPERT_SCALE_BITS", spec->experts.scale != 0 ? spec->experts.scale : 1, out);
    strbuf_printf(out, "#define QN_MLP_WIDTH %u\n", (unsigned)emit_mlp_width(program));
    strbuf_printf(out, "#define QN_EXPERT_PLACING %u\n", (unsigned)emit_placing(program));
    strbuf_printf(out, "#define QN_WINDOWS_DIFFER %d\n", spec_windows_differ(spec));
    strbuf_printf(out, "#define QN_ROPE_SWITCH %uu\n",
                  (unsigned)spec_rope_switch(spec, program->max_model_len));
    emit_kv(program, out);
    emit_latent(program, out);
    strbuf_printf(out, "#define QN_JIT %d\n", has_jit(program));
    strbuf_printf(out, "#define QN_QKV_COLUMNS %u\n", (unsigned)spec_projected(spec));
    strbuf_printf(out, "#define QN_BARE_ROWS %d\n", has_bare_rows(program));
    strbuf_printf(out, "#define QN_ROW_FLAGS %d\n", has_row_flags(program));
    emit_linear_widths(program, out);
}

void emit_forms(const bool *used, struct strbuf *out) {
#define ENTRY(name, ...) strbuf_printf(out, "#define QN_HAS_" #name " %d\n", used[FORM_##name]);
#include "kernels/cuda/form.def"
}

void emit_unit(const char *entry, struct strbuf *out) {
    strbuf_printf(out, "#include \"%s\"\n#include \"%s\"\n", EMIT_HEADER, entry);
}

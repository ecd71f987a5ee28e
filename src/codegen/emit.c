/* emit.c - see emit.h. */
#include "codegen/emit.h"

/* Name after QN_, field of struct model_spec. */
#define SPEC_CONSTANTS(X)                                                                          \
    X(N_LAYERS, n_layers)                                                                          \
    X(HIDDEN, hidden)                                                                              \
    X(INTERMEDIATE, intermediate)                                                                  \
    X(VOCAB, vocab)                                                                                \
    X(N_HEADS, n_heads)                                                                            \
    X(N_KV_HEADS, n_kv_heads)                                                                      \
    X(HEAD_DIM, head_dim)                                                                          \
    X(QKV_BIAS, qkv_bias)                                                                          \
    X(O_BIAS, o_bias)                                                                              \
    X(MLP_BIAS, mlp_bias)                                                                          \
    X(QK_NORM, qk_norm)                                                                            \
    X(TIED, tied)                                                                                  \
    X(WEIGHT_DTYPE, weight_dtype)                                                                  \
    X(SLIDING_WINDOW, sliding_window)

void emit_constants(const struct prog_header *program, struct strbuf *out) {
    const struct model_spec *spec = PROG(program, MODEL);
#define X(name, field) strbuf_printf(out, "#define QN_" #name " %u\n", (unsigned)spec->field);
    SPEC_CONSTANTS(X)
#undef X
    /* Hexadecimal floats are exact, whatever the locale writes for a decimal point. */
    uint32_t bits;
    __builtin_memcpy(&bits, &spec->rms_eps, sizeof bits);
    strbuf_printf(out, "#define QN_RMS_EPS_BITS 0x%08xu\n", (unsigned)bits);
    strbuf_printf(out, "#define QN_KV_BLOCK %u\n", (unsigned)program->kv_block);
    strbuf_printf(out, "#define QN_KV_DTYPE %u\n", (unsigned)program->kv_dtype);
}

void emit_unit(const char *entry, struct strbuf *out) {
    strbuf_printf(out, "#include \"%s\"\n#include \"%s\"\n", EMIT_HEADER, entry);
}

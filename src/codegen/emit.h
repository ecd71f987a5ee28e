/* emit.h - the generated CUDA: a list of #defines, nothing else.
 *
 * All code is in src/kernels/cuda. Models differ by a handful of literal constants, which the
 * compiler needs to unroll loops and to drop branches. They become the virtual file
 * "codegen/generated.h". Numbers that differ only from run to run (slots, workers, the longest
 * context, addresses) are not among them: the kernel reads these from its arguments and the
 * program, so that one image serves all runs.
 *
 *     #define QN_HIDDEN 1024
 *     #define QN_N_HEADS 16
 *     ...
 */
#ifndef QN_CODEGEN_EMIT_H
#define QN_CODEGEN_EMIT_H

#include "base/strbuf.h"
#include "graph/model_spec.h"
#include "task/program.h"

#define EMIT_HEADER "codegen/generated.h"

/* Writes the constants of one program (emit.c's table). Deterministic: equal constants, equal text.
 */
void emit_constants(const struct prog_header *program, struct strbuf *out);

/* Writes QN_HAS_name, 0 or 1, for each entry of kernels/cuda/form.def: used[N_FORMS]. */
void emit_forms(const bool *used, struct strbuf *out);

/* The n-th length of LINEAR's dot products, in the order of the program's operators: such as the
 * widths of attention's output and of the MLP's. 0: there are fewer lengths. LINEAR's code is
 * compiled for each. */
enum { EMIT_LINEAR_WIDTHS = 4 };
uint32_t emit_linear_width(const struct prog_header *program, uint32_t n);

/* The width of all gated MLPs; 0: the program has none, or of several widths. */
uint32_t emit_mlp_width(const struct prog_header *program);

/* How the program's experts are placed (enum expert_placing): as in its first EXPERT_GATE_UP. */
uint32_t emit_placing(const struct prog_header *program);

/* The translation unit: includes the constants and then `entry` ("kernels/cuda/mega.cuh"). */
void emit_unit(const char *entry, struct strbuf *out);

#endif

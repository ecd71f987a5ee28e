/* emit.h - the little CUDA that is generated: a list of #defines, nothing else.
 *
 * Everything that computes is in src/kernels/cuda; what differs from model to model is a handful of
 * literal constants, which the compiler needs to unroll loops and to drop branches. They become
 * the virtual file "codegen/generated.h". What differs from run to run only (slots, workers, the
 * longest context, addresses) stays out: the kernel reads it from its arguments and the program,
 * so that one image serves all of them.
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

/* Writes the constants of one program. Deterministic: equal constants, equal text. Which they are:
 * emit.c's table. */
void emit_constants(const struct prog_header *program, struct strbuf *out);

/* Writes QN_HAS_name, 0 or 1, for each entry of kernels/cuda/form.def: used[N_FORMS]. */
void emit_forms(const bool *used, struct strbuf *out);

/* LINEAR's code is compiled for each length of its dot products: those of the attention's output
 * and of the MLP's, say. The n-th, in the order in which the program's operators have them; 0:
 * there are not so many. */
enum { EMIT_LINEAR_WIDTHS = 4 };
uint32_t emit_linear_width(const struct prog_header *program, uint32_t n);

/* The translation unit: includes the constants and then `entry` ("kernels/cuda/mega.cuh"). */
void emit_unit(const char *entry, struct strbuf *out);

#endif

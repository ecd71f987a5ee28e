/* op_program.h - programs whose variants have one operator each, made and proved by the compiler's
 * own stages: what the device tests run.
 *
 * A form is a way in which an operator can stand in a graph: which optional operands it has, how
 * they lie and travel. Operands that nothing in the graph writes are inputs of the graph, which the
 * test fills before the launch. Shapes follow from the slots' names in op.def and the model_spec.
 */
#ifndef QN_TESTS_DEVICE_OP_PROGRAM_H
#define QN_TESTS_DEVICE_OP_PROGRAM_H

#include "task/program.h"
#include "task/task_graph.h"

struct op_form {
    const char *name; /* "linear.tile" */
    enum op_kind kind;
    bool packed; /* operands that can be packed are; the residual stream is normed by its writer */
    bool summed; /* sums of squares come added up */
    bool rides;  /* operands that op.def lets carry flags do, in pairs where they may */
    bool wide_k; /* LINEAR, LINEAR_SPLITK, PACK: rows of `intermediate`, not of all heads */
    bool bare;   /* LINEAR: no residual */
    bool decode_only;    /* each row is another request's */
    uint32_t band_first; /* LM_HEAD, SAMPLE: the band is the logit rows from here on */
    struct tile_override tiles;
};

struct op_variant {
    const struct op_form *form;
    uint32_t rows, logit_rows;
    uint32_t context; /* 0: all; a multiple of ATTENTION_PIECE */
};

struct op_machine {
    enum prog_target target;
    uint32_t n_workers, n_slots, max_model_len, kv_block;
    bool wide; /* task_options.wide */
};

enum { OP_MAX_VARIANTS = PROG_MAX_VARIANTS };

struct op_program {
    struct arena arena;
    uint32_t n_variants;
    struct op_variant variants[OP_MAX_VARIANTS]; /* in the program's order */
    struct kgraph kernel[OP_MAX_VARIANTS];
    struct tgraph tasks[OP_MAX_VARIANTS];
    struct prog_header *program;
    void *weights[512]; /* by index of SECTION_PART, in the program's types; stacks in one go */
};

/* Compiles and proves. To be released also after an error. */
int op_program_make(struct diag *d, const struct model_spec *spec, const struct op_machine *machine,
                    const struct op_variant *variants, uint32_t n, struct op_program *out);
void op_program_fini(struct op_program *p);

/* The numbers of the operand of a name, the same in every run: short ones, so that products and
 * their sums are exact in 32 bits and products of two fit 16. */
struct op_values {
    uint64_t seed;
    bool factor, positive; /* weights of a norm; sums of squares */
};
struct op_values op_values_of(const char *name);
double op_value(const struct op_values *v, uint64_t i);

#endif

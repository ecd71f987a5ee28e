/* program_make.h - the last stage: task graphs of all variants become one flat program. */
#ifndef QN_TASK_PROGRAM_MAKE_H
#define QN_TASK_PROGRAM_MAKE_H

#include "task/program.h"
#include "task/task_graph.h"

/* What the program's header says besides the graphs. */
struct program_config {
    enum prog_target target;
    uint32_t n_ranks, n_workers, n_slots, max_model_len, kv_block;
    enum dtype kv_dtype;
    const char *model_path; /* "" if unknown */
};

/* Freezes `n` placed task graphs, one per variant, ascending in rows. The program is the caller's
 * (free()). Deterministic: the same graphs give the same bytes. Errors: QN_ENOMEM, QN_ELIMIT. */
int program_make(struct diag *d, const struct program_config *config, const struct tgraph *variants,
                 uint32_t n, struct prog_header **program);

#endif

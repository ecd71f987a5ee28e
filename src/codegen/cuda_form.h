/* cuda_form.h - the host's side of kernels/cuda/form.def: which form runs a task, how the form
 * walks through the task's rows and pages, and which forms an image needs.
 *
 * Called by cuda_tables.c for every descriptor, by kernel_image.c for the image's contents.
 */
#ifndef QN_CODEGEN_CUDA_FORM_H
#define QN_CODEGEN_CUDA_FORM_H

#include "base/status.h"
#include "codegen/cuda_abi.h"
#include "codegen/emit.h"
#include "kernels/cuda/form.h"
#include "plan/device.h"

#include <stdbool.h>

/* What is the same for all tasks of a program on a device. */
struct cuda_form_host {
    const struct prog_header *program;
    struct device device;                /* what it can do; its speed does not matter here */
    uint32_t widths[EMIT_LINEAR_WIDTHS]; /* emit_linear_width */
};
struct cuda_form_host cuda_form_host_of(const struct prog_header *program,
                                        const struct device *device);
/* ... on a device of which nothing but its compute capability matters; 0: 90. */
struct cuda_form_host cuda_form_host_for(const struct prog_header *program, uint32_t cc);

/* Sets *t's form and how the form walks: tile, group, columns, unit_blocks. The caller has set
 * kind, rows, units, k, k_tiles, eights (cuda_tables_shape) and row blocks; op is NULL for an empty
 * task. The program must have passed cuda_form_used. */
void cuda_form_fill(const struct cuda_form_host *host, const struct prog_op *op,
                    struct cuda_task *t);

/* The name of the form that an operator's task with that entry has; "?" for none. */
const char *cuda_form_name(uint32_t kind, uint32_t form);

const char *cuda_entry_name(uint32_t entry);

/* One row of form.def, for a task of its operator. */
enum { CUDA_FORM_ROWS = 16 };
struct cuda_form_row {
    const char *name;
    const char *why_not; /* what the task lacks; NULL: it could run so */
    double ns;           /* cost_operator(); negative: unknown */
    uint32_t entry;      /* cuda_entry_name() */
    bool taken;          /* the first that could */
};
/* All rows of a task's operator, in a variant for contexts of up to `context` positions; returns
 * how many. */
uint32_t cuda_form_list(const struct cuda_form_host *host, const struct prog_task *task,
                        uint32_t context, struct cuda_form_row rows[CUDA_FORM_ROWS]);
/* The entries that may run in place of `entry`; returns how many. */
uint32_t cuda_form_stand_ins(const struct cuda_form_host *host, uint32_t entry,
                             const char *names[CUDA_FORM_ROWS]);

/* The entries that a program's tasks may run on a device of that compute capability: used[N_FORMS].
 * Errors: QN_ENOMEM; QN_EUNSUPPORTED: an operator has no form there. */
int cuda_form_used(struct diag *d, const struct prog_header *program, uint32_t cc, bool *used);
/* ... all that its model and the device could have. */
void cuda_form_all(const struct prog_header *program, uint32_t cc, bool *used);

#endif

/* view.h - the graphs of a compile or of a compiled program, for the commands that show them. */
#ifndef QN_INSPECT_VIEW_H
#define QN_INSPECT_VIEW_H

#include "engine/engine.h"

/* Shows hook->kernel and hook->tasks the graphs that params name: every stage while the model is
 * compiled, or, of params->program, the last one alone (with a model, only if the two fit). The
 * hook's `stage` is not called. */
int view_graphs(struct diag *d, const qn_engine_params *params, const struct compile_hook *hook);

/* The same of a program that program_check has let pass. Errors: QN_ESHAPE, QN_EVERIFY, QN_EFORMAT
 * for one whose tables contradict each other; the hook's. */
int view_program(struct diag *d, const struct prog_header *p, const struct compile_hook *hook);

#endif

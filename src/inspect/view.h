/* view.h - the graphs of a compile or of a compiled program, for the commands that show them. */
#ifndef QN_INSPECT_VIEW_H
#define QN_INSPECT_VIEW_H

#include "engine/engine.h"

/* Calls hook->kernel and hook->tasks with the graphs that params name: those of every stage while
 * the model is compiled or, of params->program, those of the last stage alone. A model beside a
 * program must fit it. hook->stage is called during a compile only. */
int view_graphs(struct diag *d, const qn_engine_params *params, const struct compile_hook *hook);

/* Does the same for a program that program_check has passed. Errors: QN_ESHAPE, QN_EVERIFY,
 * QN_EFORMAT for one whose tables contradict each other; the hook's. */
int view_program(struct diag *d, const struct prog_header *p, const struct compile_hook *hook);

#endif

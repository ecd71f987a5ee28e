/* view.h - shared by the commands that show the compiler's work: one compile with a hook, and dumps
 * that the environment asks for.
 */
#ifndef QN_ENGINE_VIEW_H
#define QN_ENGINE_VIEW_H

#include "engine/engine.h"

/* Shows hook->kernel and hook->tasks the graphs that params name: every stage while the model is
 * compiled, or, of params->program, the last one alone (with a model, only if the two fit). The
 * hook's `stage` is not called. */
int view_graphs(struct diag *d, const qn_engine_params *params, const struct compile_hook *hook);

/* The same of a program that program_check has let pass. Errors: QN_ESHAPE, QN_EVERIFY, QN_EFORMAT
 * for one whose tables contradict each other; the hook's. */
int view_program(struct diag *d, const struct prog_header *p, const struct compile_hook *hook);

/* QN_DUMP=stage,... (or "all") in the environment writes those stages' text during any compile, as
 * ROWS-STAGE.txt ("program.txt" for the last), to the folder QN_DUMP_DIR, else to the current one.
 */
struct dump {
    struct compile_hook hook;        /* to be handed to the compiler */
    const struct compile_hook *next; /* the caller's own, may be NULL */
    const char *stages, *dir;
    struct diag *d;
    int rc; /* of the first file that could not be written */
};

/* Sets *hook to what the compiler is to be given: `dump->hook` if the environment asks for dumps,
 * else `next`. Errors: QN_EINVAL for a word of QN_DUMP that names no stage. */
int dump_start(struct diag *d, struct dump *dump, const struct compile_hook *next,
               const struct compile_hook **hook);
/* After the compile, whose status is `rc`: that, or why a dump is missing (QN_EIO). */
int dump_end(const struct dump *dump, int rc);

#endif

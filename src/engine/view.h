/* view.h - what the commands that show the compiler's work share: one compile with somebody
 * looking, and dumps that the environment asks for.
 */
#ifndef QN_ENGINE_VIEW_H
#define QN_ENGINE_VIEW_H

#include "engine/engine.h"

/* Compiles the model that params name, with the hook looking; the program (may be NULL: not wanted)
 * is the caller's. params->program is refused: a file has only the last stage. */
int view_compile(struct diag *d, const qn_engine_params *params, const struct compile_hook *hook,
                 struct prog_header **program);

/* QN_DUMP=stage,... (or "all") in the environment writes those stages' text during any compile: to
 * the folder QN_DUMP_DIR as rows-stage.txt, else to stderr. That is the only thing that the library
 * ever prints, and only to whom asked for it. */
struct dump {
    struct compile_hook hook;        /* to be handed to the compiler */
    const struct compile_hook *next; /* the caller's own, may be NULL */
    const char *stages, *dir;
    struct diag *d;
};

/* Makes `dump->hook` if the environment asks for dumps, and returns it; else returns `next`. */
const struct compile_hook *dump_hook(struct diag *d, struct dump *dump,
                                     const struct compile_hook *next);

#endif

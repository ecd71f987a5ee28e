/* dump.h - dumps of a compile that the environment asks for. The engine calls this around each
 * compile and knows no more of src/inspect, which has the code (inspect/dump.c). */
#ifndef QN_ENGINE_DUMP_H
#define QN_ENGINE_DUMP_H

#include "engine/compile.h"

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

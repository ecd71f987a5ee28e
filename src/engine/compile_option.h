/* compile_option.h - choices about the compiler by name:
 * `launch=paper,tile.qkv=1x48,carry-bytes=0`.
 *
 * For experiments and ablations; the defaults are what is fastest. One table gives the parser
 * and its error messages; docs/cli.md says what each key does.
 */
#ifndef QN_ENGINE_COMPILE_OPTION_H
#define QN_ENGINE_COMPILE_OPTION_H

#include "base/strbuf.h"
#include "engine/compile.h"

/* Applies a comma-separated list of KEY=VALUE to *o; NULL or "" changes nothing. Errors: QN_EINVAL
 * naming the key and what it takes. */
int compile_option_apply(struct diag *d, const char *list, struct compile_options *o);

#endif

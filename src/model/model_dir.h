/* model_dir.h - says what a path is that is no model directory, and what to do. */
#ifndef QN_MODEL_MODEL_DIR_H
#define QN_MODEL_MODEL_DIR_H

#include "base/status.h"

/* Whether `path` is a folder with a config.json. Errors: QN_ENOENT, QN_EIO, QN_EINVAL (not a
 * folder), QN_EUNSUPPORTED (a folder of another kind); the message says what was found. */
int model_dir_check(struct diag *d, const char *path);
/* `path` does not exist. QN_ENOENT; recognizes a name of a model hub. */
int model_dir_missing(struct diag *d, const char *path);
/* `dir` has none of the files called `want`. QN_ENOENT; says which files it has instead. */
int model_dir_no_weights(struct diag *d, const char *dir, const char *want);
int model_dir_no_tokenizer(struct diag *d, const char *dir);

#endif

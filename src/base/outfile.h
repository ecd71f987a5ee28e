/* outfile.h - writing a result to where the user wants it.
 *
 * A plain file is replaced atomically by a new one with its mode, so that nobody sees half of it.
 * Anything else with that name - a symbolic link, a device, a FIFO, a file with other names or of
 * another user - is written through and stays what it is.
 */
#ifndef QN_BASE_OUTFILE_H
#define QN_BASE_OUTFILE_H

#include "base/status.h"

#include <stddef.h>

/* Errors: QN_EIO with the system's reason, names the path. */
int outfile_write(struct diag *d, const char *path, const void *bytes, size_t n);

/* Whether a file could be written there now, so that long work need not end with an error. Writes
 * nothing. Errors: as outfile_write's. */
int outfile_check(struct diag *d, const char *path);

#endif

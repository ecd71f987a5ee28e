/* mapfile.h - a whole file as read-only memory.
 *
 * Large files are mapped. Small ones (under 1 MiB: config.json, tokenizer.json) are read, so that
 * their text cannot change while it is parsed. The size is the one found at opening; nothing that a
 * file says about itself is trusted. If a mapped file shrinks later, reads of the lost part give
 * zeros instead of killing the process, and mapfile_torn() reports it (see mapfile.c).
 */
#ifndef QN_BASE_MAPFILE_H
#define QN_BASE_MAPFILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct mapfile {
    const unsigned char *data; /* bytes of them; never NULL after a successful open */
    uint64_t bytes;
    bool mapped;
    int guard; /* slot in the table of guarded maps, -1: none */
};

/* Opens a regular file. max_bytes = 0: any size. Errors: QN_ENOENT, QN_EIO, QN_ELIMIT, QN_ENOMEM,
 * QN_EFORMAT (a Git LFS pointer); the message names the path. */
int mapfile_open(struct diag *d, const char *path, uint64_t max_bytes, struct mapfile *f);
void mapfile_close(struct mapfile *f);

/* Whether a read of the map has hit a part that is no longer in the file. */
bool mapfile_torn(const struct mapfile *f);

#endif

/* embed.h - the kernel sources inside the library.
 *
 * tools/embed.cmake turns src/kernels/cuda and every header that device code shares with the host
 * into a table at build time; NVRTC gets them as virtual files under their path below src/. So one
 * binary can compile its kernels anywhere, and text and binary never disagree.
 */
#ifndef QN_CODEGEN_EMBED_H
#define QN_CODEGEN_EMBED_H

#include <stddef.h>

struct embed_file {
    const char *name;          /* "kernels/cuda/mega.cuh" */
    const unsigned char *text; /* n bytes and a NUL */
    size_t n;
};

extern const struct embed_file embed_files[]; /* in order of name */
extern const size_t embed_n_files;

/* The file of that name; NULL when it was not embedded. */
const struct embed_file *embed_find(const char *name);

#endif

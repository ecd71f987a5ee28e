/* dtype.h - number formats (dtype.def) and the layouts in which tensors lie. Safe for device code
 * up to the marked line.
 */
#ifndef QN_GRAPH_DTYPE_H
#define QN_GRAPH_DTYPE_H

#include "base/abi.h"

enum dtype {
#define DTYPE(ID, ...) DTYPE_##ID,
#include "graph/dtype.def"
#undef DTYPE
    N_DTYPES
};

/* Bytes of an element. */
static inline uint32_t dtype_bytes(uint32_t dtype) {
    switch (dtype) {
#define DTYPE(ID, name, hf, aliases, file, bits, kind)                                             \
    case DTYPE_##ID:                                                                               \
        return (bits) / 8;
#include "graph/dtype.def"
#undef DTYPE
    default: return 4;
    }
}

/* How the elements of a tensor lie. A tensor has the same shape in every layout. */
enum layout {
    LAYOUT_ROWS = 0,   /* row-major */
    LAYOUT_PACKED = 1, /* 16-bit rows in the order of tensor cores: PACK_ROWS rows and PACK_K
                          columns at a time, padded with zeros (codegen/cuda_abi.h draws it) */
    LAYOUT_BLOCKS = 2, /* the KV cache: rows of positions in blocks (runtime/rt_batch.h) */
    N_LAYOUTS
};

#ifndef __CUDACC_RTC__
/* ---- host only from here ---- */
#include <stdbool.h>

struct dtype_row {
    const char *name, *hf, *aliases, *file;
    uint32_t bits;
    bool is_float;
};

/* The row of a format; dtype must be below N_DTYPES. */
const struct dtype_row *dtype_row(uint32_t dtype);
/* Sets *out to the float format of that name: in config.json or on the command line ("torch." may
 * stand before it), or in a safetensors header. Returns false if there is none. */
bool dtype_from_hf(const char *text, enum dtype *out);
bool dtype_from_file(const char *text, enum dtype *out);
/* "rows", "packed", "blocks"; "?" out of range. */
const char *layout_name(uint32_t layout);
#endif
#endif

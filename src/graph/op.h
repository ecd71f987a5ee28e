/* op.h - op.def as an enum and as a table. Safe for device code up to the marked line.
 */
#ifndef QN_GRAPH_OP_H
#define QN_GRAPH_OP_H

#include "base/abi.h"
#include "graph/partials.h"

enum op_kind {
    OP_NONE = 0, /* as a task kind: an empty task that normalization inserted */
#define OP(ID, ...) OP_##ID,
#include "graph/op.def"
    N_OP_KINDS
};

enum op_target { OP_ON_ANY, OP_ON_CPU, OP_ON_CUDA }; /* backends that have it */
enum op_launch { LAUNCH_AOT = 0, LAUNCH_JIT = 1 };
enum op_split { SPLIT_ROWS = 0, SPLIT_TILES = 1, SPLIT_SLICES = 2 };

enum { OP_MAX_IN = 10, OP_MAX_OUT = 4 };

/* Operand slots, in the order of op.def. */
enum { EMBED_TABLE, EMBED_NEXT };
enum {
    STREAM_X,
    STREAM_NORMED,
    STREAM_SQUARES
}; /* out of EMBED, LINEAR, SPLITK_SUM, EXPERT_DOWN, EXPERT_SUM */
enum { QKV_X, QKV_NORM, QKV_WQ, QKV_WK, QKV_WV, QKV_BQ, QKV_BK, QKV_BV, QKV_Q_NORM, QKV_K_NORM };
enum { QKV_OUT_Q, QKV_OUT_KV }; /* of QKV_HEADS and QKV_FUSED, too */
enum { QKV_LINEAR_X, QKV_LINEAR_NORM, QKV_LINEAR_W, QKV_LINEAR_BIAS, QKV_LINEAR_SQUARES };
enum { FUSED_X, FUSED_W, FUSED_BIAS, FUSED_SQUARES, FUSED_Q_NORM, FUSED_K_NORM };
enum { HEADS_QKV, HEADS_Q_NORM, HEADS_K_NORM };
enum { ATTENTION_Q, ATTENTION_KV };
enum { JOINED_OUT, JOINED_OUT_KV }; /* of ATTENTION_STEP and _WHOLE; their inputs are QKV_HEADS' */
enum { MERGE_PART };
enum { LINEAR_A, LINEAR_W, LINEAR_BIAS, LINEAR_RESIDUAL, LINEAR_NEXT };
enum { PARTS_A, PARTS_W };
enum { SUM_PARTS, SUM_BIAS, SUM_RESIDUAL, SUM_NEXT };
enum { MLP_X, MLP_NORM, MLP_WG, MLP_WU, MLP_BG, MLP_BU, MLP_SQUARES };
enum { LM_X, LM_NORM, LM_W, LM_SQUARES, LM_AFTER };
enum { LM_OUT_LOGITS, LM_OUT_PART };
enum { SAMPLE_LOGITS, SAMPLE_PART };
enum { LATENT_RAW, LATENT_C, LATENT_C_NORM, LATENT_W };
enum { LATENT_OUT_Q, LATENT_OUT_KV };
enum { LATENT_NORM_X, LATENT_NORM_W };
enum { VALUES_A, VALUES_W }; /* of LATENT_MERGE: parts, and W */
enum { PACK_X };             /* of PACK_LOGITS, too */
enum { RESET_AFTER };
enum { ROUTER_X, ROUTER_NORM, ROUTER_W };
enum { ROUTE_LOGITS }; /* of ROUTE_TOP_K, too */
enum { TOP_K_OUT_IDS, TOP_K_OUT_WEIGHT };
enum { ROUTE_IDS }; /* of ROUTE_LIST, whose outputs are ROUTE's first ones */
enum { ROUTE_OUT_LIST, ROUTE_OUT_SLOTS, ROUTE_OUT_WEIGHT };
enum {
    GATE_UP_X,
    GATE_UP_NORM,
    GATE_UP_LIST,
    GATE_UP_SLOTS,
    GATE_UP_WG,
    GATE_UP_WU,
    GATE_UP_LOGITS
};
enum { GATHER_X, GATHER_NORM, GATHER_SLOTS };
enum { GATHER_OUT_ROWS, GATHER_OUT_SQUARES };
enum { GROUPED_UP_ROWS, GROUPED_UP_SQUARES, GROUPED_UP_LIST, GROUPED_UP_WG, GROUPED_UP_WU };
enum { GROUPED_DOWN_H, GROUPED_DOWN_LIST, GROUPED_DOWN_SLOTS, GROUPED_DOWN_WD };
enum { EXPERT_PARTS, EXPERT_WEIGHT, EXPERT_SHARED, EXPERT_RESIDUAL, EXPERT_NEXT };
enum { DOWN_H, DOWN_LIST, DOWN_SLOTS, DOWN_WEIGHT, DOWN_WD, DOWN_SHARED, DOWN_RESIDUAL, DOWN_NEXT };

/* Columns of logits that share one {max, sum} pair. Fixed, so that a log-probability does not
 * depend on how the LM head was cut into tasks. */
enum { LM_BLOCK = 64 };

/* Most logit rows of one band. More rows are several bands, whose logits share bytes: 512 rows of
 * 151,936 logits are 311 MB. Bands are as equal as multiples of LOGIT_BAND_STEP rows (a GPU's tile
 * of many tokens) allow. Each band reads the matrix and is sampled by itself: with bands of 256
 * rows, a decode step of 512 requests of Qwen3-8B took 21.1 ms instead of 20.3, and a decode step
 * of 1,024 requests 38.6 ms instead of 37.0 (H100). */
enum { LOGIT_BAND_ROWS = 512, LOGIT_BAND_STEP = 128 };

/* The context is attended to in pieces of ATTENTION_PIECE positions. Their bounds depend on the
 * position alone, so that the order of reduction does not depend on load. */
enum { ATTENTION_PIECE = 128 };

/* A part has the state of a head after a piece: its maximum, its sum, and from element PART_HEAD on
 * its output. The elements between them are not used. So output begins with a sector of 32 bytes,
 * flagged or not; with the output right behind the sum, blocks stored it at half the speed
 * (bench/measurements.md). */
enum { PART_HEAD = 8 };

/* Most columns of a single row's activations that a GPU's task holds staged, beside partial sums
 * (codegen/cuda_form.c); wider ones are packed. */
enum { STAGED_COLUMNS = 14848 };

/* Packed activations have a multiple of PACK_ROWS token rows and of PACK_K columns. */
enum { PACK_ROWS = 8, PACK_K = PARTIAL_TILE };

/* Slots of an entry in a list of experts, at most (graph/expert_list.h): the rows of a GPU's tile.
 */
enum { EXPERT_STRETCH = 128 };

/* SQUARES_COLUMNS columns of the residual stream have one sum of squares, which their writer adds
 * up. Up to SQUARES_ROWS token rows, a reader that needs 1 / rms may add up these sums itself. */
enum { SQUARES_COLUMNS = 16, SQUARES_ROWS = 32 };

/* Most rows of ATTENTION_STEP and _WHOLE: each item makes the keys of all rows of its request.
 * _WHOLE may have more rows where each is of another request (kgraph.decode_only). */
enum { STEP_ROWS = 16 };

/* Most token rows of graphs in which words of activations may be sentinels until they are stored.
 * RESET_SENTINELS cuts the space of these activations into RESET_UNITS units, each a multiple of
 * RESET_WORDS words. */
enum { SENTINEL_ROWS = 16, RESET_UNITS = 1024, RESET_WORDS = 4 };

/* Numbers that an operator carries itself: attr.def. Copied into the program. */
#define ATTR_COUNT  uint32_t
#define ATTR_NUMBER uint32_t
#define ATTR_REAL   float
struct op_attrs {
#define ATTR(kind, name, ...) ATTR_##kind name;
#include "graph/attr.def"
};

#ifndef __CUDACC_RTC__
/* ---- host only from here ---- */
#include <stdbool.h>

enum { OP_MAX_DIMS = 4, OP_NAME_CHARS = 12 };

struct op_slot {
    char name[OP_NAME_CHARS];
    char with[OP_NAME_CHARS];    /* optional: present if this operand is; "": no condition */
    char without[OP_NAME_CHARS]; /* optional: present if this operand is absent */
    bool optional, weight, state;
    bool flagged;                 /* may carry flags */
    bool paired;                  /* ... one for two elements of 16 bits */
    bool sentinel;                /* its words may be sentinels until they are stored */
    bool packable;                /* may be packed */
    bool packed;                  /* is packed */
    bool integer;                 /* 32-bit integers */
    int n_dims;                   /* of its access map */
    const char *dim[OP_MAX_DIMS]; /* in op.def's text; each ends at a `,` or `]` outside of () */
};

struct op_info {
    const char *name;
    const char *attributes, *rows, *units; /* columns of op.def */
    int n_in, n_out;
    struct op_slot in[OP_MAX_IN], out[OP_MAX_OUT];
};

/* The row of op.def, parsed once for all callers; kind must be a valid op_kind. */
const struct op_info *op_info_of(enum op_kind kind);
/* The columns of the row that need no parsing; kind must be a valid op_kind. */
enum op_target op_target_of(uint32_t kind);
enum op_launch op_launch_of(uint32_t kind);
enum op_split op_split_of(uint32_t kind);
/* Whether an operator writes the residual stream, with its copy for the next norm. */
bool op_writes_stream(uint32_t kind);
/* Whether its tasks write tiles of the residual stream's columns: LINEAR, EXPERT_DOWN. */
bool op_writes_columns(uint32_t kind);
const char *op_name(uint32_t kind); /* "nop" for OP_NONE, "?" for a number out of range */
/* The kind with that name; OP_NONE when there is none. */
enum op_kind op_find(const char *name);
#endif
#endif

/* cuda_abi.h - what the host and the mega-kernel agree on: kernel parameters, launch geometry, the
 * order of weights in device memory, the flat task table. Read by both compilers.
 *
 * Kernels (all extern "C"), their one parameter (by value, __grid_constant__) and launch:
 *
 *   qn_mega      struct cuda_args    grid = program->n_workers, block = CUDA_BLOCK_THREADS,
 *                                    dynamic shared = cuda_shared_bytes(cc), cooperative
 *   qn_retile    struct cuda_retile  any grid, block 256: checkpoint rows into the order of pages
 *   qn_dummy     struct cuda_dummy   any grid, block 256: made-up checkpoint rows
 *   qn_read_all  struct cuda_read    any grid, block 256: the plain read ceiling, for measuring
 *
 * Weights. A matrix [rows, K] becomes an *image*: pages of CUDA_PAGE_BYTES, each 16 weight rows (a
 * row block) x 256 columns (a k-tile). A row block's pages follow each other in steps: the first
 * k-tile of each partial sum (graph/partials.h), then the second of each, and so on. So eight warps
 * take the pages in turn, and each warp works on one partial sum, in order of K. Partial sums that
 * have one k-tile more than the others come first in each step, so that only the last step may lack
 * pages:
 *
 *   20 k-tiles:   page      0  1  2  3  4  5  6  7    8  9 10 11 12 13 14 15   16 17 18 19
 *                 partial   0  2  4  6  1  3  5  7    0  2  4  6  1  3  5  7    0  2  4  6
 *                 k-tile    0  5 10 15  3  8 13 18    1  6 11 16  4  9 14 19    2  7 12 17
 *
 * Inside a page, 16-byte groups stand in the order [step 16][lane 32]; lane = 4 g + j of step 2 p +
 * e holds
 *
 *   row g     columns 32 p + 8 j + 4 e + {0, 1}      row g + 8  the same columns
 *   row g     columns 32 p + 8 j + 4 e + {2, 3}      row g + 8  the same columns
 *
 * These are the four A registers of mma.m16n8k16, with the 16 columns of a step permuted so that a
 * lane's B operand of two steps is 16 contiguous bytes of a row-major activation. Rows and columns
 * beyond the matrix are zero, because the host clears the weights allocation before it fills it.
 * Image rows are the rows of the program's block (struct prog_weight), whose parts name the tensors
 * of the checkpoint.
 *
 * Packed activations (OP_PACK) are pieces of PACK_ROWS token rows x CUDA_PACK_COLUMNS columns, 1 KB
 * each. The pieces of all rows for the first columns come first, then those for the next columns,
 * so that a tile of any number of rows finds CUDA_PACK_COLUMNS columns in one stretch. A piece has
 * its steps of 16 columns in order, 256 bytes each. A step has 128 bytes of the first B register,
 * then 128 of the second; in each, row g has the words of lanes 4 g ... 4 g + 3. These are also the
 * two matrices of 8 x 16 bytes that wgmma reads without a swizzle. So step 2 p + e holds, 16 bytes
 * a row,
 *
 *   columns 32 p + 4 e + {0, 1,  8, 9,  16, 17,  24, 25}   of eight rows, then
 *   columns 32 p + 4 e + {2, 3,  10, 11,  18, 19,  26, 27}  of eight rows
 *
 * The weights allocation holds all images and, as F32, all vectors; cuda_tables.h plans it.
 */
#ifndef QN_CODEGEN_CUDA_ABI_H
#define QN_CODEGEN_CUDA_ABI_H

#include "base/abi.h"
#include "runtime/rt_batch.h"
#include "runtime/rt_state.h"
#include "task/program.h"

enum {
    CUDA_PAGE_BYTES = 8192,
    CUDA_PAGE_ROWS = 16,
    CUDA_PAGE_K = 256,
    CUDA_PACK_COLUMNS = 64, /* columns in a piece of packed activations */

    CUDA_COMPUTE_WARPS = 8,
    CUDA_BLOCK_THREADS = 32 * (CUDA_COMPUTE_WARPS + 4), /* + loader, control, tile_producer.cuh */

    CUDA_SCRATCH_BYTES = 30864, /* shared memory for the task that runs */
    CUDA_CONTROL_BYTES = 4976,  /* shared memory for messages between the warps */

    /* PACK_TILE: most token rows of a tile of packed activations. A tile with so many has at most
     * as many weight rows. PACK_NARROW: most token rows of narrow tiles, which products of no more
     * rows use. PACK_WIDE, on Hopper: most token rows of tiles of more weight rows than PACK_TILE,
     * which tasks of so many weight rows use. */
    PACK_TILE = 128,
    PACK_NARROW = 64,
    PACK_WIDE = 96,
    SPLITK_ROWS = 128, /* most token rows of LINEAR_SPLITK, measured */

    CUDA_ROW_GROUP = 12, /* most row blocks at a time in a task of one row: cuda_task.group */

    CUDA_LEASE = 255, /* cuda_task.columns: the task leases the ring (matmul_tile.cuh) */

    CUDA_MAX_FLIGHT = 16, /* pages; cuda_args.flight is 1..this */

    /* Bytes of a tile's F32 sums in device memory (matmul_tile.cuh): LINEAR keeps the sums of the
     * first half of K there while it computes those of the second. */
    CUDA_WAITING_BYTES = PACK_TILE * PACK_TILE * 4,
};

#define CUDA_ABI_FN ABI_FN

/* Dynamic shared memory of qn_mega: all that a block of that compute capability may have. `cc` is
 * major * 10 + minor. The kernel derives its ring from the same number. */
CUDA_ABI_FN uint32_t cuda_shared_bytes(uint32_t cc) {
    if (cc == 90 || cc == 100 || cc == 103) return 227 * 1024;
    if (cc == 80 || cc == 87) return 163 * 1024;
    return 99 * 1024;
}

/* Bytes of shared memory in a lease (matmul_tile.cuh): the ring and scratch. */
CUDA_ABI_FN uint32_t cuda_lease_bytes(uint32_t cc) {
    const uint32_t control = CUDA_CONTROL_BYTES, depth = CUDA_PAGE_BYTES * CUDA_COMPUTE_WARPS;
    const uint32_t room = cuda_shared_bytes(cc) - CUDA_SCRATCH_BYTES - control;
    return room / depth * depth + CUDA_SCRATCH_BYTES;
}

/* ATTENTION of many rows (attention_prefill.cuh). Bytes in shared memory: of a row of keys or
 * values; of a piece of keys and values; of a warp's own memory, which holds queries and
 * probabilities, later the outputs of 16 rows. */
CUDA_ABI_FN uint32_t cuda_rows_pitch(uint32_t head_dim) {
    return (head_dim + 63) / 64 * 128;
}
CUDA_ABI_FN uint32_t cuda_rows_piece(uint32_t head_dim) {
    return 2 * ATTENTION_PIECE * cuda_rows_pitch(head_dim);
}
CUDA_ABI_FN uint32_t cuda_rows_work(uint32_t head_dim) {
    const uint32_t products = 2 * ((head_dim + 31) / 32) * 512 + ATTENTION_PIECE / 16 * 512;
    const uint32_t outputs = 16 * (head_dim + 4) * 4;
    return products > outputs ? products : outputs;
}
/* Whether attention_prefill.cuh can run heads of this width: their outputs fit registers, and a
 * piece fits shared memory. */
CUDA_ABI_FN int cuda_rows_fit(uint32_t head_dim, uint32_t cc) {
    const uint32_t work = CUDA_COMPUTE_WARPS * cuda_rows_work(head_dim);
    return head_dim <= 128 && work + cuda_rows_piece(head_dim) <= cuda_lease_bytes(cc);
}

/* Attention over latents (attention_latent.cuh). Bytes in shared memory: of a key; of what lies
 * beside the keys, which is queries and messages between warps. Then the positions that fit there
 * at a time, at most a piece's; 0: fewer than 16 fit. */
CUDA_ABI_FN uint32_t cuda_latent_row(uint32_t key_dim) {
    return (key_dim + 63) / 64 * 128;
}
CUDA_ABI_FN uint32_t cuda_latent_others(uint32_t key_dim) {
    return 16 * cuda_latent_row(key_dim) + CUDA_COMPUTE_WARPS * 32 * (2 * 2 * 4 + 16);
}
CUDA_ABI_FN uint32_t cuda_latent_part(uint32_t key_dim, uint32_t cc) {
    uint32_t part = ATTENTION_PIECE;
    while (part >= 16 &&
           part * cuda_latent_row(key_dim) + cuda_latent_others(key_dim) > cuda_lease_bytes(cc))
        part /= 2;
    return part >= 16 ? part : 0;
}
/* Whether a piece of latents comes as pages (attention_latent_pages.cuh): there are bulk copies,
 * keys are whole lines, KV blocks are whole shares, and each warp's share fits its part of the
 * ring. */
CUDA_ABI_FN int cuda_latent_paged(uint32_t key_dim, uint32_t kv_block, uint32_t cc) {
    const uint32_t ring = cuda_lease_bytes(cc) - CUDA_SCRATCH_BYTES, pages = (key_dim + 255) / 256;
    return cc >= 90 && key_dim % 64 == 0 && kv_block % 16 == 0 &&
           pages * CUDA_COMPUTE_WARPS * CUDA_PAGE_BYTES <= ring &&
           cuda_latent_part(key_dim, cc) == ATTENTION_PIECE &&
           cuda_latent_others(key_dim) <= CUDA_SCRATCH_BYTES;
}

/* Query heads of a KV head's group that attention processes together: at most as many as a product
 * has rows, and as a page has room for outputs of STEP and WHOLE. */
CUDA_ABI_FN uint32_t cuda_sub_heads(uint32_t group, uint32_t head_dim) {
    const uint32_t most = head_dim <= 128 ? 16 : 8;
    return group < most ? group : most;
}
/* Whether whole heads fill a tile of PACK_TILE weight rows. */
CUDA_ABI_FN int cuda_head_tiles(uint32_t head_dim) {
    return head_dim % CUDA_PAGE_ROWS == 0 && PACK_TILE % head_dim == 0;
}
/* Token rows whose places a block keeps. In an iteration of at most so many rows, a block knows
 * whether each row is another request's. So WHOLE may have so many rows. */
enum { CUDA_PLACES = 96 };

/* Row blocks that a warp works on at a time with one or two columns of eight packed rows
 * (matmul_stream.cuh): at most as many as scratch has room for partial sums. LINEAR and QKV_LINEAR
 * have few row blocks a worker and need less; LINEAR keeps its residual and norm in the rest of
 * scratch. */
enum { CUDA_STREAM_TOKEN_BYTES = (CUDA_PAGE_ROWS * PARTIALS + 4) * 4 };
CUDA_ABI_FN uint32_t cuda_packed_group(uint32_t kind, uint32_t columns) {
    const uint32_t most = CUDA_SCRATCH_BYTES / (8 * columns * CUDA_STREAM_TOKEN_BYTES);
    const uint32_t few = kind == OP_LINEAR || kind == OP_QKV_LINEAR ? 4 : 6;
    return few < most ? few : most;
}

/* LATENT_VALUES (latent.cuh): most token rows of a tile; row blocks whose partial sums fit scratch.
 */
enum { CUDA_VALUES_ROWS = 32, CUDA_VALUES_BYTES = CUDA_PAGE_ROWS * 4 };
CUDA_ABI_FN uint32_t cuda_values_group(uint32_t k_tiles, uint32_t tile) {
    return CUDA_SCRATCH_BYTES / (CUDA_VALUES_BYTES * tile * k_tiles);
}

/* LATENT_MERGE: the same, beside the merged outputs of the heads that a row block may touch:
 * PACK_ROWS rows of each head, 16 bits an element, with 64 bytes between rows. */
CUDA_ABI_FN uint32_t cuda_merged_heads(uint32_t head_rows) {
    return (CUDA_PAGE_ROWS - 1) / head_rows + 2;
}
CUDA_ABI_FN uint32_t cuda_merged_bytes(uint32_t head_rows, uint32_t value_dim) {
    return cuda_merged_heads(head_rows) * PACK_ROWS * (value_dim * 2 + 64);
}
CUDA_ABI_FN uint32_t cuda_merge_group(uint32_t head_rows, uint32_t value_dim) {
    const uint32_t merged = cuda_merged_bytes(head_rows, value_dim);
    const uint32_t block = CUDA_VALUES_BYTES * PACK_ROWS * partial_tiles(value_dim);
    return merged + block > CUDA_SCRATCH_BYTES ? 0 : (CUDA_SCRATCH_BYTES - merged) / block;
}

CUDA_ABI_FN uint32_t cuda_k_tiles(uint32_t k) {
    return partial_tiles(k);
}

/* The order of pages in a row block: the page of each step that belongs to partial sum p, and back.
 */
CUDA_ABI_FN uint32_t cuda_partial_turn(uint32_t k_tiles, uint32_t p) {
    const uint32_t longer = k_tiles % PARTIALS, before = partial_first(longer, p);
    return before < partial_first(longer, p + 1) ? before : longer + p - before;
}
CUDA_ABI_FN uint32_t cuda_turn_partial(uint32_t k_tiles, uint32_t turn) {
    const uint32_t longer = k_tiles % PARTIALS, shorter = PARTIALS - longer;
    return turn < longer ? partial_nth(longer, turn)
                         : (PARTIALS * (turn - longer + 1) + shorter - 1) / shorter - 1;
}

/* The k-tile of a page of a row block, and back. */
CUDA_ABI_FN uint32_t cuda_page_tile(uint32_t k_tiles, uint32_t page) {
    const uint32_t p = cuda_turn_partial(k_tiles, page % PARTIALS);
    return partial_first(k_tiles, p) + page / PARTIALS;
}
CUDA_ABI_FN uint32_t cuda_tile_page(uint32_t k_tiles, uint32_t tile) {
    const uint32_t p = partial_of(k_tiles, tile);
    return (tile - partial_first(k_tiles, p)) * PARTIALS + cuda_partial_turn(k_tiles, p);
}

/* Kinds of tasks whose weights come as pages. */
CUDA_ABI_FN int cuda_has_pages(uint32_t kind) {
    return kind == OP_QKV_LINEAR || kind == OP_QKV_FUSED || kind == OP_LINEAR ||
           kind == OP_LINEAR_SPLITK || kind == OP_GATED_MLP || kind == OP_LM_HEAD ||
           kind == OP_ROUTER || kind == OP_LATENT_HEADS || kind == OP_LATENT_VALUES ||
           kind == OP_LATENT_MERGE;
}

/* Kinds of tasks whose weights are pages of the experts that the iteration lists. */
CUDA_ABI_FN int cuda_lists_experts(uint32_t kind) {
    return kind == OP_EXPERT_GATE_UP || kind == OP_EXPERT_DOWN;
}

/* Kinds of tasks whose weights are tiles of these experts, in a leased ring. */
CUDA_ABI_FN int cuda_is_grouped(uint32_t kind) {
    return kind == OP_GROUPED_GATE_UP || kind == OP_GROUPED_DOWN;
}

/* Most experts of a row: scratch has room for their ids of eight rows (route.cuh). */
enum { CUDA_MOST_TOP_K = 512 };
/* Token rows that ROUTER processes at a time (router.cuh). */
enum { CUDA_ROUTER_ROWS = 32 };
/* The widest single row that ROUTER keeps in scratch, twice. */
enum { CUDA_ROUTER_ROW_HIDDEN = 7168 };

/* Addresses of operands for which a task's descriptor has no word left: form.def's BEYOND. The rows
 * of a program's operators follow its task table, in the order of SECTION_OP. */
enum { BEYOND_LIST, BEYOND_SLOTS, BEYOND_WEIGHT, BEYOND_SHARED, N_BEYOND };
struct cuda_beyond {
    uint64_t at[N_BEYOND]; /* 0: the operator does not have it */
};
ABI_SIZE(struct cuda_beyond, 32);

/* Where a block of weights (struct prog_weight) lies on the device. */
struct cuda_place {
    uint64_t offset;  /* bytes into the weights allocation */
    uint32_t k_tiles; /* of an image; 0: a vector, F32, contiguous */
    uint32_t reserved;
};

/* A task's descriptor: all that the task needs, in one fetch. Made by cuda_tables_fill, read by all
 * warps. Its index in the table is the task's index in the program. */
struct cuda_task {
    uint8_t kind;                 /* enum op_kind */
    uint8_t form;                 /* enum cuda_form: what runs it (kernels/cuda/form.def) */
    uint16_t flags;               /* enum cuda_task_flag */
    uint32_t wait, wait_triggers; /* event, its n_triggers */
    uint32_t trigger;
    /* Rows of LM_HEAD and SAMPLE are logit rows of the iteration. An operand that holds only a
     * band's rows has the address where logit row 0 would lie, so that these numbers index it. */
    uint32_t row0, row1;
    uint32_t unit0, unit1;
    uint32_t units; /* the whole operator's units: N, I, heads, blocks */
    /* Length of the dot products; LATENT_NORM: of its result; LATENT_HEADS: of raw's rows;
     * RESET_SENTINELS: bytes of a unit; ATTENTION, SPLIT, STEP, WHOLE, MERGE: positions that a row
     * sees, 0: all (read where layers differ); ROUTE, ROUTE_LIST: token rows of the graph. */
    uint32_t k;
    uint32_t k_tiles;
    uint32_t index; /* of this task in the program */
    /* Device addresses of operands; an operand that the kind does not have is 0.
     *
     * w      EMBED and SAMPLE table; matrix products: the weights' image; EXPERT_SUM shared
     * in     the first activation: x, a, qkv, q, raw, part, parts, squares, logits
     * norm   one row, ROUTER, EXPERT_GATE_UP: norm; EMBED, LINEAR, SPLITK_SUM and EXPERT_DOWN
     *        next; QKV_FUSED, STEP and WHOLE q_norm; LATENT_HEADS c_norm
     * bias   QKV_LINEAR and QKV_FUSED bq, bk, bv in one; LINEAR and SPLITK_SUM bias; GATED_MLP bg;
     *        EXPERT_GATE_UP list; EXPERT_DOWN struct cuda_beyond
     * more   QKV_HEADS q_norm; QKV_FUSED k_norm; ATTENTION, SPLIT, STEP, WHOLE kv; LINEAR,
     *        SPLITK_SUM and EXPERT_DOWN residual; GATED_MLP bu; SAMPLE part; LATENT_HEADS c; ROUTE
     *        weight; EXPERT_GATE_UP logits
     * more2  QKV_HEADS, STEP and WHOLE k_norm; EXPERT_GATE_UP slots; others squares, written or
     *        read
     * out    the first result; RESET_SENTINELS: the first byte of all units
     * out2   EMBED, LINEAR, SPLITK_SUM and EXPERT_DOWN normed; QKV_HEADS, QKV_FUSED, LATENT_HEADS
     *        kv; LM_HEAD part; ROUTE slots */
    uint64_t w, in, norm, bias, more, more2, out, out2;
    /* P of SPLIT, STEP, MERGE, LATENT_MERGE; parts of a row's squares; PACK_LOGITS: eights of what
     * it reads; LATENT_NORM, LATENT_HEADS: columns of x, of c; LINEAR_SPLITK: row blocks of a part;
     * SPLITK_SUM: parts; ROUTE, ROUTE_TOP_K: the layer. */
    uint16_t n_pieces;
    uint16_t eights; /* rows / PACK_ROWS of the packed activations that it reads or writes */
    /* How a task with weights goes through its pages (block/walk.cuh); cuda_form.c decides. */
    uint32_t block0, block1; /* row blocks [block0, block1) of the image; GROUPED_*: of an expert */
    uint8_t tile;            /* token rows at a time: 1, 8, 16, 32, 64, 96 or 128 */
    uint8_t group;           /* row blocks at a time; many packed rows: 2, 4, 8, 12 or 16 */
    uint8_t columns;         /* columns of 8 tokens: 1, 2; 0: one row, whose activations are staged;
                                CUDA_LEASE: many packed rows, ATTENTION */
    uint8_t unit_blocks;     /* row blocks that are finished together; 0: each alone */
};
ABI_SIZE(struct cuda_task, 128);

enum cuda_task_flag {
    CUDA_TRIGGER_WATCHED =
        1, /* the trigger may activate the end event: the block must notice if it does */
    /* Operands that carry flags: */
    CUDA_IN_FLAGGED = 2,
    CUDA_MORE_FLAGGED = 4, /* the residual of LINEAR and EXPERT_DOWN, c of LATENT_HEADS, logits of
                              EXPERT_GATE_UP */
    CUDA_OUT_FLAGGED = 8,
    /* The event is carried by data (task/transport.c): its counter is a hint and orders nothing. */
    CUDA_WAIT_HINT = 16,
    CUDA_TRIGGER_HINT = 32,
    CUDA_IN_PACKED = 64,   /* the activations are packed */
    CUDA_OUT_PACKED = 128, /* the result is packed; EMBED and LINEAR: normed is */
    CUDA_IN_PAIRED = 256,  /* `in` carries flags in pairs: two 16-bit floats a flag */
    CUDA_OUT_PAIRED = 512,
    /* The residual was written by this worker, earlier in its list: it needs no event. */
    CUDA_MORE_OWN = 1024,
    /* EXPERT_DOWN: an EXPERT_GATE_UP with the same list of experts is earlier in this worker's
     * list. The loader has waited for the list of experts there, or for the logits that it follows
     * from, and need not wait for this task's event. Nor need the compute warps to read the list,
     * its slots and weights: they have waited for ROUTE there. */
    CUDA_LIST_KNOWN = 2048,
    CUDA_SHARED_FLAGGED = 4096, /* EXPERT_DOWN's `shared` carries flags */
    CUDA_LOGITS_POLLED = 8192,  /* EXPERT_GATE_UP's logits carry flags, or are sentinels at first */
};

/* A 32-bit word of an activation that travels by sentinels, until it is stored. No result has all
 * bits set: conversions and arithmetic give NaNs of other bits. */
#define CUDA_SENTINEL 0xffffffffu

/* How far ahead of the running task weights are streamed. All but the last are for experiments. */
enum cuda_stream {
    CUDA_STREAM_TASK,       /* a task's weights after those of the task before are used */
    CUDA_STREAM_LIST,       /* to the end of the iteration */
    CUDA_STREAM_ITERATIONS, /* into the next one before it is known, assuming the same variant */
};

/* The parameter of qn_mega. Every pointer is a device address; `rt` and what it points to must be
 * initialised as for a CPU run (rt_memory.c), with n_workers = grid. */
struct cuda_args {
    struct rt rt;
    const struct cuda_task *tasks; /* [n_tasks] of the program */
    const float *rope_cos;         /* [spec_rope_rows][head_dim / 2], from cpu_rope_fill */
    const float *rope_sin;
    float *sample_scratch; /* cuda_sample_bytes: work of SAMPLE */
    float *waiting_sums;   /* a tile of LINEAR's sums for each block, cuda_waiting_stride apart */
    uint32_t logit_rows;   /* the most of an iteration */
    uint32_t flight;       /* pages requested and not yet arrived per worker, 1..CUDA_MAX_FLIGHT;
                              a few times 8 KB reach full bandwidth, more delays others */
    uint32_t stream;       /* enum cuda_stream */
    uint32_t flight_deep;  /* the same in the midst of a long task of a single row, while no task
                              waits for activations: flight..CUDA_MAX_FLIGHT. Bulk copies only */
};

/* The rings of runtime/rt_trace.h on the device: the workers' as on the CPU, written by the control
 * warps, then one per worker for its compute warps and one per worker for its loader. */
#define CUDA_TRACE_RINGS(n_workers) (3 * (n_workers))

/* Bytes of a place in SAMPLE's work memory: [2][ceil64(vocab)] words, or a tile of LINEAR's sums.
 */
CUDA_ABI_FN uint64_t cuda_sample_place(uint32_t vocab) {
    const uint64_t words = (uint64_t)2 * ((vocab + 63) & ~63u) * 4;
    return words > CUDA_WAITING_BYTES ? words : CUDA_WAITING_BYTES;
}
/* Whether these places are the blocks', because there are more logit rows than blocks; otherwise
 * each row has one. A block's LINEAR keeps its sums there, too: a block runs one task at a time. */
CUDA_ABI_FN uint32_t cuda_samples_by_block(uint32_t n_logit_rows, uint32_t n_workers) {
    return n_logit_rows > n_workers;
}
/* Bytes of all places. */
CUDA_ABI_FN uint64_t cuda_sample_bytes(uint32_t n_logit_rows, uint32_t n_workers, uint32_t vocab) {
    const uint32_t n = cuda_samples_by_block(n_logit_rows, n_workers) ? n_workers : n_logit_rows;
    return n * cuda_sample_place(vocab);
}
/* Bytes from a block's waiting sums to the next one's. */
CUDA_ABI_FN uint64_t cuda_waiting_stride(uint32_t n_logit_rows, uint32_t n_workers,
                                         uint32_t vocab) {
    return cuda_samples_by_block(n_logit_rows, n_workers) ? cuda_sample_place(vocab)
                                                          : (uint64_t)CUDA_WAITING_BYTES;
}

/* Copies rows [first_row, first_row + n_rows) of a part into its block's image (any range, ranges
 * in any order), or a vector's elements (n_rows of 1 column) to F32. */
struct cuda_retile {
    uint64_t src;     /* n_rows * cols elements, row-major */
    uint64_t weights; /* base of the weights allocation */
    uint64_t first_row, n_rows;
    uint32_t cols;
    uint32_t src_dtype, dst_dtype; /* enum dtype; dst of a matrix: BF16 or F16 (F32 goes to BF16) */
    uint32_t at, run, stride;      /* the part's: struct prog_part */
    struct cuda_place place;
};

/* Made-up values for elements [first, first + n) of a weight, written at dst as `dtype`: the same
 * bits as model/weights.c makes. spread 0: every element is `mean`. */
struct cuda_dummy {
    uint64_t dst, first, n;
    uint64_t seed;
    double spread; /* 0.02 * sqrt(3) for matrices */
    float mean;
    uint32_t dtype; /* enum dtype */
};

/* Reads `bytes` (a multiple of 16) and writes something to *out that depends on them. */
struct cuda_read {
    uint64_t src, bytes, out;
};

#endif

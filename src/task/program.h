/* program.h - the compiled program: one flat block of tables, relocatable, pointer-free.
 *
 * Made by task/program_make.c from the last task graph, read by the runtime on every backend, by
 * task_sim and by task_verify. It can be written to a file, compared byte by byte, mapped, and
 * copied to a device in one call. All references are indices; the sections are 64-byte aligned.
 *
 *   +--------+-------+----+----------+---------+-----+-------+--------+
 *   | header | model | kv | variants | tensors | ops | tasks | events |
 *   +--------+-------+----+----------+---------+-----+-------+--------+
 *   | aot | lists | weights | parts | strings |
 *   +-----+-------+---------+-------+---------+
 *
 * A *variant* is the task graph for one number of token rows. Small numbers of rows have several
 * variants, by context length. Larger numbers also have one that is decode only: each row is of
 * another request. An iteration runs one variant. Task, event, op and tensor indices are
 * program-wide. Within a variant tasks stand in the order of linearization (MPK Algorithm 1): the
 * tasks that wait for one event are contiguous.
 */
#ifndef QN_TASK_PROGRAM_H
#define QN_TASK_PROGRAM_H

#include "base/abi.h"
#include "graph/kv_row.h"
#include "graph/model_spec.h"
#include "graph/op.h"
#include "graph/weight_source.h"

enum { PROGRAM_VERSION = 13 };
#define PROGRAM_MAGIC "quern-p" /* eight bytes with the NUL */

enum program_section {
    SECTION_MODEL,   /* struct model_spec, 1 */
    SECTION_KV,      /* struct kv_row, one per layer */
    SECTION_VARIANT, /* struct prog_variant */
    SECTION_TENSOR,  /* struct prog_tensor */
    SECTION_OP,      /* struct prog_op */
    SECTION_TASK,    /* struct prog_task */
    SECTION_EVENT,   /* struct prog_event */
    SECTION_AOT,     /* uint32_t task indices: the workers' AOT lists, one after the other */
    SECTION_LIST,    /* struct prog_list: [variant][worker] its range of SECTION_AOT */
    SECTION_WEIGHT,  /* struct prog_weight */
    SECTION_PART,    /* struct prog_part: what the weights are made of */
    SECTION_STRING,  /* bytes; names end with NUL */
    N_SECTIONS
};

#define PROG_NONE 0xffffffffu /* no event, no tensor */
enum { PROG_JIT = 0xffff };   /* as a worker: handed out at run time */

/* Bounds on every program. program_check checks a file against them before other code reads it. */
enum {
    PROG_MAX_RANKS = 8,
    PROG_MAX_GANG = 16,
    PROG_MAX_WORKERS = 1024, /* of a rank */
    PROG_MAX_VARIANTS = 32,
    PROG_MAX_ROWS = 8192, /* token rows of one iteration */
    PROG_MAX_SEQS = 1024,
};

struct prog_section {
    uint64_t offset; /* from the start of the program */
    uint64_t count;  /* elements */
};

struct prog_header {
    char magic[8];
    uint32_t version;
    uint32_t n_workers;       /* workers of a rank, which the placement is for */
    uint64_t total_bytes;     /* of the whole program */
    uint64_t spec_hash;       /* of the model_spec: a program fits one architecture */
    uint32_t n_slots;         /* requests in flight (--max-num-seqs) */
    uint32_t max_model_len;   /* positions that a request may have */
    uint32_t kv_block;        /* positions per KV block, a divisor of ATTENTION_PIECE */
    uint32_t target;          /* enum prog_target */
    uint64_t workspace_bytes; /* activations of all variants; they share one workspace */
    uint32_t model_path;      /* string: where the checkpoint was, "" if unknown */
    uint32_t n_ranks;         /* GPUs that run it together, each as a rank; 1 on the CPU */
    uint64_t checksum;        /* in a file: hash_bytes of all of it with 0 here; in memory: 0 */
    struct prog_section section[N_SECTIONS];
};

enum prog_target { TARGET_CPU = 0, TARGET_CUDA = 1 };

struct prog_variant {
    uint32_t n_rows;       /* T: most token rows of an iteration that runs it */
    uint32_t n_logit_rows; /* L */
    uint32_t first_op, n_ops;
    uint32_t first_task, n_tasks;
    uint32_t first_event, n_events;
    uint32_t start_event; /* activated when the iteration begins */
    uint32_t end_event;   /* activated when every task of the iteration is done */
    uint32_t first_tensor, n_tensors;
    uint32_t n_jit_events; /* events with JIT tasks among their dependents */
    uint32_t n_jit_tasks;
    uint32_t context;     /* positions that its rows may have, up to max_model_len */
    uint32_t decode_only; /* 1: only for iterations whose rows are each of another request */
};
ABI_SIZE(struct prog_variant, 64);

/* How an activation travels from the tasks that write it to its readers (task/transport.c). */
enum prog_transport {
    TRANSPORT_COUNTER = 0, /* elements as they are; an event's counter says when they are stored */
    /* every element is 8 bytes {float value, uint32_t iteration}, stored and loaded in one access:
     * a reader that sees this iteration's number has the value. No two tensors share such bytes. */
    TRANSPORT_FLAG = 1,
    /* The same for every two elements, as 16-bit floats of the weights' type. Only where all
     * readers round the tensor to 16 bits anyway, and in graphs of a single row, of which the
     * tensor has at most STAGED_COLUMNS elements. */
    TRANSPORT_PAIR = 2,
    /* Elements as they are, but a 32-bit word of them (two 16-bit floats or one element) has all
     * bits set until it is stored: a sentinel. No result has such bits. Only with 2 to
     * SENTINEL_ROWS rows. RESET_SENTINELS makes the words sentinels again when their readers are
     * done. */
    TRANSPORT_SENTINEL = 3,
    /* What RESET_SENTINELS writes: the space of all TRANSPORT_SENTINEL tensors of its variant. */
    TRANSPORT_SPACE = 4,
    /* Elements as they are. Only the worker that wrote an element reads it, later in its list, so
     * no event is needed. */
    TRANSPORT_OWN = 5,
};

enum prog_tensor_role { PROG_WEIGHT = 0, PROG_ACTIVATION = 1, PROG_STATE = 2 };

/* The memory that a tensor's bytes lie in. */
enum prog_space {
    SPACE_WEIGHTS = 0,
    SPACE_WORKSPACE = 1, /* shared by several tensors, one after the other */
    SPACE_OWN = 2,       /* bytes of the workspace for tensors that are polled: a stale word must
                            not look stored */
    SPACE_KV = 3,
};

struct prog_tensor {
    uint32_t name;     /* string */
    uint8_t role;      /* enum prog_tensor_role */
    uint8_t dtype;     /* enum dtype */
    uint8_t layout;    /* enum layout: how the elements lie */
    uint8_t space;     /* enum prog_space */
    uint8_t transport; /* enum prog_transport: how the elements say that they are stored */
    uint8_t n_dims;
    uint16_t n_parts;  /* weight: its rows are those of its block's parts [part, part + n_parts) */
    uint32_t part;     /* index in SECTION_PART */
    uint32_t shape[4]; /* the same in every layout */
    /* weight: index in SECTION_WEIGHT; activation: byte offset in the workspace, a multiple of 64;
     * state: layer whose KV cache it is */
    uint64_t where;
    uint64_t bytes; /* with its layout's padding and its flags */
};
ABI_SIZE(struct prog_tensor, 48);

struct prog_op {
    uint16_t kind;          /* enum op_kind */
    int16_t layer;          /* -1 outside the layers */
    uint32_t units;         /* op.def's columns, in numbers */
    uint32_t n_rows;        /* ... */
    uint32_t k;             /* length of the dot products (columns of the weight), 0: none */
    uint32_t in[OP_MAX_IN]; /* tensors, PROG_NONE where absent */
    uint32_t out[OP_MAX_OUT];
    struct op_attrs attrs;
    uint32_t gang; /* tasks that run together (task_graph.h), 1 to PROG_MAX_GANG */
};
ABI_SIZE(struct prog_op, 148);

struct prog_task {
    uint16_t kind;    /* enum op_kind; OP_NONE: an empty task that only forwards a trigger */
    uint16_t worker;  /* AOT: the worker it is placed on; PROG_JIT */
    uint32_t op;      /* PROG_NONE for OP_NONE */
    uint32_t wait;    /* event that must be activated first */
    uint32_t trigger; /* event that it triggers when done */
    /* SPLIT_ROWS, SPLIT_TILES: token rows [row0,row1) x units [unit0,unit1).
     * SPLIT_SLICES: slice unit0 of unit1; the rows are all of the iteration's. */
    uint32_t row0, row1, unit0, unit1;
};
ABI_SIZE(struct prog_task, 32);

struct prog_event {
    uint32_t n_triggers;          /* tasks that trigger it; 1 for the start event */
    uint32_t first_task, n_tasks; /* its dependents */
    uint32_t n_jit;               /* how many of them are JIT */
    uint32_t transport; /* enum prog_transport; TRANSPORT_FLAG: its count is a hint of when to poll
                           the data */
    uint32_t reserved[3];
};
ABI_SIZE(struct prog_event, 32);

struct prog_list {
    uint32_t first, n; /* range of SECTION_AOT */
};

/* A block of weights' memory and its recipe: the parts [first_part, first_part + n_parts). */
struct prog_weight {
    uint32_t name;  /* string: its parts' names, joined by `+` */
    uint32_t dtype; /* enum dtype: how kernels want it */
    uint32_t n_dims;
    uint32_t rows, cols; /* n_dims 1: [rows] */
    uint32_t first_part, n_parts;
    uint32_t reserved;
};
ABI_SIZE(struct prog_weight, 32);

/* A part of a block: a tensor of the checkpoint, or the elements of it that `source` selects. Its
 * row i is the block's row at + i / run * stride + i % run. Or a stack of tensors (kernel_graph.h),
 * each `step` rows after the one before. Rows of the block that no part has are zero. */
struct prog_part {
    uint32_t name; /* string: in the checkpoint; of a stack, a pattern with one `*` */
    uint32_t rows; /* of a tensor */
    uint32_t at, run, stride;
    uint32_t stack, step; /* tensors of a stack; 0: a single tensor */
    struct weight_source source;
};
ABI_SIZE(struct prog_part, 56);

/* Tensors of the checkpoint in a part. */
#ifdef __CUDACC__
__device__
#endif
    static inline uint32_t
    prog_part_tensors(const struct prog_part *p) {
    return p->stack != 0 ? p->stack : 1;
}

#ifdef __CUDACC__
__device__
#endif
    static inline uint64_t
    prog_part_row(uint32_t at, uint32_t run, uint32_t stride, uint64_t row) {
    return at + row / run * stride + row % run;
}

/* Typed access to the sections: PROG(p, TASK)[i]. `p` points at the header. */
#define PROG(p, SECTION)  ((const PROG_TYPE_##SECTION *)prog_section_at((p), SECTION_##SECTION))
#define PROG_TYPE_MODEL   struct model_spec
#define PROG_TYPE_KV      struct kv_row
#define PROG_TYPE_VARIANT struct prog_variant
#define PROG_TYPE_TENSOR  struct prog_tensor
#define PROG_TYPE_OP      struct prog_op
#define PROG_TYPE_TASK    struct prog_task
#define PROG_TYPE_EVENT   struct prog_event
#define PROG_TYPE_AOT     uint32_t
#define PROG_TYPE_LIST    struct prog_list
#define PROG_TYPE_WEIGHT  struct prog_weight
#define PROG_TYPE_PART    struct prog_part
#define PROG_TYPE_STRING  char

#ifdef __CUDACC__
__device__
#endif
    static inline const void *
    prog_section_at(const struct prog_header *p, int section) {
    return (const char *)p + p->section[section].offset;
}

/* Slice `s` of `n` of a list of `length` items: [*first, *last). The slices of one list are
 * disjoint and cover it, in order, and differ by at most one item. */
#ifdef __CUDACC__
__device__
#endif
    static inline void
    prog_slice(uint64_t length, uint32_t s, uint32_t n, uint64_t *first, uint64_t *last) {
    *first = length * s / n;
    *last = length * (s + 1) / n;
}

#ifndef __CUDACC_RTC__
/* ---- host only from here ---- */
#include "base/status.h"
#include "base/strbuf.h"

/* Sets *bytes to the size of the KV cache, which is contiguous: the layers of SECTION_KV one after
 * the other, each n_blocks blocks (kv_row.h). Errors: QN_ELIMIT. */
int program_kv_bytes(struct diag *d, const struct prog_header *p, uint32_t n_blocks,
                     uint64_t *bytes);
/* The byte at which row `kv` of SECTION_KV begins in a cache that program_kv_bytes allows. */
uint64_t program_kv_at(const struct prog_header *p, uint64_t kv, uint32_t n_blocks);

/* The row of the KV cache that an operator reads or writes; NULL: none. */
const struct kv_row *program_kv_row(const struct prog_header *p, const struct prog_op *op);

/* Checks that `bytes` bytes at p are a well-formed program: every offset, count, index, string and
 * number in bounds. Whether it is right, task_verify proves. `name` stands for the file in
 * messages. Errors: QN_EFORMAT, QN_ELIMIT. */
int program_check(struct diag *d, const char *name, const void *p, uint64_t bytes);

/* Writes to a temporary name in the same folder, then renames. */
int program_write(struct diag *d, const struct prog_header *p, const char *path);
/* Reads and checks; the result is the caller's (free()). */
int program_read(struct diag *d, const char *path, struct prog_header **p);

const char *program_string(const struct prog_header *p, uint32_t offset);
void program_dump(const struct prog_header *p, struct strbuf *out);

/* "task 17 qkv L3 rows 0-1 units 4-8": the words that every message about a task uses. */
void program_task_name(const struct prog_header *p, uint32_t task, struct strbuf *out);
#endif
#endif

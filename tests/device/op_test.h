/* op_test.h - what the device tests know of an operator: the forms in which it is run, how exact it
 * is, and its operands' shapes. ops/<operator>.c has it as op_test_<operator>, with the operator's
 * meaning (reference/reference.h) unless reference.c has that; the build takes every file there.
 */
#ifndef QN_TESTS_DEVICE_OP_TEST_H
#define QN_TESTS_DEVICE_OP_TEST_H

#include "device/op_program.h"
#include "reference/operand.h"

/* The models of test_ops.c that run an operator. */
enum op_set {
    PRODUCTS = 1, /* projections, MLP, head */
    ATTENTION = 2,
    OTHERS = 4,  /* the rest, which few numbers of a model matter to */
    WIDE_K = 8,  /* forms with wide_k */
    LATENT = 32, /* operators of latent attention */
    EXPERTS = 64,
    HEAD_TILES = 128, /* heads are a part of 128 columns */
    GROUPED = 256,    /* experts of many rows: residual streams of whole SQUARES_COLUMNS */
    ROUTES = 512,     /* operators that choose and list experts */
};

enum backends { CPU = 1, GPU = 2, HOPPER = 4 };

/* How a form's iterations are filled. */
enum fill {
    FILL_MIXED, /* requests of one row, and a chunk */
    FILL_ALONE, /* requests of one row */
    FILL_LONG,  /* the same with contexts of several pieces; few rows */
    FILL_TWO,   /* the same with contexts of one and two pieces */
    FILL_CHUNK, /* one request */
    FILL_DRAWN, /* requests of one row that draw their tokens, with penalties and cuts */
    N_FILLS,
};
#define MIXED (1u << FILL_MIXED)
#define ALONE (1u << FILL_ALONE)
#define LONG  (1u << FILL_LONG)
#define TWO   (1u << FILL_TWO)
#define CHUNK (1u << FILL_CHUNK)
#define DRAWN (1u << FILL_DRAWN)
#define ALL   (MIXED | ALONE | LONG | CHUNK)

struct form_row {
    struct op_form form;  /* its kind follows from the operator */
    const uint32_t *rows; /* token rows of its graphs, one of the lists below */
    int backends;
    uint32_t fills;     /* bits of enum fill */
    uint32_t n_workers; /* 0: all */
};

/* Lists of token rows; each ends with 0. */
extern const uint32_t one_row[], few_rows[], many_rows[], tile_rows[], any_rows[], eights_and_odd[],
    up_to_16[], up_to_32[], up_to_128[], nine_rows[], decode_only_rows[], rows_of_bands[],
    tiles_of_128[], grouped_rows[], rows_of_stretches[];

/* Numbers that shapes of operands are made of (op_program.c). */
enum op_size {
    S_NONE,
    S_ROWS,
    S_LOGITS, /* logit rows of the band */
    S_HIDDEN,
    S_HEADS, /* all query heads' columns */
    S_KV,
    S_QKV,
    S_HEAD,
    S_INTER,
    S_VOCAB,
    S_BLOCKS,  /* of logits that share a {max, sum} */
    S_K,       /* what LINEAR multiplies */
    S_SQUARES, /* sums of squares of a row */
    S_PARTS,   /* columns of LINEAR_SPLITK */
    S_N_HEADS,
    S_PIECES,
    S_STATE,  /* {max, sum, output} of a head */
    S_KEY,    /* an attended key */
    S_KEYS,   /* as wide queries of all heads */
    S_VALUE,  /* an attended value */
    S_VALUES, /* as wide ones of all heads */
    S_NOPE,   /* what RoPE leaves of a query head */
    S_RANK,   /* of the latent that queries come from, or what is as wide */
    S_JOINED, /* that, a latent and a turned key */
    S_OUT,    /* all heads' values */
    S_ONE,
    S_TWO,
    S_ROUTED, /* logits of the router */
    S_EXPERTS,
    S_TOP_K,
    S_WIDTH,  /* of an expert */
    S_LISTED, /* rows of the list of experts, each of S_LIST_WORDS */
    S_LIST_WORDS,
    S_SLOTS,   /* rows and their experts */
    S_WEIGHTS, /* of a row's experts, and its gate */
    S_CHOSEN,  /* columns that a row's experts make */
};

struct op_operand {
    const char *name; /* of the slot in op.def */
    enum op_size shape[TENSOR_MAX_DIMS];
};

enum { OP_TEST_SHAPES = 6 };

struct op_test {
    uint32_t set; /* bits of enum op_set */
    /* How far a result may be from the reference, of the largest of its tensor: as a number, and in
     * units of the last place of the weights' 16-bit type. */
    double absolute, ulps;
    struct op_operand shapes[OP_TEST_SHAPES]; /* those that op_program.c does not know */
    /* Makes the numbers of an input that not any numbers will do for; false: any will. NULL: no
     * input is such. */
    bool (*fill)(struct reference *r, const struct kop *op, int32_t tensor);
    const struct form_row *forms;
    size_t n_forms;
};

#define FORMS(table)      .forms = (table), .n_forms = sizeof(table) / sizeof *(table)

#define OP(ID, name, ...) extern const struct op_test op_test_##name;
#include "graph/op.def"

/* Of a valid op_kind. */
const struct op_test *op_test_of(enum op_kind kind);

#endif

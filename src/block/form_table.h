/* form_table.h - the tables behind form.h, for src/block/form*.c only.
 *
 * Atoms, monomials and forms are interned: records in arenas, found by their structural hash.
 * They are ordered by (hash, id). That order is the same in every table unless hashes are equal.
 *
 * An index of an atom is a variable and a map:
 *
 *     bits 0-7 dim   8-15 copy   16-31 map
 *
 * copy 0: the dim is free. A copy from 1 on is bound by the nearest enclosing SUM or MAX that binds
 * it. A binding atom takes copies above all that are bound inside it, so no substitution is
 * captured. map 0 is the index itself; MAP_SWAP is the same place in the other half of the dim. Any
 * other map is a position that an atom gives (PICK). That atom has indices of its own, so the
 * variable is NO_VAR.
 */
#ifndef QN_BLOCK_FORM_TABLE_H
#define QN_BLOCK_FORM_TABLE_H

#include "base/arena.h"
#include "base/array.h"
#include "block/form.h"

typedef uint32_t atom_id;
typedef uint32_t mono_id; /* MONO_ONE: no factors */
typedef uint32_t index_id;

enum {
    FORM_ZERO = 1, /* the number 0 */
    MONO_ONE = 1,
    MAP_NONE = 0,
    MAP_SWAP = 1,
    NO_VAR = 0xffff,
    FORM_MAX_BOUND = 8,       /* variables that one atom binds */
    FORM_MAX_TRIALS = 2880,   /* namings of them that are tried: 720 x 4 */
    FORM_MAX_FACTORS = 96,    /* of a monomial */
    FORM_MAX_TERMS = 2048,    /* of a form */
    FORM_MAX_POWER = 1 << 24, /* exponents, numerators and denominators */
    FORM_MAX_COPIES = 200,
    FORM_MAX_RECORDS = 1 << 20,
};

#define VAR_OF(dim, copy)   ((index_id)(dim) | (index_id)(copy) << 8)
#define INDEX_OF(var, map)  ((index_id)(var) | (index_id)(map) << 16)
#define INDEX_VAR(index)    ((index)&0xffffu)
#define INDEX_DIM(index)    ((index)&0xffu)
#define INDEX_COPY(index)   ((index) >> 8 & 0xffu)
#define INDEX_MAP(index)    ((index) >> 16)
#define INDEX_IS_VAR(index) (INDEX_VAR(index) != NO_VAR)

struct rational {
    int64_t num, den; /* den > 0, no common divisor */
};

enum atom_kind {
    ATOM_INPUT,
    ATOM_SIZE,
    ATOM_SUM,
    ATOM_MAX,
    ATOM_POWER,
    ATOM_EXP,
    ATOM_LOG,
    ATOM_RELU,
    ATOM_PHI, /* gelu(x) = x phi(x) */
    ATOM_CHOOSE,
};

struct atom {
    uint64_t hash;
    uint32_t free;   /* dims of free variables, copy 0 */
    uint32_t inside; /* dims of free variables of other copies: bound further out */
    uint32_t outer;  /* the largest of these copies; 0: none */
    uint8_t kind;
    uint8_t n;       /* indices, or bound variables */
    uint8_t input;   /* INPUT: enum form_input_kind */
    uint8_t height;  /* the largest copy that is bound inside; 0: none */
    uint8_t which;   /* INPUT of FORM_WHICH: which of the order's indices */
    uint16_t map[2]; /* numbers of its maps: plain and swapped position; 0: none yet */
    uint32_t tensor; /* INPUT; SIZE: the dim */
    mono_id mono;    /* SUM; MAX, CHOOSE: the mask */
    form_id form;    /* the argument */
    index_id at[FORM_INPUT_DIMS];
};
_Static_assert((int)FORM_MAX_BOUND <= (int)FORM_INPUT_DIMS, "bound variables lie in atom.at");

struct factor {
    atom_id atom;
    int32_t num, den; /* exponent, not 0 */
};

struct mono {
    uint64_t hash;
    uint32_t free, inside, outer;
    uint32_t height;
    uint32_t n;
    const struct factor *factors;
};

struct term {
    struct rational c; /* not 0 */
    mono_id mono;
};

struct form {
    uint64_t hash;
    uint32_t free, inside, outer;
    uint32_t height;
    uint32_t n;
    const struct term *terms;
};

/* A hash table of ids. */
struct id_table {
    uint32_t *ids;
    uint32_t n, capacity;
};

/* A position that an atom gives: an INPUT of FORM_INDEX, FORM_ORDER or FORM_WHICH. */
struct index_map {
    atom_id atom;
    bool swapped; /* the same place in the other half */
};

struct form_memo { /* form_useful */
    form_id p, target;
    bool known, useful;
};

struct form_reached;
struct forms {
    struct arena arena;
    ARRAY(struct atom) atoms;
    ARRAY(struct mono) monos;
    ARRAY(struct form) forms;
    ARRAY(struct index_map) maps;
    struct id_table atom_at, mono_at, form_at;
    struct form_memo *memo;
    uint32_t n_memo, memo_capacity;
    struct form_reached *reached; /* form_useful: the last target's polynomials */
    uint32_t n_reached;
    form_id reached_of;
    uint32_t depth;                   /* of recursive calls */
    uint64_t look_ups, most_look_ups; /* forms_bound */
    bool cancelling;                  /* form_cancel is running: it must not call itself */
    bool nomem;
};

static inline const struct atom *atom_of(const struct forms *f, atom_id id) {
    return &f->atoms.items[id];
}
static inline const struct mono *mono_of(const struct forms *f, mono_id id) {
    return &f->monos.items[id];
}
static inline const struct form *form_of(const struct forms *f, form_id id) {
    return &f->forms.items[id];
}

/* ---- rationals: false: more than 64 bits ---- */

bool rational_make(int64_t num, int64_t den, struct rational *out);
bool rational_add(struct rational a, struct rational b, struct rational *out);
bool rational_mul(struct rational a, struct rational b, struct rational *out);
bool rational_inverse(struct rational a, struct rational *out); /* a is not 0 */
static inline bool rational_same(struct rational a, struct rational b) {
    return a.num == b.num && a.den == b.den;
}

/* ---- interning (form_table.c); 0: not decided ---- */

atom_id atom_intern(struct forms *f, struct atom a);
/* Factors in any order; factors of one atom are merged. */
mono_id mono_intern(struct forms *f, const struct factor *factors, uint32_t n);
/* Terms in any order; terms of one monomial are merged. */
form_id form_intern(struct forms *f, const struct term *terms, uint32_t n);
/* The orders of atoms and of monomials. */
int atom_compare(const struct forms *f, atom_id a, atom_id b);
int mono_compare(const struct forms *f, mono_id a, mono_id b);

/* ---- arithmetic (form_arith.c) ---- */

form_id form_of_term(struct forms *f, struct rational c, mono_id m);
form_id form_of_atom(struct forms *f, atom_id a, int32_t num, int32_t den);
form_id form_add(struct forms *f, form_id a, form_id b);
form_id form_scale(struct forms *f, form_id a, struct rational c);
form_id form_mul(struct forms *f, form_id a, form_id b);
form_id form_integer(struct forms *f, int64_t n);
/* a^(num/den), den 1 or 2. */
form_id form_power(struct forms *f, form_id a, int32_t num, int32_t den);
/* The product of factors, including exponents that an atom cannot keep. */
form_id form_of_factors(struct forms *f, struct rational c, const struct factor *factors,
                        uint32_t n);
/* Whether form_of_factors would leave all exponents as they are. */
bool mono_settled(const struct forms *f, mono_id id);
/* Whether an atom is positive for all inputs. */
bool atom_positive(const struct forms *f, atom_id a);

/* a, after terms are cancelled against their denominators (form_divide.c). */
form_id form_cancel(struct forms *f, form_id a);

/* ---- indices (form_index.c) ---- */

/* The index that replaces a variable. */
struct renaming {
    index_id from; /* a variable */
    index_id to;   /* the index that replaces it; the map around the variable stays */
};
atom_id atom_rename(struct forms *f, atom_id id, const struct renaming *r, uint32_t n);
/* The product of the renamed factors; false: not decided. */
bool factors_rename(struct forms *f, struct factor *factors, uint32_t n_factors,
                    const struct renaming *r, uint32_t n);
form_id form_rename(struct forms *f, form_id id, const struct renaming *r, uint32_t n);
/* Whether an atom or a form has a variable. Both count look-ups: a form may be a large tree. */
bool atom_has(struct forms *f, atom_id id, index_id var);
bool form_has(struct forms *f, form_id id, index_id var);
/* Whether an index has a variable. */
bool index_has(struct forms *f, index_id at, index_id var);
/* Counts of indices: a variable with MAP_SWAP, without a map; positions that depend on it. */
struct index_count {
    uint32_t swapped, plain, other;
};
void atom_count(struct forms *f, atom_id id, index_id var, struct index_count *c);
void form_count(struct forms *f, form_id id, index_id var, struct index_count *c);
/* Whether forms_bound's bound is reached: later results are of no use. */
static inline bool forms_spent(const struct forms *f) {
    return f->most_look_ups != 0 && f->look_ups >= f->most_look_ups;
}
/* The index that an atom gives; false: not decided. WHICH of an order at that order's own place is
 * the index that stands there. */
bool index_of_atom(struct forms *f, atom_id id, bool swapped, index_id *out);

/* ---- sums and largest values over dims (form_sum.c) ---- */

form_id form_sum(struct forms *f, form_id a, uint32_t dim);
form_id form_max_over(struct forms *f, form_id a, form_id mask, uint32_t dim);
form_id form_choose(struct forms *f, form_id a, form_id mask, uint32_t dim);

/* ---- functions (form_fn.c) ---- */

form_id form_exp(struct forms *f, form_id a);
form_id form_log(struct forms *f, form_id a);
form_id form_relu(struct forms *f, form_id a);
form_id form_phi(struct forms *f, form_id a);

/* ---- sub-expressions (form_useful.c) ---- */

/* Releases the polynomials that form_useful keeps of its last target. */
void form_forget_target(struct forms *f);

#endif

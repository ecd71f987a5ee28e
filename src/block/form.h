/* form.h - the normal form: the exact function that an expression computes, independent of the
 * order in which it is written. Two expressions with one form are equal over the real numbers
 * wherever both are defined.
 *
 *   form       a sum of terms, in order
 *   term       a rational coefficient times a monomial
 *   monomial   a multiset of factors: atoms with rational exponents, in order
 *   atom       an element of an input, with its indices
 *              the size of a dim
 *              SUM       a monomial, summed over bound dims that join its factors
 *              MAX       the largest of a form over bound dims, where a mask is 1
 *              POWER     the form whose inverse or root was taken
 *              EXP, LOG, RELU, PHI, CHOOSE   a function of a form
 *
 * Everything is interned: equal forms have equal ids. The name of a bound dim does not count: names
 * are chosen by trial (form_sum.c). Arithmetic on coefficients is checked. A result that overflows,
 * exceeds a limit or is not understood is FORM_NONE, "not decided", and so is everything computed
 * from it: a form may be missing but is never wrong.
 *
 * Equality of forms assumes: denominators are not 0, arguments of roots and logarithms are
 * positive, sizes are positive, masks are 0 or 1, a share has each index of its dim once, an order
 * gives each position once, and a largest value over an empty set has exponential 0 (a piece
 * without positions adds nothing).
 *
 * A table is not thread-safe. It grows until forms_free.
 */
#ifndef QN_BLOCK_FORM_H
#define QN_BLOCK_FORM_H

#include "base/status.h"
#include "base/strbuf.h"
#include "block/block_op.h"

typedef uint32_t form_id;
enum { FORM_NONE = 0 };

struct forms;

/* Errors: QN_ENOMEM. */
int forms_new(struct diag *d, struct forms **out);
void forms_free(struct forms *f);
/* Bounds the look-ups of atoms, monomials and forms; past the bound nothing more is decided. 0: no
 * bound. For expressions that come from outside. */
void forms_bound(struct forms *f, uint64_t look_ups);
/* QN_ENOMEM if memory ran out in any call since forms_new (it returned FORM_NONE), else QN_OK. */
int forms_status(struct diag *d, const struct forms *f);

enum form_input_kind {
    FORM_REAL,  /* any number */
    FORM_MASK,  /* 0 or 1 */
    FORM_SHARE, /* mask [s, p...]: for each p... it is 1 at one s */
    FORM_INDEX, /* a position of another dim; PICK alone reads it */
    FORM_ORDER, /* [d...]: positions of another dim, each at exactly one d...; as FORM_INDEX */
    FORM_WHICH, /* no input: the result of WHICH on an order */
};

/* An input: its element at [dims]. `tensor` is the caller's number for it (below 2^31): equal
 * numbers mean the same tensor. dims: n numbers of dims (below BLOCK_MAX_DIMS), in the tensor's
 * order, at most FORM_INPUT_DIMS. */
enum { FORM_INPUT_DIMS = 8 };
form_id form_input(struct forms *f, uint32_t tensor, enum form_input_kind kind, const uint8_t *dims,
                   uint32_t n);
/* numerator / denominator */
form_id form_number(struct forms *f, int64_t numerator, int64_t denominator);
form_id form_size(struct forms *f, uint32_t dim);

/* The form of an operator's result. Operands past the arity are FORM_NONE and ignored; the optional
 * mask may be FORM_NONE. CAST16 returns its operand: forms do not model rounding. */
form_id form_apply(struct forms *f, enum block_op op, const struct block_use *use,
                   const form_id operand[BLOCK_MAX_ARITY]);

/* The dims on which an element depends (bits). A dim of an expression may be missing here: x - x
 * has none. */
uint32_t form_dims(const struct forms *f, form_id form);
/* Terms; 0: the number 0, or FORM_NONE. */
uint32_t form_terms(const struct forms *f, form_id form);
/* A hash. It is the same in every table, given the same numbers of tensors and dims. */
uint64_t form_hash(const struct forms *f, form_id form);

/* Whether a and b are equal: their ids are, or they are after common denominators are cleared.
 * false: not decided. */
bool form_equal(struct forms *f, form_id a, form_id b);

/* Whether p may be a sub-expression of target: some polynomial c among the target and the arguments
 * of its atoms has a monomial m such that every term of p times m, summed over some dims, is a term
 * of c. Memoised. FORM_NONE is never useful, nor are forms of numbers and sizes only: they need no
 * step. */
bool form_useful(struct forms *f, form_id p, form_id target);

/* Names for dumps; a NULL name is printed as a number. */
struct form_names {
    const char *const *dims;    /* [BLOCK_MAX_DIMS] */
    const char *const *tensors; /* [n_tensors] */
    uint32_t n_tensors;
};
void form_dump(const struct forms *f, form_id form, const struct form_names *names,
               struct strbuf *out);

/* How many atoms, monomials and forms a table holds. */
struct form_stats {
    uint32_t n_atoms, n_monomials, n_forms;
};
void forms_stats(const struct forms *f, struct form_stats *s);

#endif

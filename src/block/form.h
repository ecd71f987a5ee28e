/* form.h - the normal form: what an expression computes, exactly, whatever the order in which it
 * is written. Two expressions with one form are equal over the real numbers wherever both are
 * defined.
 *
 *   form       a sum of terms, in order
 *   term       a rational coefficient times a monomial
 *   monomial   a multiset of factors: atoms with rational exponents, in order
 *   atom       an element of an input, with its indices
 *              the size of a dim
 *              SUM       a monomial, summed over bound dims that join its factors
 *              MAX       the largest of a form over bound dims, where a mask is 1
 *              POWER     a form that an inverse or a root was taken of
 *              EXP, LOG, RELU, PHI, CHOOSE   a function of a form
 *
 * Everything is interned: equal forms have equal ids. A bound dim's name does not count: names are
 * given by trial (form_sum.c). Arithmetic on coefficients is checked; what overflows, exceeds a
 * limit or is not understood is FORM_NONE, "not decided", and so is all that is made of it: the
 * form is never wrong, it may be missing.
 *
 * What equality of forms assumes: denominators are not 0, arguments of roots and logarithms are
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
/* After so many look-ups of atoms, monomials and forms nothing more is decided; 0: no bound. For
 * expressions that come from outside. */
void forms_bound(struct forms *f, uint64_t look_ups);
/* QN_ENOMEM if memory ran out in any call since forms_new (these gave FORM_NONE), else QN_OK. */
int forms_status(struct diag *d, const struct forms *f);

enum form_input_kind {
    FORM_REAL,  /* any number */
    FORM_MASK,  /* 0 or 1 */
    FORM_SHARE, /* mask [s, p...]: for each p... it is 1 at one s */
    FORM_INDEX, /* a position of another dim; for PICK alone */
    FORM_ORDER, /* [d...]: positions of another dim, each of which one d... has; as FORM_INDEX */
    FORM_WHICH, /* no input: what WHICH makes of an order */
};

/* An input as a whole: element [dims]. `tensor` is the caller's number for it (below 2^31): equal
 * numbers are the same tensor. dims: n numbers of dims (below BLOCK_MAX_DIMS), in the tensor's
 * order, at most FORM_INPUT_DIMS. */
enum { FORM_INPUT_DIMS = 8 };
form_id form_input(struct forms *f, uint32_t tensor, enum form_input_kind kind, const uint8_t *dims,
                   uint32_t n);
/* numerator / denominator */
form_id form_number(struct forms *f, int64_t numerator, int64_t denominator);
form_id form_size(struct forms *f, uint32_t dim);

/* The form of an operator's result. Operands that the operator lacks are FORM_NONE and ignored, the
 * optional mask may be. CAST16 changes nothing: the form knows no rounding. */
form_id form_apply(struct forms *f, enum block_op op, const struct block_use *use,
                   const form_id operand[BLOCK_MAX_ARITY]);

/* Dims of which an element depends (bits). A dim of an expression may be missing here: x - x has
 * none. */
uint32_t form_dims(const struct forms *f, form_id form);
/* Terms; 0: the number 0, or FORM_NONE. */
uint32_t form_terms(const struct forms *f, form_id form);
/* The same in every table, given the same numbers of tensors and dims. */
uint64_t form_hash(const struct forms *f, form_id form);

/* Whether a and b are equal: by their ids, or after common denominators are cleared. false: not
 * decided. */
bool form_equal(struct forms *f, form_id a, form_id b);

/* Whether p may be a sub-expression of target: for some polynomial c among the target and the
 * arguments of its atoms there is a monomial m such that every term of p times m, summed over some
 * dims, is a term of c. Memoised; FORM_NONE is useful for nothing, nor is what has numbers
 * and sizes only: they need no step. */
bool form_useful(struct forms *f, form_id p, form_id target);

/* Names for dumps; a name NULL is given as a number. */
struct form_names {
    const char *const *dims;    /* [BLOCK_MAX_DIMS] */
    const char *const *tensors; /* [n_tensors] */
    uint32_t n_tensors;
};
void form_dump(const struct forms *f, form_id form, const struct form_names *names,
               struct strbuf *out);

/* How many atoms, monomials and forms a table has. */
struct form_stats {
    uint32_t n_atoms, n_monomials, n_forms;
};
void forms_stats(const struct forms *f, struct form_stats *s);

#endif

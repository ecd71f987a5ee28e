/* code.h - a grammar as instructions for the matcher: byte by byte, with calls.
 *
 *   RANGE low high   the next byte is in [low, high], then `next`
 *   SPLIT            both `next` and `other`
 *   CALL             the rule that begins at `other`, then `next`
 *   REPEAT           the body that begins at `other`, as often as the next instruction, BOUNDS,
 *                    says, then `next`
 *   RETURN           the end of a rule or of a body; at the end of the first rule the text may end
 *
 * The number of repetitions so far is on the stack (states.h), so a count of 65,535 takes two
 * instructions. An instruction names its successors, so a rule's end is made before its beginning.
 * A CALL whose successor is a RETURN needs no return address: lists and chains of rules do not grow
 * the stack. Bytes that no RANGE tells apart form one class.
 */
#ifndef QN_GRAMMAR_CODE_H
#define QN_GRAMMAR_CODE_H

#include "grammar/exprs.h"

enum {
    CODE_MAX = 1 << 18, /* instructions */
};

enum code_kind {
    CODE_RANGE,
    CODE_SPLIT,
    CODE_CALL,
    CODE_REPEAT,
    CODE_BOUNDS, /* next: least count, other: most, or EXPR_NO_LIMIT; low: 1, the body may be the
                  * empty text */
    CODE_RETURN,
    CODE_FAIL, /* no text goes on from here */
    CODE_RULE, /* only while the code is made: a CALL of rule `other` */
};

struct instruction {
    uint8_t kind; /* enum code_kind */
    uint8_t low, high;
    uint32_t next, other;
};

struct code {
    ARRAY(struct instruction) items;
    uint32_t start;
    uint8_t class_of[256];
    uint8_t byte_of[256]; /* [n_classes] the first byte of each */
    uint32_t n_classes;
};

/* Makes the code of expressions that exprs_check has passed. Errors, in x->rc too: QN_ELIMIT,
 * QN_ENOMEM. */
int code_make(struct exprs *x, struct code *code);
void code_fini(struct code *code);

#endif

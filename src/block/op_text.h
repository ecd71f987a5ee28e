/* op_text.h - the text in which an operator's meaning is written.
 *
 *     # comments to the end of the line
 *     op swiglu(x[t,h] act, g[h] vec, wg[i,h] weight, wu[i,h] weight, eps const) -> y[t,i]
 *       n = x * g * rsqrt(mean(h: x*x) + eps)
 *       y = silu(sum(h: n*wg)) * sum(h: n*wu)
 *
 *   argument   name[dim,...] kind, or name[dim,...] kind = expression: the argument may be absent,
 *              and this expression of earlier arguments then replaces it.
 *              Kinds: act vec weight const state mask share, index(dim).
 *              A name may be a part of a tensor: qkv.k
 *   output     name[dim,...], which a line defines
 *   line       name = expression, of arguments and earlier lines. It ends with the text line,
 *              except inside brackets or after an operator, a comma, `=` or `->`
 *   operators  + - * / and unary minus
 *   functions  exp log sqrt rsqrt square sigmoid silu tanh gelu abs cast16 of one argument,
 *              min max of several, clamp(x, low, high), select(mask, a, b), size(dim),
 *              given(argument: a, b): a if the argument is present, else b
 *   sums       sum(d: e), mean(d: e), max(d: e), choose(d: e); several dims: sum(d1,d2: e);
 *              sum(d in m: e), max(d in m1,m2: e): only where these masks or shares are 1
 *   moves      swap(d: e): the halves of d change places;
 *              pick(d = row: e): e at the position of d that the index argument `row` gives
 *
 * A dim is an index with a range: the same name means the same range, and the size is a symbol. A
 * product of dims is written as its factors (a query head is [kv,group], its KV head is [kv]). An
 * operand of an elementwise operator is constant along the dims that it lacks.
 */
#ifndef QN_BLOCK_OP_TEXT_H
#define QN_BLOCK_OP_TEXT_H

#include "block/expr.h"

enum { OP_TEXT_MAX_BYTES = 1 << 16, OP_TEXT_MAX_DEPTH = 64 };

/* Reads one operator into *x. `name` stands for the file in messages: "F:3:14: want ..., have ...".
 * Errors: QN_EFORMAT, QN_ELIMIT. */
int op_text_parse(struct diag *d, const char *name, const char *text, size_t n, struct expr *x);

#endif

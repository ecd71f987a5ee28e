/* op_text.h - the text in which an operator's meaning is written.
 *
 *     # comments to the end of the line
 *     op swiglu(x[t,h] act, g[h] vec, wg[i,h] weight, wu[i,h] weight, eps const) -> y[t,i]
 *       n = x * g * rsqrt(mean(h: x*x) + eps)
 *       y = silu(sum(h: n*wg)) * sum(h: n*wu)
 *
 *   argument   name[dim,...] kind, or name[dim,...] kind = expression: it may be absent, and is
 * then this expression of earlier arguments. Kinds: act vec weight const state mask share,
 *              index(dim). A name may be a part of a tensor: qkv.k
 *   output     name[dim,...], which a line defines
 *   line       name = expression, of arguments and earlier lines. It ends where the text line does,
 *              unless that is inside of brackets or after an operator, a comma, `=` or `->`
 *   operators  + - * / and unary minus
 *   functions  exp log sqrt rsqrt square sigmoid silu tanh gelu abs cast16 of one argument, min max
 * of several, clamp(x, low, high), select(mask, a, b), size(dim),
 *              given(argument: a, b): a if the argument is there, else b sums       sum(d: e),
 * mean(d: e), max(d: e), choose(d: e); several dims: sum(d1,d2: e); sum(d in m: e), max(d in m1,m2:
 * e): where these masks or shares are 1 moves      swap(d: e): the halves of d change places;
 * pick(d = row: e): e at the position of d that the index argument `row` gives
 *
 * A dim is an index of one range: the same name, the same range, and the size is a symbol. A
 * product of dims is as many dims (a query head is [kv,group]: its KV head is [kv]). Elementwise
 * operators take what has other dims along all of them.
 */
#ifndef QN_BLOCK_OP_TEXT_H
#define QN_BLOCK_OP_TEXT_H

#include "block/expr.h"

enum { OP_TEXT_MAX_BYTES = 1 << 16, OP_TEXT_MAX_DEPTH = 64 };

/* Reads one operator; *x is set. `name` stands for the file in messages: "F:3:14: want ..., have
 * ...". Errors: QN_EFORMAT, QN_ELIMIT. */
int op_text_parse(struct diag *d, const char *name, const char *text, size_t n, struct expr *x);

#endif

/* node.h - a template as a tree. The parser makes it, scope.c resolves its names, exec.c runs it;
 * all of it lives in the program's arena.
 */
#ifndef QN_MODEL_JINJA_NODE_H
#define QN_MODEL_JINJA_NODE_H

#include "model/jinja/value.h"

/*            a            b          c          list          more
 * expressions
 *   CONST                                                              value
 *   NAME                                                               name, hops, slot
 *   NSREF                                                              name.attribute, as a target
 *   ATTRIBUTE object                                                   name
 *   ITEM      object       index
 *   SLICE     object       start      stop       step                  each may be NULL
 *   CALL      callee                             arguments             named ones are KEYWORD
 *   FILTER    input                              arguments             name, row; input NULL: a
 * block's text TEST      input                              arguments             name, row KEYWORD
 * value                                                    name STAR      value op: 1 *args, 2
 * **kwargs UNARY     operand                                                  op BINARY    left
 * right                                       op COMPARE   first KEYWORD of others     op of each
 *   IF_ELSE   then         condition  else                             else may be NULL
 *   CONCAT, LIST, TUPLE                          items
 *   DICT                                         key, value, key ...
 * statements
 *   DATA                                                               value
 *   OUTPUT                                       expressions
 *   SET       target       value
 *   SET_BLOCK target       filter                body
 *   FOR       target       iterable   condition  body         else     scope, test_scope
 *   IF        condition                          body         else     an elif is an IF in else
 *   MACRO                                        body         parameters: KEYWORD, a is the default
 *   CALL_BLOCK call                              body         parameters
 *   FILTER_BLOCK filter                          body
 *   WITH                                         body         KEYWORD-less pairs: target, value ...
 *   BREAK, CONTINUE
 */
enum node_kind {
    NODE_CONST,
    NODE_NAME,
    NODE_NSREF,
    NODE_ATTRIBUTE,
    NODE_ITEM,
    NODE_SLICE,
    NODE_CALL,
    NODE_FILTER,
    NODE_TEST,
    NODE_KEYWORD,
    NODE_STAR,
    NODE_UNARY,
    NODE_BINARY,
    NODE_COMPARE,
    NODE_IF_ELSE,
    NODE_CONCAT,
    NODE_LIST,
    NODE_TUPLE,
    NODE_DICT,
    NODE_DATA,
    NODE_OUTPUT,
    NODE_SET,
    NODE_SET_BLOCK,
    NODE_FOR,
    NODE_IF,
    NODE_MACRO,
    NODE_CALL_BLOCK,
    NODE_FILTER_BLOCK,
    NODE_WITH,
    NODE_BREAK,
    NODE_CONTINUE,
};

enum node_op {
    OP_NONE,
    OP_NOT,
    OP_NEGATE,
    OP_PLUS,
    OP_AND,
    OP_OR,
    OP_ADD,
    OP_SUBTRACT,
    OP_MULTIPLY,
    OP_DIVIDE,
    OP_FLOOR_DIVIDE,
    OP_MODULO,
    OP_POWER,
    OP_EQUAL,
    OP_UNEQUAL,
    OP_LESS,
    OP_LESS_EQUAL,
    OP_GREATER,
    OP_GREATER_EQUAL,
    OP_IN,
    OP_NOT_IN,
};

/* How a name is used (NODE_NAME's op). */
enum { NAME_LOAD, NAME_STORE, NAME_PARAM };

struct name {
    const char *text;
    size_t n;
    struct value value; /* as a text */
};

struct node_list {
    struct node **items;
    size_t n;
};

struct node {
    uint8_t kind, op;
    uint8_t depth; /* levels of nodes below, at most JINJA_MAX_TREE */
    uint32_t line;
    uint32_t hops; /* NAME, NSREF, MACRO: functions outwards */
    uint32_t slot;
    struct node *a, *b, *c;
    struct node_list list, more;
    const struct name *name, *attribute;
    const void *row; /* FILTER, TEST; NULL: unknown */
    struct value value;
    struct scope *scope; /* of its body */
    struct scope *test_scope, *else_scope;
    struct signature *signature; /* MACRO, CALL_BLOCK */
};

/* What happens to the slots of a scope when it is entered. */
enum load { LOAD_PARAM, LOAD_RESOLVE, LOAD_ALIAS, LOAD_MISSING };
struct scope_name {
    const struct name *name;
    uint8_t load;
    uint32_t slot;
    uint32_t hops, source; /* ALIAS: the slot outside */
};
struct scope {
    struct scope *parent;
    struct function_body *body; /* whose frame holds the slots */
    uint32_t level;
    struct scope_name *names;
    size_t n, capacity;
};

/* The root or a macro: what has a frame of its own. */
struct function_body {
    struct function_body *outer;
    struct {
        uint32_t level;
        const struct name *name;
    } * slots;
    size_t n, capacity;
};

struct signature {
    const struct name *name; /* NULL: of a call block */
    struct function_body body;
    uint32_t *slots; /* of the parameters */
    bool takes_caller, takes_named, takes_more;
    bool explicit_caller;
    uint32_t caller, named, more;
};

/* A compiled template. */
struct jinja {
    struct arena arena;
    const char *where;
    struct node_list body;
    const struct name *loop, *caller, *named, *more; /* names with a meaning of their own */
    struct function_body root;
    struct scope *scope;
};

int parse(struct diag *d, struct jinja *j, const char *program, size_t n);
int scope_resolve(struct diag *d, struct jinja *j);

#endif

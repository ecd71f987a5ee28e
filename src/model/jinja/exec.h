/* exec.h - a run's frames, loops and macros. */
#ifndef QN_MODEL_JINJA_EXEC_H
#define QN_MODEL_JINJA_EXEC_H

#include "model/jinja/node.h"
#include "model/jinja/value.h"

enum { SIGNAL_NONE, SIGNAL_BREAK, SIGNAL_CONTINUE };

/* The variables of one call of a function. */
struct frame {
    struct frame *outer; /* of the function around it */
    struct value *slots; /* [body.n] */
};

struct macro {
    const struct node *node;
    struct frame *frame; /* where it was defined */
};

/* A for loop in progress; what `loop` is. */
struct loop {
    const struct node *node;
    struct value source;
    struct iter *items;
    struct frame *frame;
    bool is_tested;                      /* the condition holds for what items gives */
    int64_t index0;                      /* -1 before the first item */
    int64_t n;                           /* -1: not known yet */
    struct value before, current, after; /* VALUE_MISSING: none */
    struct value changed;
};

int loop_length(struct run *r, struct loop *loop, int64_t *n);
int loop_pull(struct run *r, struct loop *loop, struct value *item, bool *more);
int loop_attribute(struct run *r, struct loop *loop, const struct text *name, struct value *out);

int macro_repr(struct out *o, const struct macro *m);
int macro_call(struct run *r, const struct macro *m, const struct args *args, struct value *out);

int eval(struct run *r, const struct node *n, struct value *out);
int eval_filter(struct run *r, const struct node *n, struct value input, struct value *out);
int eval_call(struct run *r, const struct node *n, struct value caller, struct value *out);
int exec_body(struct run *r, const struct node_list *body);
int exec_root(struct run *r, const struct jinja *j);
/* The slots of a scope at its begin and at its end. */
int exec_enter(struct run *r, const struct scope *scope);
void exec_leave(struct run *r, const struct scope *scope);
struct value *exec_slot(struct run *r, uint32_t hops, uint32_t slot);

#endif

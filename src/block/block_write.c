/* block_write.c - the text form of block graphs. block_read.c reads it. Both use the same words:
 * the names of block.c and of the operators' rows. */
#include "block/block.h"

#include <inttypes.h>

static void write_operand(const struct block *b, uint32_t node, struct strbuf *out) {
    if (node < b->n_in)
        strbuf_str(out, b->in[node].name);
    else
        strbuf_printf(out, "%%%u", node);
}

/* Appends " over " and the names of the dims, if there are dims. */
static void write_names(const struct block *b, block_dims dims, struct strbuf *out) {
    const char *between = " over ";
    for (uint32_t i = 0; i < b->n_dims; i++) {
        if ((dims >> i & 1) == 0) continue;
        strbuf_printf(out, "%s%s", between, b->dim[i].name);
        between = ",";
    }
}

static void write_dim(const struct block_dim *d, struct strbuf *out) {
    strbuf_printf(out, "  dim %s %s", d->name, block_role_name(d->role));
    if (d->size != 0) strbuf_printf(out, " size %u", d->size);
    strbuf_printf(out, " tile %u", d->tile);
    if (d->parent[0] != '\0') strbuf_printf(out, " of %s", d->parent);
    strbuf_char(out, '\n');
}

static void write_place(const struct block_node *n, struct strbuf *out) {
    strbuf_printf(out, " : %s %s %s", block_stage_name(n->stage), block_space_name(n->space),
                  dtype_row(n->dtype)->name);
    if (n->order != ORDER_NONE) strbuf_printf(out, " %s", block_order_name(n->order));
    strbuf_char(out, '\n');
}

static void write_in(const struct block *b, uint32_t i, struct strbuf *out) {
    strbuf_printf(out, "  in %s", b->in[i].name);
    block_write_dims(b, b->node[i].dims, out);
    strbuf_printf(out, " %s", expr_kind_name((enum expr_kind)b->in[i].kind));
    write_place(&b->node[i], out);
}

static void write_node(const struct block *b, uint32_t i, struct strbuf *out) {
    const struct block_node *n = &b->node[i];
    const char *before = "(";
    uint8_t operand[BLOCK_MAX_ARITY];
    const uint32_t n_operands = block_operands(n, operand);
    strbuf_printf(out, "  %%%u", i);
    block_write_dims(b, n->dims, out);
    strbuf_printf(out, " = %s", block_op_table[n->op].name);
    if (n->op == BLOCK_OP_NUMBER)
        strbuf_printf(out, " %" PRId64 "/%" PRId64, n->numerator, n->denominator);
    for (uint32_t k = 0; k < n_operands; k++, before = ", ") {
        strbuf_str(out, before);
        write_operand(b, operand[k], out);
    }
    if (n_operands > 0) strbuf_char(out, ')');
    write_names(b, n->red, out);
    write_place(n, out);
}

static void write_task(const struct block *b, struct strbuf *out) {
    strbuf_printf(out, "task %s", b->name);
    if (b->expr != 0) strbuf_printf(out, " expr %016" PRIx64, b->expr);
    strbuf_char(out, '\n');
    for (uint32_t i = 0; i < b->n_dims; i++) write_dim(&b->dim[i], out);
    if (b->loop != BLOCK_NONE) strbuf_printf(out, "  loop %s\n", b->dim[b->loop].name);
    if (b->loop2 != BLOCK_NONE) strbuf_printf(out, "  loop2 %s\n", b->dim[b->loop2].name);
    for (uint32_t i = 0; i < b->n_in; i++) write_in(b, i, out);
    for (uint32_t i = b->n_in; i < b->n_nodes; i++) write_node(b, i, out);
    for (uint32_t i = 0; i < b->n_out; i++) {
        strbuf_printf(out, "  out %s %s = ", b->out[i].name, dtype_row(b->out[i].dtype)->name);
        write_operand(b, b->out[i].node, out);
        strbuf_char(out, '\n');
    }
    strbuf_str(out, "end\n");
}

void block_write(const struct block_graph *g, struct strbuf *out) {
    for (uint32_t t = 0; t < g->n_tasks; t++) write_task(&g->task[t], out);
}

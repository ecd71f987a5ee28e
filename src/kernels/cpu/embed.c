/* embed.c - EMBED: one row of the table per token, widened to floats. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/tile.h"

#include <assert.h>

size_t cpu_embed_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program, (void)op;
    return 0;
}

void cpu_embed(const struct cpu_task *t) {
    const struct rt_rows *rows = &t->batch->rows;
    const void *table = tile_in(t, EMBED_TABLE); /* [vocab, hidden] */
    enum dtype dtype = tile_in_dtype(t, EMBED_TABLE);
    float *x = tile_out(t, 0); /* [T, hidden] */
    uint32_t vocab = tile_in_shape(t, EMBED_TABLE)[0], hidden = tile_in_shape(t, EMBED_TABLE)[1];
    uint32_t end = tile_row_end(t, rows->n_rows);
    for (uint32_t r = t->task->row0; r < end; r++) {
        int32_t token = rows->token[r];
        assert(token >= 0 && (uint32_t)token < vocab);
        const void *row = tile_weight_row(table, dtype, (uint64_t)token, hidden);
        for (uint32_t i = 0; i < hidden; i++)
            x[(size_t)r * hidden + i] = convert_load(dtype, row, i);
    }
}

/* cost.c - see cost.h. */
#include "plan/cost.h"
#include "base/checked.h"
#include "codegen/cuda_abi.h"
#include "graph/kv_row.h"

/* Bytes of weights that a worker without attention reads while few workers have attention. A worker
 * of an H200 reads them in 3 us. With 32 to 144 KB an H100 is as fast (bench/measurements.md,
 * "Placement"). */
static const uint64_t FEW_BYTES = 96 << 10;

/* Rates of one block: of bytes from L2 in products by tiles (41 a cycle of 1.75 GHz), and of the
 * projections that QKV_HEADS reads and writes (52 us for 2,048 rows of Qwen3-8B on 132 blocks).
 * Both on an H100 (bench/measurements.md, "Prompts"). */
static const double TILE_BYTES_PER_NS = 72, HEADS_BYTES_PER_NS = 15;

static uint32_t items_of(const struct cost_attention *a) {
    return a->n_rows * a->spec->n_kv_heads;
}

double cost_attention_whole(const struct cost_attention *a) {
    const uint32_t rounds = CEIL_DIV(items_of(a), a->device->n_workers);
    return a->device->piece_ns * a->pieces * rounds;
}

/* Two more hand-overs: from the pieces to the task that merges them, and from the merge to the next
 * operator. With a single row, a model whose layers do not fit the rings hides one of them: weights
 * stream meanwhile. A model with experts does not, because attention decides which weights are
 * next. */
double cost_attention_pieces(const struct cost_attention *a) {
    const struct device *d = a->device;
    const bool hidden =
        a->n_rows == 1 && a->spec->experts.n == 0 && !device_holds_layer(d, a->spec);
    const double share = (double)items_of(a) * a->pieces / d->n_workers;
    return d->piece_ns * share + d->hand_over_ns * (hidden ? 1 : 2);
}

double cost_attention_heads(const struct cost_attention *a) {
    return a->device->hand_over_ns;
}

double cost_weights(const struct device *d, uint64_t bytes) {
    if (d->bytes_per_ns <= 0) return -1;
    return (double)bytes / (d->bytes_per_ns * d->n_workers);
}

double cost_operator(const struct cost_attention *a, enum op_kind kind, uint64_t bytes) {
    const struct device *d = a->device;
    if (bytes > 0) {
        const double ns = cost_weights(d, bytes);
        return ns < 0 ? ns : ns + d->hand_over_ns;
    }
    switch (kind) {
    case OP_ATTENTION:
    case OP_ATTENTION_WHOLE: return cost_attention_whole(a) + d->hand_over_ns;
    case OP_ATTENTION_SPLIT:
    case OP_ATTENTION_STEP:
        return d->piece_ns * items_of(a) * a->pieces / d->n_workers + d->hand_over_ns;
    default: return d->hand_over_ns;
    }
}

bool cost_is_of_few(const struct device *d, uint32_t slices) {
    return slices <= d->n_workers / 2;
}

/* Assumes contexts of a quarter of the longest. */
uint64_t cost_slice_bytes(const struct device *d, const struct kgraph *k, enum dtype kv_dtype,
                          uint32_t slices) {
    const struct kv_row row = spec_kv_row(&k->spec, kv_dtype);
    const uint64_t quarter = (uint64_t)k->n_rows * k->context * kv_position_bytes(&row) / 4;
    return quarter / slices + (cost_is_of_few(d, slices) ? FEW_BYTES : 0);
}

uint64_t cost_tile_rows(uint32_t token_rows, uint32_t weight_rows, uint32_t share_rows) {
    const uint32_t across = CEIL_DIV(token_rows, (uint32_t)PACK_TILE), half = PACK_TILE / 2;
    const uint32_t tokens = across > 1 ? CEIL_DIV(token_rows, half) * half : token_rows;
    uint32_t halves = 2 * CEIL_DIV(weight_rows, (uint32_t)PACK_TILE);
    if (token_rows > PACK_NARROW && halves > 2) halves = CEIL_DIV(weight_rows, half);
    return (uint64_t)halves * tokens / 2 + (uint64_t)across * (weight_rows + 2ull * share_rows);
}

double cost_tile_ns(uint64_t rows, uint32_t columns) {
    return (double)rows * columns * 2 / TILE_BYTES_PER_NS;
}

double cost_heads_ns(const struct cost_attention *a) {
    const uint64_t columns = spec_projected(a->spec);
    const double bytes = (double)a->n_rows * (double)columns * 2 * sizeof(float);
    return a->device->hand_over_ns + bytes / a->device->n_workers / HEADS_BYTES_PER_NS;
}

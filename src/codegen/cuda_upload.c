/* cuda_upload.c - see cuda_upload.h. */
#include "codegen/cuda_upload.h"

#include "base/checked.h"
#include "base/map.h"

#include <pthread.h>
#include <string.h>

enum {
    BLOCK_THREADS = 256,  /* of qn_retile and qn_dummy: cuda_abi.h */
    GRID_BLOCKS = 1024,   /* a few per SM on every chip; the kernels stride */
    COPY_THREADS = 4,     /* one core copies slower than the bus takes */
    COPY_ALONE = 4 << 20, /* bytes below which starting threads does not pay */
};

uint64_t cuda_upload_bytes(void) {
    return 2 * (uint64_t)CUDA_UPLOAD_CHUNK;
}

static int take_slot(struct diag *d, struct cuda_upload *u, int i, bool files) {
    CU(d, u->api, cuMemAlloc_v2, &u->stage[i], CUDA_UPLOAD_CHUNK);
    CU(d, u->api, cuEventCreate, &u->idle[i], CU_EVENT_BLOCKING_SYNC);
    CU(d, u->api, cuEventRecord, u->idle[i], u->stream);
    if (files) CU(d, u->api, cuMemHostAlloc, &u->pinned[i], CUDA_UPLOAD_CHUNK, 0);
    return QN_OK;
}

int cuda_upload_open(struct diag *d, const struct cuda_api *api, cu_module module, cu_stream stream,
                     cu_pointer weights, bool files, struct cuda_upload *u) {
    *u = (struct cuda_upload){.api = api, .stream = stream, .weights = weights};
    CU(d, api, cuModuleGetFunction, &u->retile, module, "qn_retile");
    CU(d, api, cuModuleGetFunction, &u->dummy, module, "qn_dummy");
    for (int i = 0; i < 2; i++) TRY(take_slot(d, u, i, files));
    return QN_OK;
}

void cuda_upload_close(struct cuda_upload *u) {
    if (u->api == NULL) return;
    u->api->cuStreamSynchronize(u->stream);
    for (int i = 0; i < 2; i++) {
        if (u->idle[i] != NULL) u->api->cuEventDestroy_v2(u->idle[i]);
        if (u->stage[i] != 0) u->api->cuMemFree_v2(u->stage[i]);
        if (u->pinned[i] != NULL) u->api->cuMemFreeHost(u->pinned[i]);
    }
    *u = (struct cuda_upload){0};
}

/* ---- host copy ---- */

struct copy {
    char *to;
    const char *from;
    size_t n;
};

static void *copy_part(void *part) {
    struct copy *c = part;
    memcpy(c->to, c->from, c->n);
    return NULL;
}

/* memcpy by a few threads; a thread that cannot be started leaves its part to this one. */
static void copy_wide(void *to, const void *from, size_t n) {
    struct copy parts[COPY_THREADS];
    pthread_t threads[COPY_THREADS];
    bool started[COPY_THREADS] = {false};
    int n_parts = n >= COPY_ALONE ? COPY_THREADS : 1;
    for (int i = 0; i < n_parts; i++) {
        size_t first = n / (size_t)n_parts * (size_t)i;
        size_t end = i + 1 == n_parts ? n : n / (size_t)n_parts * (size_t)(i + 1);
        parts[i] = (struct copy){(char *)to + first, (const char *)from + first, end - first};
        if (i > 0) started[i] = pthread_create(&threads[i], NULL, copy_part, &parts[i]) == 0;
    }
    for (int i = 0; i < n_parts; i++)
        if (!started[i]) copy_part(&parts[i]);
    for (int i = 0; i < n_parts; i++)
        if (started[i]) pthread_join(threads[i], NULL);
}

/* ---- device side ---- */

static int launch(struct diag *d, const struct cuda_upload *u, cu_function f, void *parameter) {
    void *arguments[] = {parameter};
    CU(d, u->api, cuLaunchKernel, f, GRID_BLOCKS, 1, 1, BLOCK_THREADS, 1, 1, 0, u->stream,
       arguments, NULL);
    return QN_OK;
}

/* Re-tiles the rows in the current slot's stage, then switches to the other slot. */
static int retile(struct diag *d, struct cuda_upload *u, const struct cuda_upload_weight *w,
                  uint64_t first_row, uint64_t n_rows) {
    struct cuda_retile args = {
        .src = u->stage[u->slot],
        .weights = u->weights,
        .first_row = first_row,
        .n_rows = n_rows,
        .cols = w->cols,
        .src_dtype = w->src_dtype,
        .dst_dtype = w->dst_dtype,
        .at = w->part->at + w->tensor * w->part->step,
        .run = w->part->run,
        .stride = w->part->stride,
        .place = *w->place,
    };
    TRY(launch(d, u, u->retile, &args));
    CU(d, u->api, cuEventRecord, u->idle[u->slot], u->stream);
    u->slot ^= 1;
    return QN_OK;
}

/* Rows that fit into a chunk; at least one does, by SPEC_MAX_HIDDEN. */
static uint64_t chunk_rows(const struct cuda_upload_weight *w, uint64_t first_row) {
    uint64_t row_bytes = (uint64_t)w->cols * dtype_bytes(w->src_dtype);
    return MIN(w->rows - first_row, (uint64_t)CUDA_UPLOAD_CHUNK / row_bytes);
}

int cuda_upload_rows(struct diag *d, struct cuda_upload *u, const struct cuda_upload_weight *w,
                     const void *data) {
    uint64_t row_bytes = (uint64_t)w->cols * dtype_bytes(w->src_dtype), n;
    for (uint64_t row = 0; row < w->rows; row += n) {
        n = chunk_rows(w, row);
        CU(d, u->api, cuEventSynchronize, u->idle[u->slot]);
        copy_wide(u->pinned[u->slot], (const char *)data + row * row_bytes, n * row_bytes);
        CU(d, u->api, cuMemcpyHtoDAsync_v2, u->stage[u->slot], u->pinned[u->slot], n * row_bytes,
           u->stream);
        TRY(retile(d, u, w, row, n));
    }
    return QN_OK;
}

static bool ends_with(const char *text, const char *tail) {
    size_t n = strlen(text), m = strlen(tail);
    return n >= m && strcmp(text + n - m, tail) == 0;
}

int cuda_upload_dummy(struct diag *d, struct cuda_upload *u, const struct cuda_upload_weight *w,
                      const char *name) {
    uint64_t n;
    bool vector = w->place->k_tiles == 0;
    for (uint64_t row = 0; row < w->rows; row += n) {
        n = chunk_rows(w, row);
        struct cuda_dummy args = {
            .dst = u->stage[u->slot],
            .first = row * w->cols,
            .n = n * w->cols,
            .seed = hash_bytes(name, strlen(name), w->part->source.from),
            .mean = !vector || ends_with(name, ".bias") ? 0 : 1,
            .spread = vector ? 0 : 0.02 * 1.7320508075688772,
            .dtype = w->src_dtype,
        };
        TRY(launch(d, u, u->dummy, &args));
        TRY(retile(d, u, w, row, n));
    }
    return QN_OK;
}

int cuda_upload_finish(struct diag *d, struct cuda_upload *u) {
    CU(d, u->api, cuStreamSynchronize, u->stream);
    return QN_OK;
}

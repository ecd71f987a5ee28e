#include "model/weights.h"

#include "base/checked.h"
#include "base/map.h"
#include "model/convert.h"
#include "model/dummy_router.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    ALIGN = 64,
    MAX_THREADS = 64,
    /* Bytes per piece of work: large against the cost of claiming one, small against a model. */
    PIECE_BYTES = 4 << 20,
    DUMMY_LEVELS = 4096,
    PAGE = 4096,
};

/* One weight: its source and its place in memory. */
struct weight {
    const struct safetensors_tensor *source; /* NULL: dummy */
    const void *data;
    void *owned; /* NULL: in place */
    enum dtype source_dtype;
    uint64_t n; /* elements */
    uint64_t first_piece, n_pieces;
    atomic_ullong overflows;
};

struct weights {
    const struct safetensors *files;
    const struct weight_want *want; /* valid while loading only */
    struct weight *items;
    size_t n;
    void *memory; /* one block for all owned weights */
    uint64_t memory_bytes;
};

/* ---- planning: no memory is allocated before every size is known to be right ---- */

/* The tensor's rows and columns. */
static void tensor_shape(const struct weight_want *want, uint64_t shape[2]) {
    const bool whole = weight_source_is_whole(&want->source);
    shape[0] = whole ? want->rows : want->source.rows;
    shape[1] = whole ? want->cols : want->source.cols;
}

static const char *shape_text(const struct weight_want *want, char text[64]) {
    uint64_t shape[2];
    tensor_shape(want, shape);
    if (want->n_dims == 1)
        snprintf(text, 64, "[%llu]", (unsigned long long)shape[0]);
    else
        snprintf(text, 64, "[%llu, %llu]", (unsigned long long)shape[0],
                 (unsigned long long)shape[1]);
    return text;
}

static int check_want(struct diag *d, const struct weight_want *want, uint64_t *n) {
    uint64_t bytes;
    *n = want->rows;
    if (want->n_dims < 1 || want->n_dims > 2 || want->dtype > DTYPE_F16 ||
        want->zipf > want->rows || (want->zipf != 0 && want->rows > SPEC_MAX_EXPERTS))
        return fail(d, QN_EINVAL, "weight %s: want a float vector or matrix", want->name);
    if ((want->n_dims == 2 && !checked_mul(*n, want->cols, n)) || !checked_mul(*n, 4, &bytes))
        return fail(d, QN_EINVAL, "weight %s: too large", want->name);
    if (weight_source_is_whole(&want->source)) return QN_OK;
    if (want->rows > UINT32_MAX || want->cols > UINT32_MAX ||
        !weight_source_fits(&want->source, (uint32_t)want->rows,
                            want->n_dims == 2 ? (uint32_t)want->cols : 0))
        return fail(d, QN_EINVAL, "weight %s: its source is not within its tensor", want->name);
    return QN_OK;
}

int weights_find(struct diag *d, const struct safetensors *files, const struct weight_want *want,
                 const struct safetensors_tensor **out, enum dtype *dtype) {
    char have[200], wanted[64];
    TRY(safetensors_need(d, files, want->name, out, dtype));
    const struct safetensors_tensor *t = *out;
    uint64_t shape[2];
    tensor_shape(want, shape);
    bool same = t->n_dims == want->n_dims && t->shape[0] == shape[0] &&
                (want->n_dims == 1 || t->shape[1] == shape[1]);
    if (!same)
        return fail(d, QN_ESHAPE, "%s: tensor %s: want shape %s, have %s",
                    safetensors_path(files, t), want->name, shape_text(want, wanted),
                    safetensors_shape_text(t, have, sizeof have));
    return QN_OK;
}

/* Whether a weight lies directly before or after another one. */
static bool is_joined(const struct weights *w, size_t i) {
    return w->want[i].follows || (i + 1 < w->n && w->want[i + 1].follows);
}

static int plan(struct diag *d, struct weights *w, const struct weights_options *options) {
    uint64_t offset = 0, n_pieces = 0;
    for (size_t i = 0; i < w->n; i++) {
        const struct weight_want *want = &w->want[i];
        struct weight *item = &w->items[i];
        TRY(check_want(d, want, &item->n));
        if (w->files == NULL && options->others_absent && want->zipf == 0) item->n = 0;
        if (w->files != NULL)
            TRY(weights_find(d, w->files, want, &item->source, &item->source_dtype));
        uint64_t size = dtype_bytes(want->dtype), bytes = item->n * size;
        item->first_piece = n_pieces;
        item->n_pieces = bytes / PIECE_BYTES + 1;
        n_pieces += item->n_pieces;
        if (item->source != NULL && item->source_dtype == want->dtype &&
            (uintptr_t)item->source->data % size == 0 && !is_joined(w, i) &&
            weight_source_is_whole(&want->source)) {
            item->data = item->source->data;
            continue;
        }
        if (!want->follows) offset = align_up(offset, ALIGN);
        if (!checked_add(offset, bytes, &offset) || offset > INT64_MAX)
            return fail(d, QN_ENOMEM, "the weights need more memory than there is");
    }
    w->memory_bytes = offset;
    return QN_OK;
}

/* One block for everything owned; huge pages make both filling and reading faster. */
static int take_memory(struct diag *d, struct weights *w) {
    if (w->memory_bytes == 0) return QN_OK;
    void *p =
        mmap(NULL, w->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return fail_nomem(d, w->memory_bytes, "the weights");
    madvise(p, w->memory_bytes, MADV_HUGEPAGE); /* advice: its failure changes nothing */
    w->memory = p;
    uint64_t offset = 0;
    for (size_t i = 0; i < w->n; i++) {
        struct weight *item = &w->items[i];
        if (item->data != NULL) continue;
        if (!w->want[i].follows) offset = align_up(offset, ALIGN);
        item->data = item->owned = (char *)p + offset;
        offset += item->n * dtype_bytes(w->want[i].dtype);
    }
    return QN_OK;
}

/* ---- dummy values ---- */

/* Element e of a matrix is level[12 bits of mix(seed + e / 4)]: any piece can be made alone, and
 * all dtypes get the same numbers, rounded. */
struct levels {
    float f32[DUMMY_LEVELS];
    uint16_t narrow[DUMMY_LEVELS]; /* in the wanted dtype */
};

static void make_levels(struct levels *l, enum dtype dtype) {
    const double spread = 0.02 * 1.7320508075688772; /* uniform on +-spread: deviation 0.02 */
    for (int i = 0; i < DUMMY_LEVELS; i++)
        l->f32[i] = (float)(spread * ((i + 0.5) / (DUMMY_LEVELS / 2.0) - 1));
    if (dtype != DTYPE_F32) convert_array(dtype, l->narrow, DTYPE_F32, l->f32, DUMMY_LEVELS);
}

/* splitmix64's output function (Steele, Lea, Flood 2014). */
static inline uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static inline uint64_t draw(uint64_t seed, uint64_t e) {
    return mix(seed + (e / 4) * 0x9e3779b97f4a7c15ull);
}

/* Elements [first, end) of a matrix; first is a multiple of 4. */
static void fill_matrix(const struct levels *l, enum dtype dtype, uint64_t seed, uint64_t first,
                        uint64_t end, void *out) {
    float *wide = out;
    uint16_t *narrow = out;
    for (uint64_t e = first; e < end; e += 4) {
        uint64_t bits = draw(seed, e), n = MIN(end - e, (uint64_t)4);
        for (uint64_t i = 0; i < n; i++, bits >>= 16) {
            if (dtype == DTYPE_F32)
                wide[e + i] = l->f32[bits & (DUMMY_LEVELS - 1)];
            else
                narrow[e + i] = l->narrow[bits & (DUMMY_LEVELS - 1)];
        }
    }
}

/* Scales elements [first, end) of a router so that it prefers some experts. */
static void skew_router(const struct weight_want *want, uint64_t first, uint64_t end, void *out) {
    float scale[SPEC_MAX_EXPERTS], value;
    const uint64_t size = dtype_bytes(want->dtype);
    dummy_router_scales((uint32_t)want->rows, want->zipf, scale);
    for (uint64_t e = first; e < end; e++) {
        char *at = (char *)out + e * size;
        convert_array(DTYPE_F32, &value, want->dtype, at, 1);
        value *= scale[e / want->cols];
        convert_array(want->dtype, at, DTYPE_F32, &value, 1);
    }
}

static void fill_vector(const struct weight_want *want, uint64_t first, uint64_t end, void *out) {
    size_t n = strlen(want->name);
    float value = n >= 5 && strcmp(want->name + n - 5, ".bias") == 0 ? 0 : 1;
    uint64_t size = dtype_bytes(want->dtype);
    for (uint64_t e = first; e < end; e++)
        convert_array(want->dtype, (char *)out + e * size, DTYPE_F32, &value, 1);
}

/* ---- the work, in pieces that any thread may claim ---- */

struct loader {
    struct weights *w;
    const struct weights_options *options;
    uint64_t n_pieces, total_bytes;
    atomic_ullong next_piece, done_bytes;
    struct levels levels[3]; /* by dtype */
};

/* Reads the pages of a map into memory; mapfile.h's guard covers a file that has shrunk. */
static void touch(const unsigned char *data, uint64_t bytes) {
    uintptr_t first = (uintptr_t)data & ~(uintptr_t)(PAGE - 1);
    if (madvise((void *)first, (uintptr_t)data + bytes - first, MADV_POPULATE_READ) == 0) return;
    for (uint64_t at = 0; at < bytes; at += PAGE)
        (void)*(const volatile unsigned char *)(data + at);
}

/* Makes elements [first, end) of a weight that is some rows of its tensor. */
static void gather(const struct weight_want *want, struct weight *item, uint64_t first,
                   uint64_t end) {
    const struct weight_source *s = &want->source;
    const uint64_t cols = want->n_dims == 2 ? want->cols : 1, pitch = MAX(s->cols, 1u);
    const uint64_t size = dtype_bytes(want->dtype), source_size = dtype_bytes(item->source_dtype);
    for (uint64_t e = first; e < end;) {
        const uint64_t row = e / cols, col = e % cols;
        const uint64_t n = s->transposed ? 1 : MIN(end - e, cols - col);
        const uint64_t at = s->transposed ? (weight_source_row(s, row) + col) * pitch + row % s->run
                                          : weight_source_row(s, row) * pitch + col;
        item->overflows +=
            convert_array(want->dtype, (char *)item->owned + e * size, item->source_dtype,
                          item->source->data + at * source_size, n);
        e += n;
    }
}

static void do_piece(struct loader *l, size_t i, uint64_t piece) {
    struct weight *item = &l->w->items[i];
    const struct weight_want *want = &l->w->want[i];
    uint64_t size = dtype_bytes(want->dtype), step = PIECE_BYTES / size;
    uint64_t first = MIN(piece * step, item->n), end = MIN(first + step, item->n);
    if (first == end) return;
    if (item->owned == NULL) {
        if (!l->options->lazy)
            touch((const unsigned char *)item->data + first * size, (end - first) * size);
    } else if (item->source != NULL && !weight_source_is_whole(&want->source)) {
        gather(want, item, first, end);
    } else if (item->source != NULL) {
        item->overflows += convert_array(
            want->dtype, (char *)item->owned + first * size, item->source_dtype,
            item->source->data + first * dtype_bytes(item->source_dtype), end - first);
    } else if (want->n_dims == 1) {
        fill_vector(want, first, end, item->owned);
    } else {
        uint64_t seed = hash_bytes(want->name, strlen(want->name), want->source.from);
        fill_matrix(&l->levels[want->dtype], want->dtype, seed, first, end, item->owned);
        if (want->zipf != 0) skew_router(want, first, end, item->owned);
    }
    l->done_bytes += (end - first) * size;
}

/* The weight that a piece belongs to: the last one whose first piece is not after it. */
static size_t owner(const struct weights *w, uint64_t piece) {
    size_t low = 0, high = w->n;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (w->items[mid].first_piece <= piece)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static bool take_piece(struct loader *l) {
    uint64_t piece = atomic_fetch_add(&l->next_piece, 1);
    if (piece >= l->n_pieces) return false;
    size_t i = owner(l->w, piece);
    do_piece(l, i, piece - l->w->items[i].first_piece);
    return true;
}

static void *helper(void *loader) {
    while (take_piece(loader)) {
    }
    return NULL;
}

static int thread_count(const struct weights_options *o, uint64_t n_pieces) {
    long n = o->n_threads > 0 ? o->n_threads : sysconf(_SC_NPROCESSORS_ONLN);
    n = MIN(MAX(n, 1L), (long)MAX_THREADS);
    return (int)MIN((uint64_t)n, MAX(n_pieces, (uint64_t)1));
}

/* All threads that could be started share the work; a failed start only makes it slower. */
static void run(struct loader *l) {
    pthread_t threads[MAX_THREADS];
    int n = thread_count(l->options, l->n_pieces), started = 0;
    for (int i = 1; i < n; i++)
        if (pthread_create(&threads[started], NULL, helper, l) == 0) started++;
    while (take_piece(l))
        if (l->options->progress != NULL && l->done_bytes < l->total_bytes)
            l->options->progress(l->options->user, l->done_bytes, l->total_bytes);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    if (l->options->progress != NULL)
        l->options->progress(l->options->user, l->total_bytes, l->total_bytes);
}

static int check_overflows(struct diag *d, const struct weights *w) {
    for (size_t i = 0; i < w->n; i++)
        if (w->items[i].overflows > 0)
            return fail(d, QN_EUNSUPPORTED,
                        "%s: tensor %s: %llu values are too large for float16; use --dtype "
                        "bfloat16 or float32",
                        safetensors_path(w->files, w->items[i].source), w->want[i].name,
                        (unsigned long long)w->items[i].overflows);
    return QN_OK;
}

/* Tells the kernel what will be read, before the threads read it page by page. */
static void read_ahead(const struct safetensors *files) {
    for (size_t i = 0; i < files->files.n; i++) {
        const struct mapfile *f = &files->files.items[i].map;
        if (f->mapped) madvise((void *)f->data, f->bytes, MADV_WILLNEED);
    }
}

static int load(struct diag *d, struct weights *w, const struct weights_options *options) {
    TRY(plan(d, w, options));
    TRY(take_memory(d, w));
    struct loader *l = calloc(1, sizeof *l);
    if (l == NULL) return fail_nomem(d, sizeof *l, "a weight loader");
    l->w = w;
    l->options = options;
    for (size_t i = 0; i < w->n; i++) {
        l->n_pieces += w->items[i].n_pieces;
        l->total_bytes += w->items[i].n * dtype_bytes(w->want[i].dtype);
    }
    if (w->files == NULL)
        for (int dtype = 0; dtype < 3; dtype++) make_levels(&l->levels[dtype], (enum dtype)dtype);
    else if (!options->lazy)
        read_ahead(w->files);
    run(l);
    free(l);
    TRY(check_overflows(d, w));
    if (weights_torn(w))
        return fail(d, QN_EIO, "%s: a file of the model shrank while it was read", w->files->path);
    return QN_OK;
}

int weights_load(struct diag *d, const struct safetensors *files, const struct weight_want *want,
                 size_t n, const struct weights_options *options, struct weights **out) {
    static const struct weights_options none;
    struct weights *w = *out = calloc(1, sizeof *w);
    if (w == NULL) return fail_nomem(d, sizeof *w, "weights");
    *w = (struct weights){.files = files, .want = want, .n = n};
    w->items = calloc(n + 1, sizeof *w->items);
    int rc = w->items == NULL ? fail_nomem(d, n * sizeof *w->items, "weights")
                              : load(d, w, options != NULL ? options : &none);
    w->want = NULL;
    if (rc != QN_OK) {
        weights_free(w);
        *out = NULL;
    }
    return rc;
}

void weights_free(struct weights *w) {
    if (w == NULL) return;
    if (w->memory != NULL) munmap(w->memory, w->memory_bytes);
    free(w->items);
    free(w);
}

const void *weights_at(const struct weights *w, size_t i) {
    return w->items[i].n != 0 ? w->items[i].data : NULL;
}

bool weights_torn(const struct weights *w) {
    return w->files != NULL && safetensors_torn(w->files);
}

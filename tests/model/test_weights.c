/* Weights: in place, converted, dummy; and the conversions they stand on. */
#include "base/checked.h"
#include "model/convert.h"
#include "model/dummy_router.h"
#include "model/weights.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#undef fail

#include "model/model_util.h"

/* A file with one tensor per dtype: a BF16 [2,3], an F16 [2,3], an F32 [3], a bias F32 [2]. */
static const char header[] = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                             "\"h\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[12,24]},"
                             "\"f\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[24,36]},"
                             "\"i\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
                             "\"big\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[36,40]}}";

static const float f32_values[3] = {1.0f, -2.5f, 0.1f};
static const uint16_t bf16_values[6] = {0x3f80, 0xc020, 0x3dcd, 0x0000, 0x7f80, 0x4049};
static const uint16_t f16_values[6] = {0x3c00, 0xc100, 0x2e66, 0x0001, 0x7c00, 0x4248};

/* The file with `pad` spaces at the header's end: 0 to 7, to shift the data. */
static size_t make_file(unsigned char *out, size_t pad) {
    const float big = 1e6f;
    size_t n = sizeof header - 1 + pad;
    memset(out, 0, 8);
    out[0] = (unsigned char)n;
    out[1] = (unsigned char)(n >> 8);
    memcpy(out + 8, header, sizeof header - 1);
    memset(out + 8 + sizeof header - 1, ' ', pad);
    memcpy(out + 8 + n, bf16_values, 12);
    memcpy(out + 8 + n + 12, f16_values, 12);
    memcpy(out + 8 + n + 24, f32_values, 12);
    memcpy(out + 8 + n + 36, &big, 4);
    return 8 + n + 40;
}

struct fixture {
    _Alignas(64) unsigned char bytes[1024];
    struct safetensors *st;
};

static void open_fixture(struct fixture *f, size_t pad) {
    struct diag d = {0};
    size_t n = make_file(f->bytes, pad);
    if (safetensors_parse(&d, "x.safetensors", f->bytes, n, &f->st) != QN_OK)
        UTIL_FAIL("%s", d.message);
}

static size_t aligned_pad(void) {
    return (8 - (sizeof header - 1) % 8) % 8;
}

static void same_dtype_stays_in_place(void **state) {
    (void)state;
    struct fixture f;
    struct diag d = {0};
    struct weights *w;
    open_fixture(&f, aligned_pad());
    const struct weight_want want[] = {{"b", DTYPE_BF16, 2, 2, 3, false, 0, {0}},
                                       {"f", DTYPE_F32, 1, 3, 0, false, 0, {0}}};
    assert_int_equal(weights_load(&d, f.st, want, 2, NULL, &w), QN_OK);
    assert_ptr_equal(weights_at(w, 0), safetensors_find(f.st, "b")->data);
    assert_ptr_equal(weights_at(w, 1), safetensors_find(f.st, "f")->data);
    assert_false(weights_torn(w));
    weights_free(w);
    safetensors_close(f.st);
}

static void unaligned_data_is_copied(void **state) {
    (void)state;
    struct fixture f;
    struct diag d = {0};
    struct weights *w;
    open_fixture(&f, aligned_pad() + 1);
    const struct weight_want want[] = {{"f", DTYPE_F32, 1, 3, 0, false, 0, {0}},
                                       {"b", DTYPE_BF16, 2, 2, 3, false, 0, {0}}};
    assert_int_equal(weights_load(&d, f.st, want, 2, NULL, &w), QN_OK);
    assert_int_equal((uintptr_t)weights_at(w, 0) % 64, 0);
    assert_int_equal((uintptr_t)weights_at(w, 1) % 64, 0);
    assert_memory_equal(weights_at(w, 0), f32_values, 12);
    assert_memory_equal(weights_at(w, 1), bf16_values, 12);
    weights_free(w);
    safetensors_close(f.st);
}

static void other_dtypes_are_converted(void **state) {
    (void)state;
    struct fixture f;
    struct diag d = {0};
    struct weights *w;
    open_fixture(&f, 0);
    const struct weight_want want[] = {{"b", DTYPE_F32, 2, 2, 3, false, 0, {0}},
                                       {"h", DTYPE_F32, 2, 2, 3, false, 0, {0}},
                                       {"h", DTYPE_BF16, 2, 2, 3, false, 0, {0}},
                                       {"f", DTYPE_F16, 1, 3, 0, false, 0, {0}}};
    assert_int_equal(weights_load(&d, f.st, want, 4, NULL, &w), QN_OK);
    const float *b = weights_at(w, 0), *h = weights_at(w, 1);
    const uint16_t *hb = weights_at(w, 2), *fh = weights_at(w, 3);
    const float want_b[6] = {1, -2.5f, 0.10009765625f, 0, INFINITY, 3.140625f};
    const float want_h[6] = {1, -2.5f, 0.0999755859375f, 0x1p-24f, INFINITY, 3.140625f};
    const uint16_t want_hb[6] = {0x3f80, 0xc020, 0x3dcd, 0x3380, 0x7f80, 0x4049};
    const uint16_t want_fh[3] = {0x3c00, 0xc100, 0x2e66};
    assert_memory_equal(b, want_b, sizeof want_b);
    assert_memory_equal(h, want_h, sizeof want_h);
    assert_memory_equal(hb, want_hb, sizeof want_hb);
    assert_memory_equal(fh, want_fh, sizeof want_fh);
    weights_free(w);
    safetensors_close(f.st);
}

static void bad_wants_are_named(void **state) {
    (void)state;
    static const struct {
        struct weight_want want;
        int rc;
        const char *message;
    } cases[] = {
        {{"none", DTYPE_F32, 1, 3, 0, false, 0, {0}},
         QN_EFORMAT,
         "x.safetensors: tensor none is missing"},
        {{"b", DTYPE_BF16, 2, 3, 2, false, 0, {0}},
         QN_ESHAPE,
         "x.safetensors: tensor b: want shape [3, 2], have [2, 3]"},
        {{"b", DTYPE_BF16, 1, 6, 0, false, 0, {0}},
         QN_ESHAPE,
         "x.safetensors: tensor b: want shape [6], have [2, 3]"},
        {{"f", DTYPE_F32, 2, 3, 1, false, 0, {0}},
         QN_ESHAPE,
         "x.safetensors: tensor f: want shape [3, 1], have [3]"},
        {{"i", DTYPE_F32, 1, 1, 0, false, 0, {0}},
         QN_EUNSUPPORTED,
         "x.safetensors: tensor i: want BF16, F16 or F32, have I64"},
        {{"big", DTYPE_F16, 1, 1, 0, false, 0, {0}},
         QN_EUNSUPPORTED,
         "x.safetensors: tensor big: 1 values are too large for float16; use --dtype bfloat16 or "
         "float32"},
        {{"b", DTYPE_I32, 2, 2, 3, false, 0, {0}},
         QN_EINVAL,
         "weight b: want a float vector or matrix"},
        {{"b", DTYPE_BF16, 2, UINT64_MAX, 3, false, 0, {0}}, QN_EINVAL, "weight b: too large"},
    };
    struct fixture f;
    open_fixture(&f, 0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct diag d = {0};
        struct weights *w;
        assert_int_equal(weights_load(&d, f.st, &cases[i].want, 1, NULL, &w), cases[i].rc);
        assert_string_equal(d.message, cases[i].message);
        assert_null(w);
    }
    safetensors_close(f.st);
}

/* ---- dummy weights ---- */

struct seen {
    uint64_t last, total;
    int calls;
    bool backwards;
};

static void on_progress(void *user, uint64_t done, uint64_t total) {
    struct seen *s = user;
    s->backwards |= done < s->last;
    s->last = done;
    s->total = total;
    s->calls++;
}

static void dummy_weights_look_like_weights(void **state) {
    (void)state;
    enum { ROWS = 1501, COLS = 2003 };
    const struct weight_want want[] = {
        {"a.weight", DTYPE_F32, 2, ROWS, COLS, false, 0, {0}},
        {"a.weight", DTYPE_BF16, 2, ROWS, COLS, false, 0, {0}},
        {"b.weight", DTYPE_F32, 2, ROWS, COLS, false, 0, {0}},
        {"x.norm.weight", DTYPE_F32, 1, 70, 0, false, 0, {0}},
        {"x.q_proj.bias", DTYPE_F32, 1, 70, 0, false, 0, {0}},
    };
    struct diag d = {0};
    struct seen seen = {0};
    struct weights *one, *many;
    struct weights_options o = {.n_threads = 1};
    assert_int_equal(weights_load(&d, NULL, want, 5, &o, &one), QN_OK);
    o = (struct weights_options){.n_threads = 3, .progress = on_progress, .user = &seen};
    assert_int_equal(weights_load(&d, NULL, want, 5, &o, &many), QN_OK);
    const size_t n = (size_t)ROWS * COLS;
    for (size_t i = 0; i < 5; i++) /* the number of threads changes nothing */
        assert_memory_equal(weights_at(one, i), weights_at(many, i),
                            (size_t)(want[i].n_dims == 2 ? n : 70) * dtype_bytes(want[i].dtype));
    const float *a = weights_at(one, 0), *b = weights_at(one, 2);
    const uint16_t *narrow = weights_at(one, 1);
    double sum = 0, squares = 0, product = 0, neighbours = 0;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(narrow[i], convert_to_bf16(a[i]));
        sum += a[i];
        squares += (double)a[i] * a[i];
        product += (double)a[i] * b[i];
        if (i > 0) neighbours += (double)a[i] * a[i - 1];
    }
    assert_true(fabs(sum / n) < 1e-4);
    assert_true(fabs(sqrt(squares / n) - 0.02) < 1e-4);
    assert_true(fabs(product / squares) < 0.01); /* other names, other numbers */
    assert_true(fabs(neighbours / squares) < 0.01);
    for (int i = 0; i < 70; i++) {
        assert_true(((const float *)weights_at(one, 3))[i] == 1);
        assert_true(((const float *)weights_at(one, 4))[i] == 0);
    }
    assert_false(seen.backwards);
    assert_true(seen.calls >= 1);
    assert_int_equal(seen.last, seen.total);
    assert_int_equal(seen.total, n * 10 + 2 * 70 * 4);
    weights_free(one);
    weights_free(many);
}

/* A large list of mapped and converted weights from a real file, with several threads. */
static void large_files_are_mapped(void **state) {
    (void)state;
    enum { ROWS = 3001, COLS = 1009 };
    const size_t n = (size_t)ROWS * COLS;
    char dir[64], text[300], path[100];
    util_make_dir(dir);
    int len = snprintf(text, sizeof text,
                       "{\"w\":{\"dtype\":\"BF16\",\"shape\":[%d,%d],\"data_offsets\":[0,%zu]}}",
                       ROWS, COLS, n * 2);
    while (len % 8 != 0) text[len++] = ' ';
    unsigned char *file = calloc(1, 8 + (size_t)len + n * 2);
    file[0] = (unsigned char)len;
    memcpy(file + 8, text, (size_t)len);
    for (size_t i = 0; i < n; i++) {
        uint16_t v = (uint16_t)(i * 7919 % 0x7f00);
        memcpy(file + 8 + len + i * 2, &v, 2);
    }
    util_write(dir, "model.safetensors", file, 8 + (size_t)len + n * 2);
    struct diag d = {0};
    struct safetensors *st;
    struct weights *w;
    if (safetensors_open(&d, dir, &st) != QN_OK) UTIL_FAIL("%s", d.message);
    const struct weight_want want[] = {{"w", DTYPE_BF16, 2, ROWS, COLS, false, 0, {0}},
                                       {"w", DTYPE_F32, 2, ROWS, COLS, false, 0, {0}}};
    struct weights_options o = {.n_threads = 4};
    assert_int_equal(weights_load(&d, st, want, 2, &o, &w), QN_OK);
    assert_memory_equal(weights_at(w, 0), file + 8 + len, n * 2);
    const float *wide = weights_at(w, 1);
    for (size_t i = 0; i < n; i++) {
        float v = convert_from_bf16((uint16_t)(i * 7919 % 0x7f00));
        if (memcmp(&v, &wide[i], 4) != 0) UTIL_FAIL("element %zu", i);
    }
    /* A file that loses its end under the map is noticed, not fatal. */
    assert_false(weights_torn(w));
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(truncate(path, 8192), 0);
    const volatile uint16_t *in_place = weights_at(w, 0);
    assert_int_equal(in_place[n - 1], 0);
    assert_true(weights_torn(w));
    weights_free(w);
    safetensors_close(st);
    free(file);
    util_remove_dir(dir, (const char *[]){"model.safetensors", NULL});
}

/* ---- parts of tensors ---- */

enum { TENSOR_ROWS = 12, TENSOR_COLS = 5, N_ELEMENTS = TENSOR_ROWS * TENSOR_COLS };

/* A file with w[12,5], whose element [r,c] is 10 r + c, and a vector v[12] of 0, 1, 2 ... */
static void open_numbered(struct fixture *f) {
    static const char text[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[12,5],\"data_offsets\":[0,240]},"
        "\"v\":{\"dtype\":\"F32\",\"shape\":[12],\"data_offsets\":[240,288]}}";
    const size_t n = sizeof text - 1;
    struct diag d = {0};
    memset(f->bytes, 0, 8);
    f->bytes[0] = (unsigned char)n;
    memcpy(f->bytes + 8, text, n);
    for (int i = 0; i < N_ELEMENTS + TENSOR_ROWS; i++) {
        const float v =
            (float)(i < N_ELEMENTS ? i / TENSOR_COLS * 10 + i % TENSOR_COLS : i - N_ELEMENTS);
        memcpy(f->bytes + 8 + n + (size_t)i * 4, &v, 4);
    }
    if (safetensors_parse(&d, "x.safetensors", f->bytes, 8 + n + (N_ELEMENTS + TENSOR_ROWS) * 4,
                          &f->st) != QN_OK)
        UTIL_FAIL("%s", d.message);
}

/* Rows [first, first + 2) of each 4, as they are, transposed, and with the last 4 of each 6 as
 * halves. */
static void parts_of_tensors_are_gathered(void **state) {
    (void)state;
    static const struct weight_want want[] = {
        {"w", DTYPE_F32, 2, 6, 5, false, 0, {12, 5, 1, 2, 4, 0, 0}},
        {"w", DTYPE_F32, 2, 15, 2, false, 0, {12, 5, 2, 5, 4, 0, 1}},
        {"w", DTYPE_BF16, 2, 12, 5, false, 0, {12, 5, 0, 6, 6, 4, 0}},
        {"v", DTYPE_F32, 1, 12, 0, false, 0, {12, 0, 0, 6, 6, 4, 0}},
        {"w", DTYPE_F32, 2, 3, 4, false, 0, {12, 5, 8, 3, 0, 0, 1}},
    };
    static const int rows[6] = {1, 2, 5, 6, 9, 10};
    static const int halves[12] = {0, 1, 2, 4, 3, 5, 6, 7, 8, 10, 9, 11};
    struct fixture f;
    struct diag d = {0};
    struct weights *w;
    open_numbered(&f);
    if (weights_load(&d, f.st, want, COUNT_OF(want), NULL, &w) != QN_OK) UTIL_FAIL("%s", d.message);
    const float *some = weights_at(w, 0), *turned = weights_at(w, 1), *last = weights_at(w, 4);
    for (int r = 0; r < 6; r++)
        for (int c = 0; c < 5; c++) assert_true(some[r * 5 + c] == (float)(rows[r] * 10 + c));
    for (int r = 0; r < 15; r++)
        for (int c = 0; c < 2; c++)
            assert_true(turned[r * 2 + c] == (float)((2 + r / 5 * 4 + c) * 10 + r % 5));
    for (int r = 0; r < 12; r++) {
        assert_true(((const float *)weights_at(w, 3))[r] == (float)halves[r]);
        for (int c = 0; c < 5; c++)
            assert_int_equal(((const uint16_t *)weights_at(w, 2))[r * 5 + c],
                             convert_to_bf16((float)(halves[r] * 10 + c)));
    }
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 4; c++) assert_true(last[r * 4 + c] == (float)((8 + c) * 10 + r));
    weights_free(w);
    safetensors_close(f.st);
}

/* A part that is not within its tensor is refused before anything is read, as is a tensor of
 * another shape. */
static void parts_beyond_tensors_are_refused(void **state) {
    (void)state;
    static const struct {
        struct weight_want want;
        int rc;
    } cases[] = {
        {{"w", DTYPE_F32, 2, 6, 5, false, 0, {12, 5, 3, 2, 4, 0, 0}}, QN_EINVAL},
        {{"w", DTYPE_F32, 2, 6, 4, false, 0, {12, 5, 1, 2, 4, 0, 0}}, QN_EINVAL},
        {{"w", DTYPE_F32, 2, 5, 5, false, 0, {12, 5, 1, 2, 4, 0, 0}}, QN_EINVAL}, /* half a run */
        {{"w", DTYPE_F32, 2, 12, 5, false, 0, {12, 5, 0, 6, 6, 3, 0}}, QN_EINVAL},
        {{"w", DTYPE_F32, 2, 12, 5, false, 0, {12, 5, 0, 6, 6, 8, 0}}, QN_EINVAL},
        {{"w", DTYPE_F32, 2, 15, 3, false, 0, {12, 5, 2, 5, 4, 0, 1}}, QN_EINVAL},
        {{"w", DTYPE_F32, 2, 18, 2, false, 0, {12, 5, 2, 6, 4, 0, 1}}, QN_EINVAL},
        {{"w", DTYPE_F32, 2, 6, 5, false, 0, {12, 5, UINT32_MAX, 2, UINT32_MAX, 0, 0}}, QN_EINVAL},
        {{"v", DTYPE_F32, 1, 6, 0, false, 0, {12, 0, 7, 6, 6, 0, 0}}, QN_EINVAL},
        {{"v", DTYPE_F32, 1, 6, 0, false, 0, {12, 0, 0, 6, 6, 0, 1}}, QN_EINVAL},
        {{"w", DTYPE_F32, 2, 6, 5, false, 0, {13, 5, 1, 2, 4, 0, 0}}, QN_ESHAPE},
    };
    struct fixture f;
    open_numbered(&f);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct diag d = {0};
        struct weights *w;
        if (weights_load(&d, f.st, &cases[i].want, 1, NULL, &w) != cases[i].rc)
            UTIL_FAIL("case %zu: %s", i, d.message);
        weights_free(w);
    }
    safetensors_close(f.st);
}

/* ---- conversions ---- */

/* What a float16 means, by its definition. */
static double f16_value(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double v = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    return bits & 0x8000 ? -v : v;
}

static void f16_widens_exactly(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = convert_from_f16((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            assert_true((h & 1023) != 0 ? isnan(f) : isinf(f));
            assert_true(isnan(f) || (signbit(f) != 0) == (h >= 0x8000));
            continue;
        }
        assert_true((double)f == f16_value((uint16_t)h));
        assert_true((signbit(f) != 0) == (h >= 0x8000));
        assert_int_equal(convert_to_f16(f), h);
    }
    assert_true(isnan(convert_from_f16(convert_to_f16(NAN))));
}

/* Halfway between two neighbours goes to the even one, a hair beside it to the nearer one. */
static void f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double low = f16_value((uint16_t)h);
        double high = h + 1 == 0x7c00 ? 65536 : f16_value((uint16_t)(h + 1));
        float middle = (float)((low + high) / 2);
        uint32_t even = h % 2 == 0 ? h : h + 1;
        assert_int_equal(convert_to_f16(middle), even);
        assert_int_equal(convert_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(convert_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(convert_to_f16(-middle), even | 0x8000);
    }
    assert_int_equal(convert_to_f16(1e30f), 0x7c00);
    assert_int_equal(convert_to_f16(0x1p-26f), 0);
    assert_int_equal(convert_to_f16(0x1p-149f), 0);
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7f80; h++) {
        uint32_t bits = h << 16 | 0x8000;
        float middle;
        memcpy(&middle, &bits, 4);
        assert_int_equal(convert_to_bf16(convert_from_bf16((uint16_t)h)), h);
        assert_int_equal(convert_to_bf16(middle), h % 2 == 0 ? h : h + 1);
        assert_int_equal(convert_to_bf16(nextafterf(middle, 0)), h);
        assert_int_equal(convert_to_bf16(-nextafterf(middle, INFINITY)), (h + 1) | 0x8000);
    }
    assert_true(isnan(convert_from_bf16(convert_to_bf16(NAN))));
    uint32_t bits = 0x7f800001; /* a NaN whose upper half alone is infinity */
    float nan;
    memcpy(&nan, &bits, 4);
    assert_true(isnan(convert_from_bf16(convert_to_bf16(nan))));
}

static void arrays_convert_like_numbers(void **state) {
    (void)state;
    enum { N = 1300 }; /* not a multiple of the block */
    float wide[N], back[N];
    uint16_t narrow[N + 1];
    for (int i = 0; i < N; i++) wide[i] = (float)sin(i) * 100;
    narrow[N] = 0xabcd;
    assert_int_equal(convert_array(DTYPE_F16, narrow, DTYPE_F32, wide, N), 0);
    for (int i = 0; i < N; i++) assert_int_equal(narrow[i], convert_to_f16(wide[i]));
    assert_int_equal(narrow[N], 0xabcd);
    assert_int_equal(convert_array(DTYPE_F32, back, DTYPE_F16, narrow, N), 0);
    for (int i = 0; i < N; i++) assert_true(back[i] == convert_from_f16(narrow[i]));
    wide[3] = 70000;
    wide[N - 1] = -65520;
    wide[7] = INFINITY; /* was infinite before: no overflow */
    assert_int_equal(convert_array(DTYPE_F16, narrow, DTYPE_F32, wide, N), 2);
}

/* Tokens that have an expert of a scale, if 0.45 have one of scale 1. */
static double share_of(float scale) {
    return 0.5 * erfc(0.12566134685507416 / (double)scale / sqrt(2));
}

static int largest_first(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* A dummy router's experts are chosen top_k times a token in all, the one of rank r 1 / r times as
 * often as the first, if that is less than 0.45. */
static void dummy_routers_follow_zipf(void **state) {
    (void)state;
    static const struct { uint32_t n, top_k; } cases[] = {{128, 8}, {60, 4}, {8, 2}, {33, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float scale[128];
        double sum = 0;
        const uint32_t n = cases[i].n;
        dummy_router_scales(n, cases[i].top_k, scale);
        qsort(scale, n, sizeof *scale, largest_first);
        for (uint32_t r = 0; r < n; r++) sum += share_of(scale[r]);
        assert_true(fabs(sum - cases[i].top_k) < 1e-3);
        for (uint32_t r = n / 2; r < n; r++) /* none of these is cut */
            assert_true(fabs(share_of(scale[r]) * (r + 1) / (share_of(scale[n - 1]) * n) - 1) <
                        1e-3);
    }
    float one = 0;
    dummy_router_scales(1, 1, &one);
    assert_true(one > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_dtype_stays_in_place),
        cmocka_unit_test(unaligned_data_is_copied),
        cmocka_unit_test(other_dtypes_are_converted),
        cmocka_unit_test(bad_wants_are_named),
        cmocka_unit_test(dummy_weights_look_like_weights),
        cmocka_unit_test(large_files_are_mapped),
        cmocka_unit_test(parts_of_tensors_are_gathered),
        cmocka_unit_test(parts_beyond_tensors_are_refused),
        cmocka_unit_test(f16_widens_exactly),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(arrays_convert_like_numbers),
        cmocka_unit_test(dummy_routers_follow_zipf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

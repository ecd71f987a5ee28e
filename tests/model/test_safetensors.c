/* safetensors: files that are right, and every way in which one can be wrong. */
#include "base/checked.h"
#include "model/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail

#include "model/model_util.h"

/* length | header | n_data bytes 0, 1, 2, ...; returns the file's size. */
static size_t make(unsigned char *out, const char *header, uint64_t declared, size_t n_data) {
    size_t n = strlen(header);
    for (int i = 0; i < 8; i++) out[i] = (unsigned char)(declared >> (8 * i));
    memcpy(out + 8, header, n);
    for (size_t i = 0; i < n_data; i++) out[8 + n + i] = (unsigned char)i;
    return 8 + n + n_data;
}

static int parse(struct diag *d, const char *header, size_t n_data, unsigned char *bytes,
                 struct safetensors **st) {
    *d = (struct diag){0};
    size_t n = make(bytes, header, strlen(header), n_data);
    return safetensors_parse(d, "x", bytes, n, st);
}

static void tensors_are_found(void **state) {
    (void)state;
    unsigned char bytes[2000];
    struct diag d;
    struct safetensors *st;
    char text[100];
    enum dtype dtype;
    int rc = parse(&d,
                   "{\"__metadata__\":{\"format\":\"pt\",\"x\":7},"
                   "\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[6,14]},"
                   "\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
                   "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[14,15]},"
                   "\"empty\":{\"dtype\":\"F16\",\"shape\":[0,5],\"data_offsets\":[15,15]},"
                   "\"half\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[3,5]},"
                   "\"\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                   "\"a/..\\u00e9\\n\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[1,2]}}   ",
                   15, bytes, &st);
    if (rc != QN_OK) UTIL_FAIL("%s", d.message);
    assert_int_equal(st->tensors.n, 7);
    const struct safetensors_tensor *b = safetensors_find(st, "b");
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->bytes, 8);
    assert_int_equal(b->data[0], 6);
    assert_string_equal(b->dtype, "F32");
    assert_string_equal(safetensors_shape_text(b, text, sizeof text), "[2, 1]");
    assert_string_equal(safetensors_path(st, b), "x");
    assert_true(safetensors_dtype(b, &dtype));
    assert_int_equal(dtype, DTYPE_F32);
    const struct safetensors_tensor *scalar = safetensors_find(st, "scalar");
    assert_int_equal(scalar->n_dims, 0);
    assert_int_equal(scalar->data[0], 14);
    assert_false(safetensors_dtype(scalar, &dtype));
    assert_string_equal(safetensors_shape_text(scalar, text, sizeof text), "[]");
    assert_int_equal(safetensors_find(st, "empty")->bytes, 0);
    assert_int_equal(safetensors_find(st, "half")->bytes, 2);
    assert_non_null(safetensors_find(st, ""));
    assert_non_null(safetensors_find(st, "a/..\xc3\xa9\n"));
    assert_null(safetensors_find(st, "c"));
    assert_null(safetensors_find(st, "__metadata__"));
    assert_false(safetensors_torn(st));
    safetensors_close(st);
}

static void shape_text_never_overflows(void **state) {
    (void)state;
    struct safetensors_tensor t = {.n_dims = 8};
    for (int i = 0; i < 8; i++) t.shape[i] = UINT64_MAX;
    for (size_t n = 1; n < 200; n++) {
        char text[201];
        memset(text, 'x', sizeof text);
        safetensors_shape_text(&t, text, n);
        assert_true(strlen(text) < n);
        assert_int_equal(text[n], 'x');
    }
}

#define T(rest) "{\"w\":{" rest "}}"

static void wrong_headers_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *header, *message;
        int rc;
    } cases[] = {
        {"", "x: line 1, column 1: the text ends where a value is wanted", QN_EFORMAT},
        {"[]", "x: header: want an object", QN_EFORMAT},
        {"{\"w\":7}", "x: tensor w: want an object", QN_EFORMAT},
        {T("\"shape\":[4],\"data_offsets\":[0,8]"), "x: tensor w: dtype: want a string",
         QN_EFORMAT},
        {T("\"dtype\":\"F17\",\"shape\":[4],\"data_offsets\":[0,8]"),
         "x: tensor w: dtype: 'F17' is not known", QN_EUNSUPPORTED},
        {T("\"dtype\":\"F16\",\"data_offsets\":[0,8]"), "x: tensor w: shape: want a list of sizes",
         QN_EFORMAT},
        {T("\"dtype\":\"F16\",\"shape\":[-4],\"data_offsets\":[0,8]"),
         "x: tensor w: shape: want a list of sizes", QN_EFORMAT},
        {T("\"dtype\":\"F16\",\"shape\":[4.0],\"data_offsets\":[0,8]"),
         "x: tensor w: shape: want a list of sizes", QN_EFORMAT},
        {T("\"dtype\":\"F16\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,8]"),
         "x: tensor w: shape: more than 8 dimensions", QN_EFORMAT},
        {T("\"dtype\":\"F16\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]"),
         "x: tensor w: shape: too large", QN_EFORMAT},
        {T("\"dtype\":\"F64\",\"shape\":[288230376151711745],\"data_offsets\":[0,8]"),
         "x: tensor w: shape: too large", QN_EFORMAT},
        {T("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]"),
         "x: tensor w: shape: not a whole number of bytes", QN_EFORMAT},
        {T("\"dtype\":\"F16\",\"shape\":[4]"), "x: tensor w: data_offsets: want [first, end]",
         QN_EFORMAT},
        {T("\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[8]"),
         "x: tensor w: data_offsets: want [first, end]", QN_EFORMAT},
        {T("\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[8,0]"),
         "x: tensor w: data_offsets: want [first, end]", QN_EFORMAT},
        {T("\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[-8,0]"),
         "x: tensor w: data_offsets: want [first, end]", QN_EFORMAT},
        {T("\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[4,12]"),
         "x: tensor w: data_offsets: [4, 12] is outside the 8 bytes of data (is the file "
         "complete?)",
         QN_EFORMAT},
        {T("\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[9223372036854775806,"
           "9223372036854775807]"),
         "x: tensor w: data_offsets: [9223372036854775806, 9223372036854775807] is outside the 8 "
         "bytes of data (is the file complete?)",
         QN_EFORMAT},
        {T("\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,6]"),
         "x: tensor w: data_offsets: want 8 bytes for dtype and shape, have 6", QN_EFORMAT},
        {"{\"w\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"w\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         "x: line 1, column 54: 'w' is there twice", QN_EFORMAT},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        unsigned char bytes[2000];
        struct diag d;
        struct safetensors *st;
        int rc = parse(&d, cases[i].header, 8, bytes, &st);
        if (rc != cases[i].rc || strcmp(d.message, cases[i].message) != 0)
            UTIL_FAIL("%s\nwant %s\nhave %s", cases[i].header, cases[i].message, d.message);
        assert_null(st);
    }
}

static void wrong_lengths_are_refused(void **state) {
    (void)state;
    unsigned char bytes[100];
    struct diag d = {0};
    struct safetensors *st;
    size_t n = make(bytes, "{}", 2, 0);
    for (size_t cut = 0; cut < n; cut++) {
        diag_clear(&d);
        assert_int_equal(safetensors_parse(&d, "x", bytes, cut, &st), QN_EFORMAT);
    }
    assert_string_equal(d.message, "x: header: 2 bytes do not fit into a file of 9");
    const uint64_t lengths[] = {3, 100 * 1000 * 1000, 100 * 1000 * 1000 + 1, UINT64_MAX,
                                UINT64_MAX - 7};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        diag_clear(&d);
        make(bytes, "{}", lengths[i], 0);
        assert_int_equal(safetensors_parse(&d, "x", bytes, n, &st), QN_EFORMAT);
    }
    assert_string_equal(d.message, "x: header: want at most 100000000 bytes, have "
                                   "18446744073709551608 (is this a safetensors file?)");
}

/* ---- directories ---- */

static const char *const names[] = {"model.safetensors",   "model.safetensors.index.json",
                                    "a.safetensors",       "b.safetensors",
                                    "outside.safetensors", NULL};

static void write_file(const char *dir, const char *name, const char *header, size_t n_data) {
    unsigned char bytes[1000];
    size_t n = make(bytes, header, strlen(header), n_data);
    util_write(dir, name, bytes, n);
}

#define ONE(name) "{\"" name "\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}"

static void make_sharded(char dir[static 64], const char *index) {
    util_make_dir(dir);
    write_file(dir, "a.safetensors", ONE("x"), 2);
    write_file(dir, "b.safetensors", ONE("y"), 3);
    util_write_text(dir, "model.safetensors.index.json", index);
}

static void shards_are_opened(void **state) {
    (void)state;
    char dir[64];
    struct diag d = {0};
    struct safetensors *st;
    make_sharded(dir, "{\"metadata\":{\"total_size\":4},\"weight_map\":"
                      "{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}");
    if (safetensors_open(&d, dir, &st) != QN_OK) UTIL_FAIL("%s", d.message);
    assert_int_equal(st->files.n, 2);
    assert_int_equal(st->total_bytes, 4);
    assert_string_equal(safetensors_path(st, safetensors_find(st, "y")) + strlen(dir),
                        "/b.safetensors");
    safetensors_close(st);
    /* A single file wins over an index, as in transformers. */
    write_file(dir, "model.safetensors", ONE("z"), 2);
    assert_int_equal(safetensors_open(&d, dir, &st), QN_OK);
    assert_non_null(safetensors_find(st, "z"));
    assert_null(safetensors_find(st, "x"));
    safetensors_close(st);
    util_remove_dir(dir, names);
}

/* The layout of Hugging Face's cache: names in the folder, contents elsewhere. */
static void symlinks_are_followed(void **state) {
    (void)state;
    char dir[64], path[100], target[100];
    struct diag d = {0};
    struct safetensors *st;
    make_sharded(dir, "{\"weight_map\":{\"x\":\"outside.safetensors\"}}");
    snprintf(path, sizeof path, "%s/outside.safetensors", dir);
    snprintf(target, sizeof target, "../%s/a.safetensors", strrchr(dir, '/') + 1);
    assert_int_equal(symlink(target, path), 0);
    if (safetensors_open(&d, dir, &st) != QN_OK) UTIL_FAIL("%s", d.message);
    safetensors_close(st);
    util_remove_dir(dir, names);
}

static void wrong_indexes_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *index, *message; /* behind the directory's name */
        int rc;
    } cases[] = {
        {"{\"weight_map\":{\"x\":\"../a.safetensors\"}}",
         "/model.safetensors.index.json: weight_map.x: want the name of a file in the same folder",
         QN_EFORMAT},
        {"{\"weight_map\":{\"x\":\"/etc/passwd\"}}",
         "/model.safetensors.index.json: weight_map.x: want the name of a file in the same folder",
         QN_EFORMAT},
        {"{\"weight_map\":{\"x\":\"..\"}}",
         "/model.safetensors.index.json: weight_map.x: want the name of a file in the same folder",
         QN_EFORMAT},
        {"{\"weight_map\":{\"x\":\"\"}}",
         "/model.safetensors.index.json: weight_map.x: want the name of a file in the same folder",
         QN_EFORMAT},
        {"{\"weight_map\":{\"x\":\"a.safetensors\\u0000\"}}",
         "/model.safetensors.index.json: weight_map.x: want the name of a file in the same folder",
         QN_EFORMAT},
        {"{\"weight_map\":{\"x\":7}}",
         "/model.safetensors.index.json: weight_map.x: want the name of a file in the same folder",
         QN_EFORMAT},
        {"{\"weight_map\":{\"x\":\"c.safetensors\"}}", "/c.safetensors: No such file or directory",
         QN_ENOENT},
        {"{\"weight_map\":{}}",
         "/model.safetensors.index.json: weight_map: want an object with entries", QN_EFORMAT},
        {"{}", "/model.safetensors.index.json: weight_map: want an object with entries",
         QN_EFORMAT},
        {"[]", "/model.safetensors.index.json: weight_map: want an object with entries",
         QN_EFORMAT},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char dir[64];
        struct diag d = {0};
        struct safetensors *st;
        make_sharded(dir, cases[i].index);
        int rc = safetensors_open(&d, dir, &st);
        util_remove_dir(dir, names);
        if (rc != cases[i].rc || strncmp(d.message, dir, strlen(dir)) != 0 ||
            strcmp(d.message + strlen(dir), cases[i].message) != 0)
            UTIL_FAIL("%s\nwant %s\nhave %s", cases[i].index, cases[i].message, d.message);
    }
}

/* Names that no file has, tensors in another file than the index says, files that are not there:
 * what the files have counts. */
static void stale_indexes_are_read(void **state) {
    (void)state;
    static const char *const indexes[] = {
        "{\"weight_map\":{\"x\":\"a.safetensors\",\"z\":\"b.safetensors\"}}",
        "{\"weight_map\":{\"x\":\"b.safetensors\",\"y\":\"a.safetensors\"}}",
        "{\"weight_map\":{\"v\":\"b.safetensors\",\"w\":\"a.safetensors\"}}",
        "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\","
        "\"w\":\"c.safetensors\"}}",
    };
    for (size_t i = 0; i < COUNT_OF(indexes); i++) {
        char dir[64], want[400];
        struct diag d = {0};
        struct safetensors *st;
        const struct safetensors_tensor *t;
        enum dtype dtype;
        make_sharded(dir, indexes[i]);
        if (safetensors_open(&d, dir, &st) != QN_OK) UTIL_FAIL("%s", d.message);
        assert_int_equal(st->tensors.n, 2);
        assert_string_equal(safetensors_path(st, safetensors_find(st, "x")) + strlen(dir),
                            "/a.safetensors");
        assert_string_equal(safetensors_path(st, safetensors_find(st, "y")) + strlen(dir),
                            "/b.safetensors");
        assert_int_equal(safetensors_need(&d, st, "w", &t, &dtype), QN_EFORMAT);
        snprintf(want, sizeof want, "%s/model.safetensors.index.json: tensor w is missing%s%s%s",
                 dir, i == 3 ? ", and so is " : "", i == 3 ? dir : "",
                 i == 3 ? "/c.safetensors" : "");
        assert_string_equal(d.message, want);
        safetensors_close(st);
        util_remove_dir(dir, names);
    }
}

static void the_last_of_two_files_counts(void **state) {
    (void)state;
    char dir[64];
    struct diag d = {0};
    struct safetensors *st;
    make_sharded(dir, "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}");
    write_file(dir, "b.safetensors",
               "{\"y\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]},"
               "\"x\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
               2);
    if (safetensors_open(&d, dir, &st) != QN_OK) UTIL_FAIL("%s", d.message);
    assert_int_equal(st->tensors.n, 2);
    assert_int_equal(st->total_bytes, 4);
    assert_string_equal(safetensors_path(st, safetensors_find(st, "x")) + strlen(dir),
                        "/b.safetensors");
    safetensors_close(st);
    util_remove_dir(dir, names);
}

static void quantized_checkpoints_are_named(void **state) {
    (void)state;
    static const char *const parts[] = {"qweight", "scales", "weight_packed"};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        char header[300];
        unsigned char bytes[1000];
        struct diag d;
        struct safetensors *st;
        const struct safetensors_tensor *t;
        enum dtype dtype;
        snprintf(header, sizeof header,
                 "{\"q.%s\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8]}}", parts[i]);
        assert_int_equal(parse(&d, header, 8, bytes, &st), QN_OK);
        assert_int_equal(safetensors_need(&d, st, "q.weight", &t, &dtype), QN_EUNSUPPORTED);
        assert_string_equal(d.message, "x: tensor q.weight is missing: the checkpoint is quantized "
                                       "(GPTQ, AWQ, MLX or the like); want one in bfloat16, "
                                       "float16 or float32");
        safetensors_close(st);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found),
        cmocka_unit_test(shape_text_never_overflows),
        cmocka_unit_test(wrong_headers_are_refused),
        cmocka_unit_test(wrong_lengths_are_refused),
        cmocka_unit_test(shards_are_opened),
        cmocka_unit_test(symlinks_are_followed),
        cmocka_unit_test(wrong_indexes_are_refused),
        cmocka_unit_test(stale_indexes_are_read),
        cmocka_unit_test(the_last_of_two_files_counts),
        cmocka_unit_test(quantized_checkpoints_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

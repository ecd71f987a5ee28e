/* What an image's key depends on, that the cache is used, and what emit writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include "codegen/emit.h"
#include "codegen/kernel_image.h"

/* NVRTC keeps some of its own memory until the process ends; a leak check would count that as ours.
 * The sanitizers ask this function; other builds have no use for it. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "detect_leaks=0";
}

/* Only what emit_constants and cuda_form_all read. */
struct bare {
    struct prog_header header;
    struct model_spec spec;
    struct kv_row kv;
};

static struct bare bare_program(void) {
    struct bare p = {.header = {.kv_block = 64},
                     .spec = {.n_layers = 2, .hidden = 64, .head_dim = 16, .rms_eps = 1e-6f},
                     .kv = {.heads = 3, .k_width = 24, .v_width = 16, .dtype = DTYPE_BF16}};
    p.header.section[SECTION_MODEL].offset = offsetof(struct bare, spec);
    p.header.section[SECTION_MODEL].count = 1;
    p.header.section[SECTION_KV].offset = offsetof(struct bare, kv);
    p.header.section[SECTION_KV].count = 1;
    return p;
}

static void constants(const struct bare *p, struct strbuf *out) {
    strbuf_clear(out);
    emit_constants(&p->header, out);
    assert_int_equal(strbuf_status(NULL, out), QN_OK);
}

static void test_constants(void **state) {
    (void)state;
    struct strbuf a = {0}, b = {0};
    struct bare p = bare_program();
    constants(&p, &a);
    assert_non_null(strstr(strbuf_text(&a), "#define QN_HIDDEN 64\n"));
    assert_non_null(strstr(strbuf_text(&a), "#define QN_KV_BLOCK 64\n"));
    assert_non_null(strstr(strbuf_text(&a), "#define QN_KV_BLOCK_STRIDE 7680\n"));
    assert_non_null(strstr(strbuf_text(&a), "#define QN_KV_HEAD_STRIDE 1536\n"));
    assert_non_null(strstr(strbuf_text(&a), "#define QN_KV_VALUE_STRIDE 4608\n"));
    assert_non_null(strstr(strbuf_text(&a), "#define QN_RMS_EPS_BITS 0x358637bdu\n"));
    p.header.n_slots = 99; /* how a program is run is no constant of the kernel */
    p.header.n_workers = 99;
    p.header.max_model_len = 99;
    constants(&p, &b);
    assert_string_equal(strbuf_text(&a), strbuf_text(&b));
    p.spec.qk_norm = 1;
    constants(&p, &b);
    assert_string_not_equal(strbuf_text(&a), strbuf_text(&b));
    strbuf_fini(&a);
    strbuf_fini(&b);
}

/* Compiles a file without kernels, which is quick, and gives the key. */
static struct cache_key make(const struct nvrtc *n, const struct kernel_cache *cache,
                             const struct bare *p, struct kernel_image_options o,
                             bool want_cached) {
    struct diag d = {0};
    struct kernel_image image;
    o.entry = "base/abi.h";
    int rc = kernel_image_make(&d, n, cache, &p->header, &o, &image);
    if (rc != QN_OK) print_error("%s\n", d.message);
    assert_int_equal(rc, QN_OK);
    assert_int_equal(image.cached, want_cached);
    assert_memory_equal(image.bytes, "\177ELF", 4);
    struct cache_key key = image.key;
    kernel_image_fini(&image);
    return key;
}

static void assert_differ(struct cache_key a, struct cache_key b) {
    assert_true(a.high != b.high || a.low != b.low);
}

static void test_key_and_cache(void **state) {
    (void)state;
    struct nvrtc n;
    struct diag d = {0};
    if (nvrtc_open(&d, getenv("QN_NVRTC"), &n) != QN_OK) {
        print_message("skipped: %s\n", d.message);
        skip();
    }
    char root[] = "/tmp/quern-image-XXXXXX", command[80];
    struct kernel_cache cache;
    assert_non_null(mkdtemp(root));
    snprintf(cache.dir, sizeof cache.dir, "%s", root);
    struct bare p = bare_program();
    const struct kernel_image_options hopper = {.arch = "sm_90a"};
    struct cache_key first = make(&n, &cache, &p, hopper, false);
    struct cache_key again = make(&n, &cache, &p, hopper, true);
    assert_true(first.high == again.high && first.low == again.low);
    assert_differ(first,
                  make(&n, &cache, &p, (struct kernel_image_options){.arch = "sm_80"}, false));
    assert_differ(first,
                  make(&n, &cache, &p,
                       (struct kernel_image_options){.arch = "sm_90a", .traces = true}, false));
    assert_differ(first,
                  make(&n, &cache, &p,
                       (struct kernel_image_options){.arch = "sm_90a", .lineinfo = true}, false));
    /* The program uses no form; its image has those of other programs of the model, too. */
    assert_differ(first,
                  make(&n, &cache, &p,
                       (struct kernel_image_options){.arch = "sm_90a", .own_forms = true}, false));
    p.spec.hidden = 128;
    assert_differ(first, make(&n, &cache, &p, hopper, false));
    p.spec.hidden = 64;
    make(&n, &cache, &p, hopper, true);
    n.minor++; /* another compiler */
    assert_differ(first, make(&n, &cache, &p, hopper, false));
    nvrtc_close(&n);
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
}

static void test_refused(void **state) {
    (void)state;
    struct nvrtc n;
    struct diag d = {0};
    if (nvrtc_open(&d, getenv("QN_NVRTC"), &n) != QN_OK) skip();
    struct bare p = bare_program();
    struct kernel_cache off = {.dir = ""};
    struct kernel_image image;
    struct kernel_image_options o = {.entry = "no/such.cuh", .arch = "sm_90a"};
    assert_int_equal(kernel_image_make(&d, &n, &off, &p.header, &o, &image), QN_EDEVICE);
    assert_non_null(strstr(d.message, "no/such.cuh"));
    kernel_image_fini(&image);
    diag_clear(&d);
    o = (struct kernel_image_options){.entry = "base/abi.h", .arch = "sm_1"};
    assert_int_equal(kernel_image_make(&d, &n, &off, &p.header, &o, &image), QN_EDEVICE);
    assert_non_null(strstr(d.message, "sm_1"));
    kernel_image_fini(&image);
    nvrtc_close(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constants),
        cmocka_unit_test(test_key_and_cache),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

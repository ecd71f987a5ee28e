/* kernel_image.c - see kernel_image.h. */
#include "codegen/kernel_image.h"

#include "base/clock.h"
#include "base/array.h"
#include "codegen/cuda_form.h"
#include "codegen/embed.h"
#include "codegen/emit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 12 };

/* Everything that one compilation reads. */
struct unit {
    struct strbuf text, constants;
    ARRAY(const char *) names;
    ARRAY(const char *) texts;
    const char *options[MAX_OPTIONS];
    int n_options;
    char arch_option[48], name[48];
};

static void unit_fini(struct unit *u) {
    strbuf_fini(&u->text);
    strbuf_fini(&u->constants);
    ARRAY_FINI(&u->names);
    ARRAY_FINI(&u->texts);
}

static int add_header(struct diag *d, struct unit *u, const char *name, const char *text) {
    TRY(ARRAY_PUSH(d, &u->names, name));
    return ARRAY_PUSH(d, &u->texts, text);
}

static int set_options(struct diag *d, struct unit *u, const struct kernel_image_options *o) {
    int bytes = snprintf(u->arch_option, sizeof u->arch_option, "--gpu-architecture=%s", o->arch);
    if (bytes < 0 || (size_t)bytes >= sizeof u->arch_option) {
        return fail(d, QN_EINVAL, "architecture '%s': want a name like sm_90a", o->arch);
    }
    snprintf(u->name, sizeof u->name, "the kernels for %s", o->arch);
    const char *fixed[] = {u->arch_option, "--std=c++17", "-default-device",
                           /* Every kernel states its launch bounds. Kernels name each fused
                            * multiply-add that they want, so that bits do not depend on the
                            * compiler's choice. */
                           "--fmad=false"};
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        u->options[u->n_options++] = fixed[i];
    }
    if (o->lineinfo) u->options[u->n_options++] = "--generate-line-info";
    if (o->each_arrives) u->options[u->n_options++] = "-DQN_EACH_ARRIVES=1";
    if (o->traces) u->options[u->n_options++] = "-DQN_TRACES=1";
    if (o->verbose) u->options[u->n_options++] = "--ptxas-options=-v";
    return QN_OK;
}

/* 90 of sm_90a; 0: not such a name, which the compiler will report. */
static uint32_t cc_of(const char *arch) {
    return strncmp(arch, "sm_", 3) == 0 ? (uint32_t)strtoul(arch + 3, NULL, 10) : 0;
}

static int unit_init(struct diag *d, const struct prog_header *program,
                     const struct kernel_image_options *o, struct unit *u) {
    bool used[N_FORMS];
    TRY(cuda_form_used(d, program, cc_of(o->arch), used)); /* refuses what has no form */
    if (!o->own_forms) cuda_form_all(program, cc_of(o->arch), used);
    emit_constants(program, &u->constants);
    emit_forms(used, &u->constants);
    emit_unit(o->entry != NULL ? o->entry : "kernels/cuda/mega.cuh", &u->text);
    TRY(strbuf_status(d, &u->constants));
    TRY(strbuf_status(d, &u->text));
    TRY(add_header(d, u, EMIT_HEADER, strbuf_text(&u->constants)));
    for (size_t i = 0; i < embed_n_files; i++) {
        TRY(add_header(d, u, embed_files[i].name, (const char *)embed_files[i].text));
    }
    return set_options(d, u, o);
}

static void hash_unit(const struct unit *u, const struct nvrtc *nvrtc, struct cache_key *key) {
    cache_hash_init(key);
    cache_hash_text(key, QN_VERSION);
    int version[2] = {nvrtc->major, nvrtc->minor};
    cache_hash_field(key, version, sizeof version);
    cache_hash_text(key, strbuf_text(&u->text));
    for (size_t i = 0; i < u->names.n; i++) {
        cache_hash_text(key, u->names.items[i]);
        cache_hash_text(key, u->texts.items[i]);
    }
    for (int i = 0; i < u->n_options; i++) cache_hash_text(key, u->options[i]);
}

static int compile(struct diag *d, const struct nvrtc *nvrtc, const struct unit *u,
                   struct kernel_image *image) {
    struct nvrtc_source source = {
        .name = u->name,
        .text = strbuf_text(&u->text),
        .n_headers = (int)u->names.n,
        .header_names = u->names.items,
        .header_texts = u->texts.items,
        .n_options = u->n_options,
        .options = u->options,
    };
    struct nvrtc_image made;
    int rc = nvrtc_compile(d, nvrtc, &source, &made);
    image->bytes = made.bytes;
    image->n = made.n;
    image->log = made.log;
    return rc;
}

static int make(struct diag *d, const struct nvrtc *nvrtc, const struct kernel_cache *cache,
                const struct prog_header *program, const struct kernel_image_options *o,
                struct unit *u, struct kernel_image *image) {
    TRY(unit_init(d, program, o, u));
    hash_unit(u, nvrtc, &image->key);
    if (!o->verbose && kernel_cache_find(cache, &image->key, &image->bytes, &image->n)) {
        image->cached = true;
        return QN_OK;
    }
    TRY(compile(d, nvrtc, u, image));
    if (!o->verbose) kernel_cache_put(NULL, cache, &image->key, image->bytes, image->n);
    return QN_OK;
}

int kernel_image_make(struct diag *d, const struct nvrtc *nvrtc, const struct kernel_cache *cache,
                      const struct prog_header *program, const struct kernel_image_options *o,
                      struct kernel_image *image) {
    double start = clock_s();
    struct unit u = {0};
    *image = (struct kernel_image){0};
    int rc = make(d, nvrtc, cache, program, o, &u, image);
    unit_fini(&u);
    image->seconds = clock_s() - start;
    return rc;
}

void kernel_image_fini(struct kernel_image *image) {
    free(image->bytes);
    free(image->log);
    *image = (struct kernel_image){0};
}

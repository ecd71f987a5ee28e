/* check_kernels - compiles the kernels as a start of the engine would, for every architecture, and
 * holds the assembler's report to what is written beside each kernel. Needs NVRTC, but no GPU.
 *
 *     check_kernels [--arch sm_90a]... [--model NAME]... [--traces] [--log] [--cubin FOLDER]
 *     check_kernels --fill-cache [--form aot|jit] [--max-model-len N] [--traces] [--log]
 *                   --arch sm_90a DIR...
 *
 * --traces: kernels of an engine that was opened with a trace, which have the same budgets.
 * The second form compiles the kernels of model directories into the kernel cache, so that a
 * machine that gets a copy of the cache compiles nothing. "none" is a model of sizes that the
 * kernels do not have, which is no failure. Kernels differ by whether the program hands out tasks
 * at run time (as the engine has it on a GPU it does not), with some RoPE scalings by the positions
 * of a request (an engine's default), and by --traces. With
 * --log nothing is cached: the assembler's report is printed.
 *
 * A budget is a line of a .cuh file:
 *
 *     // check_kernels: qn_mega registers 168
 *     // check_kernels: qn_mega registers 168 stack 32 spills 8     bytes, where they are wanted: a
 *                                                                   function that is called, say
 *     // check_kernels: function compute_one_row spills 0           of those that a kernel calls,
 *                                                                   by a part of the name
 *     // check_kernels: function compute_one_row spills 32 on sm_100a     there instead; on odd,
 *                                                                   on odd.sm_80: of that model
 *
 * Failures: a kernel without a budget, more registers, stack or spills than it allows (none unless
 * it says so), fewer than half of many registers, so that most of the code must be missing, spills
 * of a function beyond what is said of it, or beyond FUNCTION_SPILLS if nothing is; products of
 * wgmma of which each waits for the one before. Exit: 0 well, 1 failed, 77 no NVRTC here (ctest:
 * skipped).
 */
#include "base/checked.h"
#include "codegen/cuda_tables.h"
#include "codegen/embed.h"
#include "codegen/kernel_image.h"
#include "engine/compile.h"
#include "engine/compile_option.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NVRTC keeps some of its own memory until the process ends; a leak check would count that as ours.
 * The sanitizers ask this function; other builds have no use for it. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "detect_leaks=0";
}

#define BUDGET_MARK "check_kernels: "

enum { EXIT_SKIPPED = 77, MAX_CHOICES = 8, FUNCTION_SPILLS = 128, MANY_REGISTERS = 128 };

/* Shapes that make different code: wide and narrow, with and without biases and QK-norm, odd. */
static const struct {
    const char *name;
    struct model_spec spec;
} models[] = {
    {"qwen3-8b",
     {.n_layers = 36,
      .hidden = 4096,
      .intermediate = 12288,
      .vocab = 151936,
      .n_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 128,
      .qk_norm = 1,
      .rms_eps = 1e-6f,
      .weight_dtype = DTYPE_BF16}},
    {"llama-3.2-1b",
     {.n_layers = 16,
      .hidden = 2048,
      .intermediate = 8192,
      .vocab = 128256,
      .n_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 64,
      .tied = 1,
      .rms_eps = 1e-5f,
      .weight_dtype = DTYPE_BF16}},
    {"qwen2-0.5b",
     {.n_layers = 24,
      .hidden = 896,
      .intermediate = 4864,
      .vocab = 151936,
      .n_heads = 14,
      .n_kv_heads = 2,
      .head_dim = 64,
      .qkv_bias = 1,
      .tied = 1,
      .rms_eps = 1e-6f,
      .weight_dtype = DTYPE_BF16}},
    {"qwen3-30b-a3b",
     {.n_layers = 48,
      .hidden = 2048,
      .intermediate = 6144,
      .vocab = 151936,
      .n_heads = 32,
      .n_kv_heads = 4,
      .head_dim = 128,
      .qk_norm = 1,
      .rms_eps = 1e-6f,
      .weight_dtype = DTYPE_BF16,
      .experts = {.n = 128, .top_k = 8, .width = 768, .normed = 1}}},
    {"deepseek-v2-lite", /* its attention; dense layers */
     {.n_layers = 27,
      .hidden = 2048,
      .intermediate = 10944,
      .vocab = 102400,
      .n_heads = 16,
      .n_kv_heads = 1,
      .head_dim = 192,
      .rms_eps = 1e-6f,
      .weight_dtype = DTYPE_BF16,
      .latent = {.kv_rank = 512, .rope = 64, .v_dim = 128, .scale = 0.1147f}}},
    {"odd",
     {.n_layers = 3,
      .hidden = 72,
      .intermediate = 200,
      .vocab = 515,
      .n_heads = 6,
      .n_kv_heads = 2,
      .head_dim = 12,
      .qkv_bias = 1,
      .o_bias = 1,
      .mlp_bias = 1,
      .qk_norm = 1,
      .rms_eps = 1e-5f,
      .weight_dtype = DTYPE_F16,
      .sliding_window = 100,
      .sees_all = {2}}},
};
static const char *const all_archs[] = {"sm_80", "sm_90a", "sm_100a"};

struct choices {
    const char *arch[MAX_CHOICES], *model[MAX_CHOICES];
    int n_arch, n_model;
    bool log, fill_cache, traces;
    const char *cubin_folder, *form;
    uint32_t max_model_len; /* 0: as an engine has it unless the user says */
    char **dirs;
    int n_dirs;
};

/* What the assembler says of one kernel. */
struct usage {
    char name[80];
    int registers, stack, spill_stores, spill_loads;
};

struct budget {
    int registers, stack, spills;
};

/* Finds the budget line of a kernel among the embedded sources. */
static bool find_budget(const char *kernel, struct budget *b) {
    for (size_t i = 0; i < embed_n_files; i++) {
        const char *p = (const char *)embed_files[i].text;
        while ((p = strstr(p, BUDGET_MARK)) != NULL) {
            char name[80];
            p += strlen(BUDGET_MARK);
            b->stack = b->spills = 0;
            int n = sscanf(p, "%79s registers %d stack %d spills %d", name, &b->registers,
                           &b->stack, &b->spills);
            if (n >= 2 && strcmp(name, kernel) == 0) return true;
        }
    }
    return false;
}

static int judge(const struct usage *u, const char *where) {
    struct budget b;
    if (!find_budget(u->name, &b)) {
        printf("FAIL  %-28s %-16s no line \"" BUDGET_MARK "%s registers N\" in the sources\n",
               where, u->name, u->name);
        return 1;
    }
    int spills = u->spill_stores + u->spill_loads;
    bool bad = spills > b.spills || u->stack > b.stack || u->registers > b.registers;
    bad = bad || (b.registers >= MANY_REGISTERS && u->registers < b.registers / 2);
    printf("%s  %-28s %-16s %3d registers (budget %d), stack %d (%d), spills %d (%d) bytes\n",
           bad ? "FAIL" : "ok  ", where, u->name, u->registers, b.registers, u->stack, b.stack,
           spills, b.spills);
    return bad;
}

/* Bytes that a called function may spill: the largest part of its name that a budget line has says,
 * of those with the same part the first for this model or architecture. */
static int function_budget(const char *function, const char *where) {
    size_t best = 0;
    int spills = FUNCTION_SPILLS;
    for (size_t i = 0; i < embed_n_files; i++) {
        const char *p = (const char *)embed_files[i].text;
        while ((p = strstr(p, BUDGET_MARK "function ")) != NULL) {
            char part[80], arch[16];
            int n;
            p += strlen(BUDGET_MARK "function ");
            const int found = sscanf(p, "%79s spills %d on %15s", part, &n, arch);
            if (found < 2 || strstr(function, part) == NULL) continue;
            if (found == 3 && strstr(where, arch) == NULL) continue;
            const size_t rank = 2 * strlen(part) + (found == 3);
            if (rank <= best) continue;
            best = rank;
            spills = n;
        }
    }
    return spills;
}

/* A function that a kernel calls: 1 if it spills too much. */
static int judge_function(const char *name, int spills, const char *where) {
    const int budget = function_budget(name, where);
    if (spills <= budget) return 0;
    printf("FAIL  %-28s %s spills %d bytes (budget %d)\n", where, name, spills, budget);
    return 1;
}

/* Reads the assembler's report: for each kernel a line "Compiling entry function 'NAME'", then its
 * stack frame and spills, then "Used N registers"; for each function "Function properties for
 * NAME", then the same. Returns failures; *n_kernels counts. */
static int judge_log(char *log, const char *where, int *n_kernels) {
    int failures = 0;
    struct usage u = {0};
    char function[300] = "";
    for (char *line = strtok(log, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char *p;
        if ((p = strstr(line, "Compiling entry function '")) != NULL) {
            u = (struct usage){0};
            sscanf(p, "Compiling entry function '%79[^']'", u.name);
        } else if ((p = strstr(line, "Function properties for ")) != NULL) {
            sscanf(p, "Function properties for %299s", function);
        } else if (strstr(line, "bytes stack frame") != NULL) {
            int stack, stores, loads;
            p = line + strcspn(line, "0123456789");
            if (sscanf(p, "%d bytes stack frame, %d bytes spill stores, %d bytes spill loads",
                       &stack, &stores, &loads) != 3)
                continue;
            if (u.name[0] == '\0') {
                failures += judge_function(function, stores + loads, where);
                continue;
            }
            if (stack > u.stack) u.stack = stack;
            u.spill_stores += stores;
            u.spill_loads += loads;
        } else if ((p = strstr(line, "Used ")) != NULL && u.name[0] != '\0') {
            sscanf(p, "Used %d registers", &u.registers);
            failures += judge(&u, where);
            *n_kernels += 1;
            u = (struct usage){0};
        } else if (strstr(line, "wgmma.mma_async instructions are serialized") != NULL) {
            printf("FAIL  %-28s %s\n", where, line);
            failures++;
        }
    }
    return failures;
}

/* A program of which only what emit_constants reads is filled in: the model, its KV rows, LINEAR of
 * the attention's output and of the MLP's, a gated MLP. */
struct bare {
    struct prog_header header;
    struct model_spec spec;
    struct kv_row kv;
    struct prog_op ops[3];
};

static struct prog_section section_at(size_t offset, uint64_t count) {
    return (struct prog_section){.offset = offset, .count = count};
}

static struct bare bare_program(const struct model_spec *spec) {
    const enum dtype kv = spec->weight_dtype == DTYPE_F32 ? DTYPE_BF16 : spec->weight_dtype;
    struct bare p = {.header.kv_block = 64, /* compile_options_init's */
                     .header.max_model_len = 4096,
                     .spec = *spec,
                     .kv = spec_kv_row(spec, kv),
                     .ops = {{.kind = OP_LINEAR, .n_rows = 2, .k = spec->n_heads * spec->head_dim},
                             {.kind = OP_LINEAR, .n_rows = 2, .k = spec->intermediate},
                             {.kind = OP_GATED_MLP, .n_rows = 2, .units = spec->intermediate}}};
    p.header.section[SECTION_MODEL] = section_at(offsetof(struct bare, spec), 1);
    p.header.section[SECTION_KV] = section_at(offsetof(struct bare, kv), 1);
    p.header.section[SECTION_OP] = section_at(offsetof(struct bare, ops), 3);
    return p;
}

static void keep_cubin(const struct choices *c, const struct kernel_image *image,
                       const char *where) {
    char path[600];
    if (c->cubin_folder == NULL || image->bytes == NULL) return;
    snprintf(path, sizeof path, "%s/%s.cubin", c->cubin_folder, where);
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(image->bytes, 1, image->n, f) != image->n) perror(path);
    if (f != NULL) fclose(f);
}

static int check(const struct nvrtc *nvrtc, const struct choices *c, const char *model,
                 const struct model_spec *spec, const char *arch) {
    struct diag d = {0};
    struct kernel_cache off = {{0}};
    struct kernel_image image = {0};
    struct kernel_image_options o = {.arch = arch, .verbose = true, .traces = c->traces};
    char where[64];
    int failures = 0, n_kernels = 0;
    snprintf(where, sizeof where, "%s.%s", model, arch);
    const struct bare program = bare_program(spec);
    int rc = kernel_image_make(&d, nvrtc, &off, &program.header, &o, &image);
    if (rc != QN_OK) {
        printf("FAIL  %-28s %s\n", where, d.message);
        if (c->log && image.log != NULL) puts(image.log);
        failures = 1;
    } else {
        if (c->log) puts(image.log);
        failures = judge_log(image.log, where, &n_kernels);
        printf("      %-28s %d kernels, %zu bytes, %.1f s\n", where, n_kernels, image.n,
               image.seconds);
        keep_cubin(c, &image, where);
        if (n_kernels == 0) failures++;
    }
    kernel_image_fini(&image);
    return failures;
}

static bool chosen(const char *const *list, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(list[i], name) == 0) return true;
    return n == 0;
}

static int parse(int argc, char **argv, struct choices *c) {
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--log") == 0)
            c->log = true;
        else if (strcmp(argv[i], "--fill-cache") == 0)
            c->fill_cache = true;
        else if (strcmp(argv[i], "--traces") == 0)
            c->traces = true;
        else if (c->fill_cache && argv[i][0] != '-' && c->n_arch > 0) {
            c->dirs = argv + i;
            c->n_dirs = argc - i;
            return 0;
        } else if (strcmp(argv[i], "--form") == 0 && more)
            c->form = argv[++i];
        else if (strcmp(argv[i], "--max-model-len") == 0 && more)
            c->max_model_len = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--cubin") == 0 && more)
            c->cubin_folder = argv[++i];
        else if (strcmp(argv[i], "--arch") == 0 && more && c->n_arch < MAX_CHOICES)
            c->arch[c->n_arch++] = argv[++i];
        else if (strcmp(argv[i], "--model") == 0 && more && c->n_model < MAX_CHOICES)
            c->model[c->n_model++] = argv[++i];
        else
            return fprintf(stderr,
                           "usage: check_kernels [--arch ARCH]... [--model NAME]... [--traces] "
                           "[--log] [--cubin FOLDER]\n"
                           "       check_kernels --fill-cache [--form aot|jit] "
                           "[--max-model-len N] [--traces] [--log] --arch ARCH DIR...\n"),
                   2;
    }
    return 0;
}

/* The program that an engine would make of a model for a GPU of 132 multiprocessors. */
static int real_program(struct diag *d, const struct choices *c, struct model *model,
                        const char *arch, struct prog_header **program) {
    const struct device card = device_cuda((uint32_t)strtoul(arch + 3, NULL, 10), 132, 25);
    struct compile_options o;
    char launch[32];
    compile_options_init(&o);
    compile_options_cuda(&o, &card);
    o.max_model_len = c->max_model_len != 0 ? c->max_model_len
                                            : MIN(model->spec.max_position, COMPILE_LEN_MOST + 0u);
    o.kv_dtype = model->spec.weight_dtype == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16;
    snprintf(launch, sizeof launch, "launch=%.20s", c->form);
    TRY(compile_option_apply(d, launch, &o));
    return compile_model(d, model, &o, NULL, NULL, program);
}

/* Refuses a program that the kernels cannot run, as the engine does before it compiles them. */
static int check_program(struct diag *d, const struct prog_header *program) {
    uint64_t bytes;
    struct cuda_place *places = calloc(program->section[SECTION_WEIGHT].count + 1, sizeof *places);
    if (places == NULL) return fail(d, QN_ENOMEM, "no memory for the places of weights");
    const int rc = cuda_tables_plan(d, program, places, &bytes);
    free(places);
    return rc;
}

/* One directory's kernels into the cache; 1 if that failed. */
static int fill(const struct nvrtc *nvrtc, const struct kernel_cache *cache,
                const struct choices *c, const char *dir, const char *arch) {
    struct diag d = {0};
    struct model_options options = {.dummy = true};
    struct model *model = NULL;
    struct kernel_image image = {0};
    struct prog_header *program = NULL;
    bool none = false;
    int rc = model_open(&d, dir, &options, &model);
    if (rc == QN_OK) rc = real_program(&d, c, model, arch, &program);
    if (rc == QN_OK) {
        rc = check_program(&d, program);
        none = rc == QN_EUNSUPPORTED;
    }
    if (rc == QN_OK)
        rc = kernel_image_make(
            &d, nvrtc, cache, program,
            &(struct kernel_image_options){.arch = arch, .traces = c->traces, .verbose = c->log},
            &image);
    if (c->log && image.log != NULL) puts(image.log);
    printf("%s  %-40s %s %s %zu bytes, %.1f s%s %s\n",
           rc == QN_OK ? "ok  "
           : none      ? "none"
                       : "FAIL",
           dir, arch, c->form, image.n, image.seconds, image.cached ? ", was there" : "",
           d.message);
    kernel_image_fini(&image);
    free(program);
    model_free(model);
    return rc != QN_OK && !none;
}

static int fill_cache(const struct nvrtc *nvrtc, const struct choices *c) {
    struct kernel_cache cache;
    int failures = 0;
    kernel_cache_init(&cache, false);
    printf("cache: %s\n", cache.dir[0] != '\0' ? cache.dir : "off");
    for (int a = 0; a < c->n_arch; a++)
        for (int i = 0; i < c->n_dirs; i++)
            failures += fill(nvrtc, &cache, c, c->dirs[i], c->arch[a]);
    return failures > 0;
}

int main(int argc, char **argv) {
    struct choices c = {.form = "aot"};
    struct nvrtc nvrtc;
    struct diag d = {0};
    int failures = 0, n = 0;
    if (parse(argc, argv, &c) != 0) return 2;
    if (nvrtc_open(&d, getenv("QN_NVRTC"), &nvrtc) != QN_OK) {
        printf("SKIPPED: %s\n", d.message);
        return EXIT_SKIPPED;
    }
    if (embed_find("kernels/cuda/mega.cuh") == NULL) {
        printf("SKIPPED: this build has no kernels/cuda/mega.cuh\n");
        return EXIT_SKIPPED;
    }
    printf("NVRTC %d.%d (%s)\n", nvrtc.major, nvrtc.minor, nvrtc.path);
    if (c.fill_cache) return fill_cache(&nvrtc, &c);
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (size_t a = 0; a < sizeof all_archs / sizeof all_archs[0]; a++)
            if (chosen(c.model, c.n_model, models[m].name) &&
                chosen(c.arch, c.n_arch, all_archs[a])) {
                failures += check(&nvrtc, &c, models[m].name, &models[m].spec, all_archs[a]);
                n++;
            }
    nvrtc_close(&nvrtc);
    if (n == 0) return fprintf(stderr, "no such model or architecture\n"), 2;
    return failures > 0;
}

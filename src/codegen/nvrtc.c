/* nvrtc.c - see nvrtc.h. */
#include "codegen/nvrtc.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NVRTC_MIN_MAJOR = 12, MAX_LOG_BYTES = 16 << 20, MAX_IMAGE_BYTES = 256 << 20 };

static const char *const sonames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
/* Below a Python prefix; the second is the layout of CUDA 12's packages. */
static const char *const python_tails[] = {
    "lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
    "lib/python3*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
    "lib/python3*/dist-packages/nvidia/cu13/lib/libnvrtc.so.13",
    "lib/python3*/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
};
static const char *const python_prefixes[] = {"/usr/local", "/usr", "/opt/*", "/opt/*/.venv",
                                              "/opt/*/venv"};

/* Loads one candidate; returns whether it is a usable NVRTC. */
static bool load(struct nvrtc *n, const char *path) {
    if (strlen(path) >= sizeof n->path) return false;
    /* It stays in memory: its C++ runtime keeps what it allocated until the process ends. */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) return false;
    struct nvrtc found = {.library = library};
    bool complete = true;
    void *symbol;
#define X(name, result, arguments)                                                                 \
    symbol = dlsym(library, "nvrtc" #name);                                                        \
    memcpy(&found.name, &symbol, sizeof symbol);                                                   \
    complete = complete && symbol != NULL;
    NVRTC_CALLS(X)
#undef X
    if (!complete || found.Version(&found.major, &found.minor) != 0 ||
        found.major < NVRTC_MIN_MAJOR) {
        dlclose(library);
        return false;
    }
    memcpy(found.path, path, strlen(path) + 1);
    *n = found;
    return true;
}

static bool load_glob(struct nvrtc *n, const char *pattern) {
    glob_t g;
    if (glob(pattern, 0, NULL, &g) != 0) return false;
    bool found = false;
    for (size_t i = g.gl_pathc; i-- > 0 && !found;) found = load(n, g.gl_pathv[i]);
    globfree(&g);
    return found;
}

static bool load_in(struct nvrtc *n, const char *folder) {
    char path[600];
    for (size_t i = 0; i < sizeof sonames / sizeof sonames[0]; i++) {
        int bytes = snprintf(path, sizeof path, "%s/%s", folder, sonames[i]);
        if (bytes > 0 && (size_t)bytes < sizeof path && load(n, path)) return true;
    }
    return false;
}

static bool load_below(struct nvrtc *n, const char *prefix) {
    char pattern[700];
    for (size_t i = 0; i < sizeof python_tails / sizeof python_tails[0]; i++) {
        int bytes = snprintf(pattern, sizeof pattern, "%s/%s", prefix, python_tails[i]);
        if (bytes > 0 && (size_t)bytes < sizeof pattern && load_glob(n, pattern)) return true;
    }
    return false;
}

static bool load_toolkit(struct nvrtc *n) {
    static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH"};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *home = getenv(variables[i]);
        char folder[500];
        if (home == NULL || *home == '\0' || strlen(home) > 400) continue;
        snprintf(folder, sizeof folder, "%s/lib64", home);
        if (load_in(n, folder)) return true;
    }
    return load_in(n, "/usr/local/cuda/lib64");
}

/* Python installations: an environment with torch has NVRTC beside it. */
static bool load_python(struct nvrtc *n) {
    static const char *const variables[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *prefix = getenv(variables[i]);
        if (prefix != NULL && *prefix == '/' && load_below(n, prefix)) return true;
    }
    const char *p = getenv("PATH");
    while (p != NULL && *p != '\0') {
        size_t bytes = strcspn(p, ":");
        char prefix[500];
        if (bytes > 1 && bytes < 400 && *p == '/') {
            snprintf(prefix, sizeof prefix, "%.*s/..", (int)bytes, p);
            if (load_below(n, prefix)) return true;
        }
        p += bytes + (p[bytes] == ':');
    }
    for (size_t i = 0; i < sizeof python_prefixes / sizeof python_prefixes[0]; i++) {
        if (load_below(n, python_prefixes[i])) return true;
    }
    return false;
}

static bool is_folder(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

int nvrtc_open(struct diag *d, const char *path, struct nvrtc *n) {
    *n = (struct nvrtc){0};
    if (path != NULL && *path != '\0') {
        if (is_folder(path) ? load_in(n, path) : load(n, path)) return QN_OK;
        return fail(d, QN_EDEVICE, "QN_NVRTC=%s: no usable NVRTC %d or newer there", path,
                    NVRTC_MIN_MAJOR);
    }
    for (size_t i = 0; i < sizeof sonames / sizeof sonames[0]; i++) {
        if (load(n, sonames[i])) return QN_OK;
    }
    if (load_toolkit(n) || load_python(n)) return QN_OK;
    return fail(d, QN_EDEVICE,
                "no NVRTC (libnvrtc.so.13 or .12) on the loader's path, in /usr/local/cuda or in a "
                "Python installation; set QN_NVRTC to the library or its folder");
}

void nvrtc_close(struct nvrtc *n) {
    if (n->library != NULL) dlclose(n->library);
    *n = (struct nvrtc){0};
}

static int check(struct diag *d, const struct nvrtc *n, const char *call, int result) {
    if (result == 0) return QN_OK;
    return fail(d, QN_EDEVICE, "nvrtc%s: %s (%d)", call, n->GetErrorString(result), result);
}

/* The log's first lines as one line of at most `limit` bytes. */
static void trim_log(const char *log, char *out, size_t limit) {
    size_t used = 0;
    bool blank = true;
    for (const char *p = log; *p != '\0' && used + 4 < limit; p++) {
        bool space = *p == ' ' || *p == '\n' || *p == '\t' || *p == '\r';
        if (space && blank) continue;
        if (*p == '\n') {
            out[used++] = ' ';
            out[used++] = '|';
        }
        out[used++] = space ? ' ' : *p;
        blank = space;
    }
    out[used] = '\0';
}

/* First error onwards: warnings before it would fill the message. */
static int fail_with_log(struct diag *d, const struct nvrtc *n, const struct nvrtc_source *source,
                         const char *log, int result) {
    const char *error = strstr(log, "error");
    while (error != NULL && error > log && error[-1] != '\n') error--;
    char text[720];
    trim_log(error != NULL ? error : log, text, sizeof text);
    return fail(d, QN_EDEVICE, "%s: %s: %s", source->name, n->GetErrorString(result), text);
}

static int take_log(struct diag *d, const struct nvrtc *n, nvrtc_program program, char **log) {
    size_t bytes = 0;
    TRY(check(d, n, "GetProgramLogSize", n->GetProgramLogSize(program, &bytes)));
    if (bytes > MAX_LOG_BYTES) return fail(d, QN_ELIMIT, "NVRTC's log has %zu bytes", bytes);
    *log = calloc(bytes + 1, 1);
    if (*log == NULL) return fail_nomem(d, bytes + 1, "NVRTC's log");
    if (bytes == 0) return QN_OK;
    return check(d, n, "GetProgramLog", n->GetProgramLog(program, *log));
}

static int take_image(struct diag *d, const struct nvrtc *n, nvrtc_program program,
                      struct nvrtc_image *image) {
    TRY(check(d, n, "GetCUBINSize", n->GetCUBINSize(program, &image->n)));
    if (image->n == 0 || image->n > MAX_IMAGE_BYTES) {
        return fail(d, QN_EDEVICE,
                    "NVRTC made a cubin of %zu bytes: want a real architecture "
                    "(sm_...) among the options",
                    image->n);
    }
    image->bytes = malloc(image->n);
    if (image->bytes == NULL) return fail_nomem(d, image->n, "the kernel image");
    return check(d, n, "GetCUBIN", n->GetCUBIN(program, image->bytes));
}

static int compile(struct diag *d, const struct nvrtc *n, const struct nvrtc_source *source,
                   nvrtc_program program, struct nvrtc_image *image) {
    int result = n->CompileProgram(program, source->n_options, source->options);
    TRY(take_log(d, n, program, &image->log));
    if (result != 0) return fail_with_log(d, n, source, image->log, result);
    return take_image(d, n, program, image);
}

int nvrtc_compile(struct diag *d, const struct nvrtc *n, const struct nvrtc_source *source,
                  struct nvrtc_image *image) {
    *image = (struct nvrtc_image){0};
    nvrtc_program program = NULL;
    TRY(check(d, n, "CreateProgram",
              n->CreateProgram(&program, source->text, source->name, source->n_headers,
                               source->header_texts, source->header_names)));
    int rc = compile(d, n, source, program, image);
    n->DestroyProgram(&program);
    return rc; /* the log stays with the caller, image->bytes too: both go with nvrtc_image_fini */
}

void nvrtc_image_fini(struct nvrtc_image *image) {
    free(image->bytes);
    free(image->log);
    *image = (struct nvrtc_image){0};
}

/* nvrtc.c - the calls of codegen/nvrtc.h, answered with the host's C++ compiler: the kernels' text,
 * compiled against device/ instead of PTX, becomes a shared object. For every kernel of the text
 * there is an emu_entry_<name> that calls it with the driver's array of arguments. */
#include "codegen/nvrtc.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Given by CMake: EMU_CXX, EMU_FLAGS (of sanitizers), EMU_SOURCE (this folder), EMU_INCLUDE (the
 * project's sources), EMU_LIBRARY (libcuda.so.1, which kernels call). */

enum { NVRTC_ERROR = 6, MAX_KERNELS = 16 };

struct _nvrtcProgram {
    char folder[256];
    char *image, *log;
    size_t image_bytes, log_bytes;
    char kernels[MAX_KERNELS][64];
    int n_kernels;
};

#define X(name, result, arguments)                                                                 \
    __attribute__((visibility("default"))) result nvrtc##name arguments;
NVRTC_CALLS(X)
#undef X

const char *nvrtcGetErrorString(int result) {
    return result == 0 ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION";
}

/* No NVRTC has such a number: what it makes must not be taken for what they make. The minor one
 * changes with device/, so that a cache of kernels never outlives it. */
int nvrtcVersion(int *major, int *minor) {
    static const char *const files[] = {"cuda.h",
                                        "runtime/rt_sync_cuda.h",
                                        "kernels/cuda/ptx/barrier.cuh",
                                        "kernels/cuda/ptx/memory.cuh",
                                        "kernels/cuda/ptx/mma.cuh",
                                        "kernels/cuda/ptx/page_copy_bulk.cuh",
                                        "kernels/cuda/ptx/wgmma.cuh",
                                        "../machine.h"};
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[1024];
        snprintf(path, sizeof path, EMU_SOURCE "/device/%s", files[i]);
        FILE *f = fopen(path, "r");
        if (!f) return NVRTC_ERROR;
        for (int c; (c = getc(f)) != EOF;) hash = (hash ^ (uint32_t)c) * 16777619u;
        fclose(f);
    }
    *major = 99;
    *minor = (int)(hash & 0x7fffffff);
    return 0;
}

/* Writes a file below the program's folder, making the folders above it. */
static int write_file(nvrtc_program p, const char *name, const char *text) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", p->folder, name);
    for (char *slash = path + strlen(p->folder) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    if (!f) return NVRTC_ERROR;
    fputs(text, f);
    return fclose(f) == 0 ? 0 : NVRTC_ERROR;
}

/* Kernels of a text: __global__ ... name(, where launch bounds may stand before the name. */
static void find_kernels(nvrtc_program p, const char *text) {
    for (const char *at = text; (at = strstr(at, "__global__")) != NULL;) {
        const char *name = NULL;
        at += strlen("__global__");
        for (const char *c = at; *c && *c != ')';) {
            if (!isalpha((unsigned char)*c) && *c != '_') {
                c++;
                continue;
            }
            size_t n = strspn(c, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
            name = c;
            c += n;
            if (*c != '(') continue;
            if (strncmp(name, "__launch_bounds__", n) == 0) {
                c = strchr(c, ')');
                if (!c) return;
                c++;
                continue;
            }
            if (p->n_kernels < MAX_KERNELS && n < sizeof p->kernels[0])
                snprintf(p->kernels[p->n_kernels++], sizeof p->kernels[0], "%.*s", (int)n, name);
            break;
        }
    }
}

/* Comments of an enum's body become spaces. */
static void blank_comments(char *body) {
    for (char *from = body; (from = strstr(from, "/*")) != NULL;) {
        char *end = strstr(from, "*/");
        memset(from, ' ', end ? (size_t)(end + 2 - from) : strlen(from));
    }
}

/* The end of an enumerator: a comma that no parentheses hold, or the body's end. */
static char *enumerator_end(char *at) {
    for (int depth = 0; *at && (*at != ',' || depth > 0); at++)
        depth += (*at == '(') - (*at == ')');
    return at;
}

static void put_constants(FILE *out, char *body) {
    char before[64] = "";
    blank_comments(body);
    for (char *at = body, *end; at[strspn(at, " \n")]; at = end) {
        char name[64] = "", next[80] = "0";
        end = enumerator_end(at);
        if (*end) *end++ = '\0';
        sscanf(at, " %63[A-Za-z0-9_]", name);
        const char *value = strchr(at, '=');
        if (before[0]) snprintf(next, sizeof next, "%s + 1", before);
        value = value ? value + 1 : next;
        fprintf(out, "static constexpr emu_int<(long long)(%s)> %s = %s;", value, name, value);
        memcpy(before, name, sizeof before);
    }
}

/* The text with constants of the same types and values for enums that have no name. Clang looks
 * through all operators of C++ for each operand of an enum's type, which took a third of an image's
 * time. NULL: out of memory. */
static char *without_enums(const char *text) {
    static const char begin[] = "enum {";
    char *made = NULL;
    size_t bytes;
    FILE *out = open_memstream(&made, &bytes);
    if (!out) return NULL;
    for (const char *at; (at = strstr(text, begin)) != NULL;) {
        const char *body = at + strlen(begin), *end = strchr(body, '}');
        fwrite(text, 1, (size_t)(at - text), out);
        text = at;
        if (!end || end[1] != ';' || memchr(body, '#', (size_t)(end - body))) {
            fwrite(text, 1, strlen(begin), out);
            text += strlen(begin);
            continue;
        }
        char *copy = strndup(body, (size_t)(end - body));
        if (copy) put_constants(out, copy);
        free(copy);
        text = end + 2;
    }
    fputs(text, out);
    return fclose(out) == 0 ? made : NULL;
}

int nvrtcCreateProgram(nvrtc_program *program, const char *text, const char *name, int n_headers,
                       const char *const *texts, const char *const *names) {
    (void)name;
    nvrtc_program p = calloc(1, sizeof *p);
    const char *base = getenv("TMPDIR");
    if (!p) return NVRTC_ERROR;
    *program = p;
    snprintf(p->folder, sizeof p->folder, "%s/quern-emulated-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(p->folder)) return NVRTC_ERROR;
    for (int i = 0; i < n_headers; i++) {
        char *constants = without_enums(texts[i]);
        const int rc = constants ? write_file(p, names[i], constants) : NVRTC_ERROR;
        free(constants);
        if (rc != 0) return rc;
        find_kernels(p, texts[i]);
    }
    return write_file(p, "unit.cu", text);
}

int nvrtcDestroyProgram(nvrtc_program *program) {
    char command[400];
    nvrtc_program p = *program;
    snprintf(command, sizeof command, "rm -rf '%s'", p->folder);
    if (system(command) != 0) return NVRTC_ERROR;
    free(p->image);
    free(p->log);
    free(p);
    *program = NULL;
    return 0;
}

static char *read_whole(nvrtc_program p, const char *name, size_t *n) {
    char path[300];
    struct stat s;
    snprintf(path, sizeof path, "%s/%s", p->folder, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    *n = 0;
    if (file < 0) return NULL;
    char *bytes = fstat(file, &s) == 0 ? malloc((size_t)s.st_size + 1) : NULL;
    if (bytes && read(file, bytes, (size_t)s.st_size) == s.st_size) *n = (size_t)s.st_size;
    if (bytes) bytes[*n] = '\0';
    close(file);
    return bytes;
}

/* The unit that is compiled: the program's, then an entry for each of its kernels. */
static int write_entries(nvrtc_program p) {
    char text[4096] = "#include \"unit.cu\"\n";
    for (int i = 0; i < p->n_kernels; i++) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "EMU_ENTRY(%s)\n", p->kernels[i]);
    }
    return write_file(p, "entries.cc", text);
}

static int arch_of(int n_options, const char *const *options) {
    for (int i = 0; i < n_options; i++) {
        const char *digits = strstr(options[i], "sm_");
        if (digits) return atoi(digits + 3) * 10;
    }
    return 900;
}

/* Of the options the compiler takes the definitions; each is a word of -D and letters. So is
 * QN_EMU_DEFINE, if it is set: for code that no program has yet. */
static void defines_of(int n_options, const char *const *options, char *text, size_t bytes) {
    const char *more = getenv("QN_EMU_DEFINE");
    size_t n = (size_t)snprintf(text, bytes, "%s%s%s", more ? " '" : "", more ? more : "",
                                more ? "'" : "");
    for (int i = 0; i < n_options && n < bytes; i++)
        if (strncmp(options[i], "-D", 2) == 0)
            n += (size_t)snprintf(text + n, bytes - n, " '%s'", options[i]);
}

int nvrtcCompileProgram(nvrtc_program p, int n_options, const char *const *options) {
    char command[4096], defines[256];
    if (write_entries(p) != 0) return NVRTC_ERROR;
    defines_of(n_options, options, defines, sizeof defines);
    snprintf(command, sizeof command,
             "cd '%s' && exec %s -std=c++17 %s -fPIC -shared -ffp-contract=off "
             "-fno-strict-aliasing -fno-exceptions -fno-rtti -w -D__CUDA_ARCH__=%d "
             "-D__CUDACC__ -D__CUDACC_RTC__%s -include '%s/device/cuda.h' -I '%s/device' -I . "
             "-I '%s' entries.cc -o image.so '%s' -lm >log 2>&1 </dev/null",
             p->folder, EMU_CXX, EMU_FLAGS, arch_of(n_options, options), defines, EMU_SOURCE,
             EMU_SOURCE, EMU_INCLUDE, EMU_LIBRARY);
    int status = system(command);
    p->log = read_whole(p, "log", &p->log_bytes);
    p->image = read_whole(p, "image.so", &p->image_bytes);
    return status == 0 && p->image ? 0 : NVRTC_ERROR;
}

int nvrtcGetCUBINSize(nvrtc_program p, size_t *bytes) {
    *bytes = p->image_bytes + sizeof(uint64_t);
    return 0;
}

int nvrtcGetCUBIN(nvrtc_program p, char *image) {
    uint64_t bytes = p->image_bytes;
    memcpy(image, &bytes, sizeof bytes);
    memcpy(image + sizeof bytes, p->image, p->image_bytes);
    return 0;
}

int nvrtcGetProgramLogSize(nvrtc_program p, size_t *bytes) {
    *bytes = p->log_bytes + 1;
    return 0;
}

int nvrtcGetProgramLog(nvrtc_program p, char *log) {
    memcpy(log, p->log ? p->log : "", p->log_bytes + 1);
    return 0;
}

/* cpu_task.c - which kernel runs a task, the scratch it needs, the isa, the table of rotations. */
#include "kernels/cpu/cpu_kernel.h"

#include <assert.h>
#include <cpuid.h>
#include <math.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef void kernel_fn(const struct cpu_task *t);
typedef size_t scratch_fn(const struct prog_header *program, const struct prog_op *op);

static const struct {
    kernel_fn *run;
    scratch_fn *scratch;
} kernels[N_OP_KINDS] = {
#define CPU_FORM(ID, name)        [OP_##ID] = {cpu_##name, cpu_##name##_scratch},
#define OP(ID, name, target, ...) CPU_FORM_##target(ID, name)
#include "graph/op.def"
};

void cpu_task_run(const struct cpu_task *t) {
    if (t->task->kind == OP_NONE) return;
    assert(t->task->kind < N_OP_KINDS && kernels[t->task->kind].run != NULL); /* program_check */
    kernels[t->task->kind].run(t);
}

size_t cpu_scratch_bytes(const struct prog_header *program) {
    size_t max = 0;
    for (uint64_t i = 0; i < program->section[SECTION_OP].count; i++) {
        const struct prog_op *op = &PROG(program, OP)[i];
        if (op->kind == OP_NONE) continue;
        size_t bytes = kernels[op->kind].scratch(program, op);
        if (bytes > max) max = bytes;
    }
    return (max + 63) & ~(size_t)63;
}

/* ---- rotations ---- */

/* Llama 3's rule: frequencies of long wavelengths are divided by the factor, those of short ones
 * kept, those between the two bounds blended. In floats, as transformers computes it. */
static float llama3_frequency(const struct model_spec *s, float inv) {
    float original = (float)s->rope_original_max;
    float wavelength = (float)(2 * 3.14159265358979323846) / inv;
    if (wavelength > original / s->rope_low_freq_factor) return inv / s->rope_factor;
    if (wavelength < original / s->rope_high_freq_factor) return inv;
    float smooth = (original / wavelength - s->rope_low_freq_factor) /
                   (s->rope_high_freq_factor - s->rope_low_freq_factor);
    return (1 - smooth) * inv / s->rope_factor + smooth * inv;
}

/* Dynamic NTK: the token at a position beyond the original length is turned as if the context ended
 * with it. In floats, as transformers computes it. */
static float dynamic_theta(const struct model_spec *s, uint32_t position) {
    if (position < s->rope_original_max) return s->rope_theta;
    const float length = s->rope_factor * (float)(position + 1) / (float)s->rope_original_max;
    const double dim = spec_rope_dim(s), exponent = dim / (dim - 2.0);
    return s->rope_theta * (float)pow((double)(length - (s->rope_factor - 1)), exponent);
}

/* Angle of pair i per position, for the token at `position`. set: which of the frequencies that
 * ROPE_GIVEN gives. */
static float frequency(const struct model_spec *s, uint32_t i, uint32_t position, int set) {
    if (s->rope_kind == ROPE_GIVEN) return s->rope_given[set][i];
    const float theta = s->rope_kind == ROPE_DYNAMIC ? dynamic_theta(s, position) : s->rope_theta;
    float exponent = (float)(2 * i) / (float)spec_rope_dim(s);
    float inv = 1.0f / (float)pow((double)theta, (double)exponent);
    switch (s->rope_kind) {
    case ROPE_LINEAR: return inv / s->rope_factor;
    case ROPE_LLAMA3: return llama3_frequency(s, inv);
    default: return inv;
    }
}

void cpu_rope_fill(const struct model_spec *spec, uint32_t n_positions, float *cos_out,
                   float *sin_out) {
    const uint32_t half = spec_rope_dim(spec) / 2, n_rows = spec_rope_rows(spec, n_positions);
    const uint32_t first = spec_rope_switch(spec, n_positions); /* position of the second set */
    const float scale = spec->rope_kind == ROPE_GIVEN ? spec->rope_scale : 1;
    for (uint32_t i = 0; i < half; i++) {
        float f = 0;
        for (uint32_t row = 0; row < n_rows; row++) {
            const uint32_t p = row < n_positions ? row : row - n_positions;
            if (p == 0 || p == first || spec->rope_kind == ROPE_DYNAMIC)
                f = frequency(spec, i, p, row >= n_positions || p >= first);
            double angle =
                (double)((float)p * f); /* the product in float, as transformers has it */
            cos_out[(size_t)row * half + i] = (float)cos(angle) * scale;
            sin_out[(size_t)row * half + i] = (float)sin(angle) * scale;
        }
    }
}

/* ---- instruction sets ---- */

enum {
    XSTATE_AVX = 6,           /* XCR0: SSE and AVX registers saved by the system */
    XSTATE_AVX512 = 6 | 0xe0, /* and mask registers, upper halves, upper sixteen */
    XSTATE_TILE = 3 << 17,    /* tile configuration and data */
    XFEATURE_TILEDATA = 18,
    ARCH_REQ_XCOMP_PERM_ = 0x1023, /* arch_prctl: ask for the use of an extended state */
};

struct cpu_features {
    uint32_t xcr0;
    uint32_t ecx1, ebx7, edx7, eax7_1; /* CPUID leaves 1, 7.0, 7.1 */
};

static struct cpu_features features_read(void) {
    struct cpu_features f = {0};
    uint32_t a, b, c, d, high;
    if (!__get_cpuid(1, &a, &b, &f.ecx1, &d)) return f;
    if ((f.ecx1 & bit_OSXSAVE) == 0) return f;
    __asm__ volatile("xgetbv" : "=a"(f.xcr0), "=d"(high) : "c"(0));
    if (__get_cpuid_count(7, 0, &a, &f.ebx7, &c, &f.edx7))
        __get_cpuid_count(7, 1, &f.eax7_1, &b, &c, &d);
    return f;
}

static bool all_set(uint32_t word, uint32_t bits) {
    return (word & bits) == bits;
}

static bool has_avx2(const struct cpu_features *f) {
    return all_set(f->xcr0, XSTATE_AVX) && all_set(f->ecx1, bit_AVX | bit_FMA | bit_F16C) &&
           all_set(f->ebx7, bit_AVX2);
}

static bool has_avx512(const struct cpu_features *f) {
    enum { AVX512_BF16 = 1 << 5 }; /* leaf 7.1 eax */
    return has_avx2(f) && all_set(f->xcr0, XSTATE_AVX512) &&
           all_set(f->ebx7, bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL) &&
           all_set(f->eax7_1, AVX512_BF16);
}

/* Tiles are large: Linux lets a process use them only after it has asked. */
static bool has_amx(const struct cpu_features *f) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 }; /* leaf 7.0 edx */
    if (!has_avx512(f) || !all_set(f->xcr0, XSTATE_TILE) || !all_set(f->edx7, AMX_BF16 | AMX_TILE))
        return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_, XFEATURE_TILEDATA) == 0;
}

const struct cpu_isa *cpu_isa_select(const char *want) {
    struct cpu_features f = features_read();
    const struct {
        const struct cpu_isa *isa;
        bool (*has)(const struct cpu_features *f);
    } best_first[] = {
        {&cpu_isa_amx, has_amx},
        {&cpu_isa_avx512, has_avx512},
        {&cpu_isa_avx2, has_avx2},
        {&cpu_isa_ref, NULL},
    };
    for (size_t i = 0; i < sizeof best_first / sizeof best_first[0]; i++) {
        if (want != NULL && strcmp(want, best_first[i].isa->name) != 0) continue;
        if (best_first[i].has == NULL || best_first[i].has(&f)) return best_first[i].isa;
        if (want != NULL) return NULL;
    }
    return NULL;
}

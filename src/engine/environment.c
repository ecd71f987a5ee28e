/* environment.c - qn_environment: what a report of a problem should say about the machine. */
#include "engine/engine.h"

#include "engine/backend_cuda.h"
#include "runtime/cpu_backend.h"

#include <jansson.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The value of "key : value" in /proc/cpuinfo; "" if there is none. */
static void cpu_name(char *out, size_t n) {
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    out[0] = '\0';
    if (!f) return;
    while (!out[0] && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        snprintf(out, n, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    }
    fclose(f);
}

static json_t *cpu_json(void) {
    char name[256];
    const struct cpu_isa *const all[] = {&cpu_isa_amx, &cpu_isa_avx512, &cpu_isa_avx2,
                                         &cpu_isa_ref};
    const struct cpu_isa *best = cpu_isa_select(NULL);
    json_t *usable = json_array();
    cpu_name(name, sizeof name);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (cpu_isa_select(all[i]->name)) json_array_append_new(usable, json_string(all[i]->name));
    return json_pack("{s:s, s:i, s:s?, s:o}", "name", name, "cores", (int)cpu_backend_cpus(), "isa",
                     best ? best->name : NULL, "usable", usable);
}

static json_t *memory_json(void) {
    json_int_t page = sysconf(_SC_PAGESIZE);
    return json_pack("{s:I, s:I}", "total_bytes", (json_int_t)sysconf(_SC_PHYS_PAGES) * page,
                     "available_bytes", (json_int_t)sysconf(_SC_AVPHYS_PAGES) * page);
}

static json_t *backends_json(void) {
    json_t *o = json_object();
    for (size_t i = 0; i < backend_count(); i++) {
        struct diag d = {0};
        bool can = backend_available(&d, i) == QN_OK;
        json_object_set_new(o, backend_name(i), json_string(can ? "available" : d.message));
    }
    return o;
}

/* The GPU that the CUDA backend would use; null when there is none. */
static json_t *gpu_json(void) {
    struct backend_cuda_facts f;
    if (backend_cuda_facts(NULL, &f) != QN_OK) return json_null();
    const struct cuda_device *v = &f.device;
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:I, s:I, s:s, s:s}", "name", v->name, "arch",
                     f.arch, "sms", v->n_sms, "shared_bytes_per_block", v->shared_bytes, "l2_bytes",
                     v->l2_bytes, "memory_total_bytes", (json_int_t)v->total_bytes,
                     "memory_free_bytes", (json_int_t)f.free_bytes, "driver_cuda", f.driver,
                     "nvrtc", f.nvrtc);
}

int qn_environment(char **json, qn_error *error) {
    struct diag d = {0};
    struct utsname u = {0};
    uname(&u);
    char system[200];
    snprintf(system, sizeof system, "%.60s %.60s %.60s", u.sysname, u.release, u.machine);
    json_t *o = json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "version", QN_VERSION, "compiler",
                          __VERSION__, "system", system, "cpu", cpu_json(), "memory", memory_json(),
                          "backends", backends_json(), "gpu", gpu_json());
    *json = o ? json_dumps(o, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(o);
    return api_return(*json ? QN_OK : fail_nomem(&d, 0, "the report"), &d, error);
}

#include "base/container.h"
#include "base/checked.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PATH = 4096, MAX_LINE = 8192 };

/* A limit of one group; 0: none. */
typedef uint64_t limit_fn(const char *group);

/* ---- files of a group ---- */

/* Reads the numbers at the start of group/file; "max" gives none. Returns how many it read. */
static int read_numbers(const char *group, const char *file, int64_t *out, int most) {
    char path[MAX_PATH + 64];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", group, file);
    FILE *f = fopen(path, "r");
    if (f == NULL) return 0;
    for (long long v; n < most && fscanf(f, "%lld", &v) == 1; n++) out[n] = v;
    fclose(f);
    return n;
}

/* In thousandths of a CPU. */
static uint64_t quota(int64_t quota_us, int64_t period_us) {
    return quota_us > 0 && period_us > 0 && quota_us < INT64_MAX / 1000
               ? MAX((uint64_t)(quota_us * 1000 / period_us), 1u)
               : 0;
}

static uint64_t cpu_v2(const char *group) {
    int64_t v[2];
    return read_numbers(group, "cpu.max", v, 2) == 2 ? quota(v[0], v[1]) : 0;
}

static uint64_t cpu_v1(const char *group) {
    int64_t q, period;
    if (read_numbers(group, "cpu.cfs_quota_us", &q, 1) != 1) return 0;
    return read_numbers(group, "cpu.cfs_period_us", &period, 1) == 1 ? quota(q, period) : 0;
}

static uint64_t bytes_of(const char *group, const char *file) {
    int64_t v;
    return read_numbers(group, file, &v, 1) == 1 && v > 0 ? (uint64_t)v : 0;
}

/* The lower one of two limits. */
static uint64_t lower(uint64_t a, uint64_t b) {
    return a == 0 || (b != 0 && b < a) ? b : a;
}

static uint64_t memory_v2(const char *group) {
    return lower(bytes_of(group, "memory.max"), bytes_of(group, "memory.high"));
}

static uint64_t memory_v1(const char *group) {
    return bytes_of(group, "memory.limit_in_bytes");
}

/* ---- the groups ---- */

/* The lowest limit of `group` and the groups around it, up to the mount, whose path has n_mount
 * bytes. */
static uint64_t limit_upwards(char *group, size_t n_mount, limit_fn *limit) {
    uint64_t least = 0;
    for (;;) {
        least = lower(least, limit(group));
        char *slash = strrchr(group, '/');
        if (strlen(group) <= n_mount || slash == NULL || (size_t)(slash - group) < n_mount)
            return least;
        *slash = '\0';
    }
}

/* Whether `list`, "a,b,c", has the word. */
static bool has_word(const char *list, const char *word) {
    const size_t n = strlen(word);
    for (const char *p = list; p != NULL; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (strncmp(p, word, n) == 0 && strchr(",\n ", p[n]) != NULL) return true;
    return false;
}

/* The process's group in the hierarchy of `controller`, or in version 2's for NULL. */
static bool find_group(const char *root, const char *controller, char path[MAX_PATH]) {
    char name[MAX_PATH], line[MAX_LINE];
    bool found = false;
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *f = fopen(name, "r");
    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL) {
        char *controllers = strchr(line, ':'), *at = controllers ? strchr(controllers + 1, ':') : 0;
        if (at == NULL) continue;
        *at++ = '\0';
        controllers++;
        at[strcspn(at, "\n")] = '\0';
        found = controller == NULL ? *controllers == '\0' : has_word(controllers, controller);
        if (found) snprintf(path, MAX_PATH, "%s", at);
    }
    if (f != NULL) fclose(f);
    return found;
}

/* One line of mountinfo: "id parent device ROOT POINT options ... - TYPE source OPTIONS". */
static bool is_mount(char *line, const char *controller, const char **mount_root,
                     const char **point) {
    char *save, *tail = strstr(line, " - "), *word = strtok_r(line, " ", &save);
    if (tail == NULL) return false;
    for (int i = 1; i < 5 && word != NULL; i++) {
        word = strtok_r(NULL, " ", &save);
        if (i == 3) *mount_root = word;
        if (i == 4) *point = word;
    }
    const char *type = tail + 3, *options = strrchr(type, ' ');
    if (word == NULL || options == NULL) return false;
    return controller == NULL
               ? strncmp(type, "cgroup2 ", 8) == 0
               : strncmp(type, "cgroup ", 7) == 0 && has_word(options + 1, controller);
}

/* The lowest limit in one hierarchy. The mount may show only a part that does not contain the
 * process's group; then the mount's own group is used instead. */
static uint64_t limit_of(const char *root, const char *controller, limit_fn *limit) {
    char name[MAX_PATH], line[MAX_LINE], path[MAX_PATH], group[3 * MAX_PATH];
    uint64_t least = 0;
    if (!find_group(root, controller, path)) return 0;
    snprintf(name, sizeof name, "%s/proc/self/mountinfo", root);
    FILE *f = fopen(name, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *mount_root = NULL, *point = NULL;
        if (!is_mount(line, controller, &mount_root, &point)) continue;
        const size_t n = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
        const bool inside = strncmp(path, mount_root, n) == 0 &&
                            (path[n] == '/' || path[n] == '\0') && strstr(path, "/..") == NULL;
        const size_t n_mount = (size_t)snprintf(group, sizeof group, "%s%s", root, point);
        const char *below = inside && strcmp(path + n, "/") != 0 ? path + n : "";
        snprintf(group + n_mount, sizeof group - n_mount, "%s", below);
        least = lower(least, limit_upwards(group, n_mount, limit));
    }
    if (f != NULL) fclose(f);
    return least;
}

uint32_t container_cpus(const char *root) {
    const uint64_t least = lower(limit_of(root, NULL, cpu_v2), limit_of(root, "cpu", cpu_v1));
    if (least == 0) return 0;
    /* Rounded down: all workers wait for one that is throttled for the rest of a period. */
    return (uint32_t)MIN(MAX(least / 1000, 1u), (uint64_t)UINT32_MAX);
}

uint64_t container_memory(const char *root) {
    return lower(limit_of(root, NULL, memory_v2), limit_of(root, "memory", memory_v1));
}

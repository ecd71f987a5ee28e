/* Control groups as containers have them, in a folder of our own. */
#include "base/checked.h"
#include "base/container.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define V1(controller, root)                                                                       \
    "32 31 0:29 " root " /sys/fs/cgroup/" controller " rw,relatime - cgroup cgroup rw," controller \
    "\n"
#define V2(root) "41 31 0:38 " root " /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n"

static void write_text(const char *root, const char *path, const char *text) {
    char name[512];
    snprintf(name, sizeof name, "%s%s", root, path);
    for (char *p = name + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(name, 0700);
        *p = '/';
    }
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void limits_of_groups(void **state) {
    (void)state;
    static const struct {
        const char *what, *cgroup, *mountinfo;
        const char *files[6][2];
        uint32_t cpus;
        uint64_t memory;
    } cases[] = {
        {"no groups", "", "", {{0}}, 0, 0},
        {"version 2, no limits",
         "0::/\n",
         V2("/"),
         {{"/sys/fs/cgroup/cpu.max", "max 100000\n"}, {"/sys/fs/cgroup/memory.max", "max\n"}},
         0,
         0},
        {"version 2, a container of its own namespace",
         "0::/\n",
         V2("/"),
         {{"/sys/fs/cgroup/cpu.max", "200000 100000\n"},
          {"/sys/fs/cgroup/memory.max", "1073741824\n"},
          {"/sys/fs/cgroup/memory.high", "max\n"}},
         2,
         1 << 30},
        {"version 2, nested: the outer group is the narrow one",
         "0::/pod/box/job\n",
         V2("/"),
         {{"/sys/fs/cgroup/pod/cpu.max", "150000 100000\n"},
          {"/sys/fs/cgroup/pod/box/cpu.max", "400000 100000\n"},
          {"/sys/fs/cgroup/pod/box/job/memory.high", "5000000\n"},
          {"/sys/fs/cgroup/pod/box/memory.max", "4000000\n"}},
         1,
         4000000},
        {"version 2, less than a CPU",
         "0::/\n",
         V2("/"),
         {{"/sys/fs/cgroup/cpu.max", "10000 100000\n"}},
         1,
         0},
        {"version 1, docker: the mount shows the container's group",
         "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n",
         V1("memory", "/docker/abc") V1("cpu,cpuacct", "/docker/abc"),
         {{"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n"},
          {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"},
          {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"}},
         3,
         2147483648u},
        {"version 1, nested, no quota inside",
         "4:memory:/a/b\n1:cpu:/a/b\n",
         V1("memory", "/") V1("cpu", "/"),
         {{"/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n"},
          {"/sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n"},
          {"/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000\n"},
          {"/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "20000\n"},
          {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "7777777\n"},
          {"/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"}},
         2,
         7777777},
        {"a group outside of what the mount shows",
         "0::/../other\n",
         V2("/"),
         {{"/sys/fs/cgroup/cpu.max", "100000 100000\n"}},
         1,
         0},
        {"both versions: version 2 has no controllers",
         "1:cpu:/x\n0::/y\n",
         V1("cpu", "/") "42 31 0:39 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
         {{"/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "100000\n"},
          {"/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"}},
         1,
         0},
        {"nonsense",
         "x\n::\n0::/\n",
         "1 2 3\n - cgroup2\n" V2("/"),
         {{"/sys/fs/cgroup/cpu.max", "a b\n"}},
         0,
         0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char root[] = "/tmp/quern_container_XXXXXX", command[100];
        assert_non_null(mkdtemp(root));
        write_text(root, "/proc/self/cgroup", cases[i].cgroup);
        write_text(root, "/proc/self/mountinfo", cases[i].mountinfo);
        for (size_t k = 0; k < 6 && cases[i].files[k][0] != NULL; k++)
            write_text(root, cases[i].files[k][0], cases[i].files[k][1]);
        if (container_cpus(root) != cases[i].cpus || container_memory(root) != cases[i].memory)
            fail_msg("%s: %u CPUs, %llu bytes", cases[i].what, container_cpus(root),
                     (unsigned long long)container_memory(root));
        snprintf(command, sizeof command, "rm -rf %s", root);
        assert_int_equal(system(command), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(limits_of_groups)};
    return cmocka_run_group_tests_name("container", tests, NULL, NULL);
}

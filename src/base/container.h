/* container.h - the CPU and memory limits that this process's control groups set.
 *
 * Version 1 has a hierarchy per controller, version 2 one for all. Both nest: the limit of every
 * group from the process's own up to the mount applies. The kernel names the groups:
 * /proc/self/cgroup lists their paths, /proc/self/mountinfo the places where they are mounted.
 */
#ifndef QN_BASE_CONTAINER_H
#define QN_BASE_CONTAINER_H

#include <stdint.h>

/* `root` is a prefix of /proc and of the mounts; "" except in tests. */
uint32_t container_cpus(const char *root);   /* whole CPUs of the quota, at least 1; 0: no quota */
uint64_t container_memory(const char *root); /* bytes; 0: no limit */

#endif

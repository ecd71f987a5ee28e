/* container.h - what the control groups around this process let it use.
 *
 * Version 1 has a hierarchy per controller, version 2 one for all; both nest, and every group on
 * the way from the process's own up to the mount counts. The groups are found as the kernel names
 * them: /proc/self/cgroup has the paths, /proc/self/mountinfo where they are to be seen.
 */
#ifndef QN_BASE_CONTAINER_H
#define QN_BASE_CONTAINER_H

#include <stdint.h>

/* `root` stands before /proc and the mounts; "" but in tests. */
uint32_t container_cpus(const char *root);   /* whole CPUs of the quota, at least 1; 0: no quota */
uint64_t container_memory(const char *root); /* bytes; 0: no limit */

#endif

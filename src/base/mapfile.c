#include "base/mapfile.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BELOW = 1 << 20, N_GUARDS = 4096 };

/* The kernel reports only by SIGBUS that a mapped page has lost its file, and a signal handler
 * belongs to the process. So this table is the library's one piece of mutable file-scope state. The
 * handler maps a zero page in place of the missing one, marks the map as torn, and lets the read go
 * on. A fault outside the guarded maps goes to the handler that was installed before. */
static struct guard {
    _Atomic uintptr_t start; /* 0: free */
    _Atomic uintptr_t end;
    atomic_bool torn;
} guards[N_GUARDS];
static struct sigaction previous;
static atomic_int installed; /* 0 no, 1 being done, 2 yes */

static void on_sigbus(int signal_number, siginfo_t *info, void *context) {
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < N_GUARDS; i++) {
        uintptr_t start = atomic_load_explicit(&guards[i].start, memory_order_acquire);
        if (start == 0 || at < start || at >= atomic_load(&guards[i].end)) continue;
        uintptr_t page = at & ~(uintptr_t)4095;
        atomic_store(&guards[i].torn, true);
        if (mmap((void *)page, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
            MAP_FAILED)
            return;
    }
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(signal_number, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(signal_number);
    } else {
        signal(SIGBUS, SIG_DFL); /* the fault comes again and ends the process */
    }
}

static void install_handler(void) {
    int expected = 0;
    if (!atomic_compare_exchange_strong(&installed, &expected, 1)) return;
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous);
    atomic_store(&installed, 2);
}

/* Takes a free guard for [start, start + bytes); -1 when the table is full (then unguarded). */
static int guard_take(uintptr_t start, uint64_t bytes) {
    install_handler();
    for (int i = 0; i < N_GUARDS; i++) {
        uintptr_t none = 0;
        if (!atomic_compare_exchange_strong(&guards[i].start, &none, UINTPTR_MAX)) continue;
        atomic_store(&guards[i].torn, false);
        atomic_store(&guards[i].end, start + bytes);
        atomic_store(&guards[i].start, start);
        return i;
    }
    return -1;
}

static int read_whole(struct diag *d, int fd, const char *path, struct mapfile *f) {
    unsigned char *data = malloc(f->bytes + 1);
    if (data == NULL) return fail_nomem(d, f->bytes + 1, path);
    uint64_t at = 0;
    while (at < f->bytes) {
        ssize_t n = pread(fd, data + at, f->bytes - at, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            free(data);
            return fail(d, QN_EIO, "%s: %s", path,
                        n < 0 ? strerror(errno) : "the file shrank while it was read");
        }
        at += (uint64_t)n;
    }
    data[f->bytes] = '\0';
    f->data = data;
    return QN_OK;
}

static int map_whole(struct diag *d, int fd, const char *path, struct mapfile *f) {
    void *data = mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return fail(d, QN_EIO, "%s: %s", path, strerror(errno));
    f->data = data;
    f->mapped = true;
    f->guard = guard_take((uintptr_t)data, f->bytes);
    return QN_OK;
}

/* What a clone without Git LFS leaves in place of a large file. */
static bool is_lfs_pointer(const struct mapfile *f) {
    static const char first[] = "version https://git-lfs";
    return f->bytes >= sizeof first - 1 && memcmp(f->data, first, sizeof first - 1) == 0;
}

int mapfile_open(struct diag *d, const char *path, uint64_t max_bytes, struct mapfile *f) {
    *f = (struct mapfile){.guard = -1};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail(d, errno == ENOENT ? QN_ENOENT : QN_EIO, "%s: %s", path, strerror(errno));
    struct stat s;
    int rc;
    if (fstat(fd, &s) != 0)
        rc = fail(d, QN_EIO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(s.st_mode))
        rc = fail(d, QN_EIO, "%s: not a regular file", path);
    else if (max_bytes != 0 && (uint64_t)s.st_size > max_bytes)
        rc = fail(d, QN_ELIMIT, "%s: %lld bytes, the limit is %llu", path, (long long)s.st_size,
                  (unsigned long long)max_bytes);
    else {
        f->bytes = (uint64_t)s.st_size;
        rc = f->bytes < READ_BELOW ? read_whole(d, fd, path, f) : map_whole(d, fd, path, f);
    }
    close(fd);
    if (rc == QN_OK && is_lfs_pointer(f)) {
        mapfile_close(f);
        rc = fail(d, QN_EFORMAT,
                  "%s: a Git LFS pointer, not the file itself; fetch it with: git lfs pull", path);
    }
    return rc;
}

void mapfile_close(struct mapfile *f) {
    if (f->guard >= 0) atomic_store(&guards[f->guard].start, 0);
    if (f->mapped)
        munmap((void *)f->data, f->bytes);
    else
        free((void *)f->data);
    *f = (struct mapfile){.guard = -1};
}

bool mapfile_torn(const struct mapfile *f) {
    return f->guard >= 0 && atomic_load(&guards[f->guard].torn);
}

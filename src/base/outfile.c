#include "base/outfile.h"

#include "base/strbuf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail_io(struct diag *d, const char *path) {
    return fail(d, QN_EIO, "%s: %s", path, strerror(errno));
}

static bool write_all(int fd, const char *bytes, size_t n) {
    while (n > 0) {
        const ssize_t done = write(fd, bytes, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return false;
        bytes += done;
        n -= (size_t)done;
    }
    return true;
}

static int write_through(struct diag *d, const char *path, const void *bytes, size_t n) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return fail_io(d, path);
    const bool written = write_all(fd, bytes, n);
    const int reason = errno;
    if (close(fd) == 0 && written) return QN_OK;
    if (!written) errno = reason;
    return fail_io(d, path);
}

/* old: the existing file; NULL: there is none. */
static int replace(struct diag *d, const char *path, const struct stat *old, const void *bytes,
                   size_t n) {
    struct strbuf temporary = {0};
    strbuf_printf(&temporary, "%s.tmp%ld", path, (long)getpid());
    TRY(strbuf_status(d, &temporary));
    const int fd = open(temporary.text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, old ? 0600 : 0666);
    int rc = fd < 0 ? fail_io(d, path) : QN_OK;
    if (rc == QN_OK) {
        bool done = write_all(fd, bytes, n) && (!old || fchmod(fd, old->st_mode & 07777) == 0);
        done = close(fd) == 0 && done;
        if (!done || rename(temporary.text, path) != 0) {
            rc = fail_io(d, path);
            unlink(temporary.text);
        }
    }
    strbuf_fini(&temporary);
    return rc;
}

int outfile_write(struct diag *d, const char *path, const void *bytes, size_t n) {
    struct stat old;
    if (lstat(path, &old) != 0)
        return errno == ENOENT ? replace(d, path, NULL, bytes, n) : fail_io(d, path);
    const bool plain = S_ISREG(old.st_mode) && old.st_nlink == 1 && old.st_uid == geteuid();
    if (!plain) return write_through(d, path, bytes, n);
    if (access(path, W_OK) != 0) return fail_io(d, path);
    return replace(d, path, &old, bytes, n);
}

int outfile_check(struct diag *d, const char *path) {
    struct stat old;
    if (stat(path, &old) == 0) {
        errno = EISDIR;
        return S_ISDIR(old.st_mode) || access(path, W_OK) != 0 ? fail_io(d, path) : QN_OK;
    }
    if (errno != ENOENT || path[0] == '\0') return fail_io(d, path);
    const char *slash = strrchr(path, '/');
    struct strbuf folder = {0};
    if (slash == NULL)
        strbuf_str(&folder, ".");
    else
        strbuf_add(&folder, path, (size_t)(slash - path) + 1);
    int rc = strbuf_status(d, &folder);
    if (rc == QN_OK && access(folder.text, W_OK | X_OK) != 0) rc = fail_io(d, path);
    strbuf_fini(&folder);
    return rc;
}

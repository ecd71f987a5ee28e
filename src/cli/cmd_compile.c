/* cmd_compile.c - quern compile: the compiled program as a file. */
#include "base/clock.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int copy_to_stdout(int fd) {
    char buffer[1 << 16];
    ssize_t n;
    int rc = lseek(fd, 0, SEEK_SET) == 0 ? EXIT_OK : cli_error("stdout: %s", strerror(errno));
    while (rc == EXIT_OK && (n = read(fd, buffer, sizeof buffer)) != 0)
        rc = n > 0 ? cli_write(buffer, (size_t)n) : cli_error("stdout: %s", strerror(errno));
    return rc;
}

/* Compiles to memory first, so that stdout gets all of the program or nothing. */
static int to_stdout(const qn_engine_params *params) {
    char path[64];
    qn_error error;
    if (isatty(STDOUT_FILENO))
        return cli_usage("-o -: stdout is a terminal, and a program is not text");
    const int fd = memfd_create("program", MFD_CLOEXEC);
    if (fd < 0) return cli_error("memory for the program: %s", strerror(errno));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int rc = qn_compile(params, path, &error) == QN_OK ? copy_to_stdout(fd) : cli_failed(&error);
    close(fd);
    return rc;
}

int cmd_compile(const struct options *o) {
    const char *path = options_text(o, OPT_OUTPUT, NULL);
    qn_engine_params params;
    qn_error error;
    if (!path) return cli_usage("where to? Give a file with -o");
    int rc = cli_engine_params(o, &params);
    if (rc != EXIT_OK) return rc;
    cli_note(o, "compiling %s", params.model);
    uint64_t start = clock_ns();
    const bool standard = strcmp(path, "-") == 0;
    if (standard) rc = to_stdout(&params);
    if (!standard && qn_compile(&params, path, &error) != QN_OK) rc = cli_failed(&error);
    if (rc != EXIT_OK) return rc;
    cli_note(o, "wrote %s in %.2f s", standard ? "stdout" : path,
             (double)(clock_ns() - start) * 1e-9);
    return EXIT_OK;
}

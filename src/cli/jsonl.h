/* jsonl.h - JSON lines: one object per line, read one at a time. */
#ifndef QN_CLI_JSONL_H
#define QN_CLI_JSONL_H

#include "cli/cli.h"

#include <stdio.h>

struct jsonl {
    FILE *file;
    const char *name; /* for messages */
    char *line;       /* getline's */
    size_t n, capacity;
    unsigned long number; /* of the line read last, counted from 1 */
};

/* Opens a file; "-" is stdin. Prints the error; returns an exit code. */
int jsonl_open(struct jsonl *j, const char *path);
void jsonl_close(struct jsonl *j);

/* Reads the next line that is not empty into j->line[0, n), without a byte order mark; n is 0 at
 * the end. Prints the error; returns an exit code. */
int jsonl_line(struct jsonl *j);
/* Reads the next object, which the caller releases; NULL at the end. Skips empty lines and a byte
 * order mark. Errors: QN_EIO; QN_EFORMAT without the line's number, after which the next call goes
 * on with the next line. */
int jsonl_read(struct diag *d, struct jsonl *j, json_t **object);
/* The same; prints the error, with file and line; returns an exit code. */
int jsonl_next(struct jsonl *j, json_t **object);
/* Prints what is wrong with the line that was read last; returns EXIT_FAILED. */
int jsonl_fail(const struct jsonl *j, const char *message);

/* Makes an array of token ids from a JSON array of integers; released with free(). `what` names the
 * array. Errors: QN_EINVAL, QN_ENOMEM. */
int jsonl_ids(struct diag *d, const char *what, const json_t *array, int32_t **ids, size_t *n);

#endif

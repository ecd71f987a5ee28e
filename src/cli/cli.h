/* cli.h - code that the commands share: exit codes, messages, engine and sampling parameters from
 * options, progress on a terminal, JSON on stdout.
 *
 * stdout carries the result and nothing else. Everything for people goes to stderr through
 * cli_note (silenced by --quiet) or cli_error.
 */
#ifndef QN_CLI_CLI_H
#define QN_CLI_CLI_H

#include "base/status.h" /* before quern.h, whose codes are the same */

#include "cli/options.h"
#include "quern.h"

#include <jansson.h>
#include <stdbool.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_UNDECIDED = 3 };

/* One per command of options.def, in its own file cmd_<id>.c: runs it, returns the exit code. */
#define COMMAND(ID, id, name, positional, summary, examples) int cmd_##id(const struct options *o);
#include "cli/options.def"

/* Prints "quern: ..." on stderr; returns EXIT_FAILED. */
int cli_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same for wrong usage; returns EXIT_USAGE. */
int cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints a library call's failure; returns EXIT_FAILED. */
int cli_failed(const qn_error *error);
/* Prints a line for people on stderr, unless --quiet. */
void cli_note(const struct options *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Flushes stdout; EXIT_FAILED and a message if the output could not be written. */
int cli_finish(void);

/* Prints one line of compact JSON in one write, so that a stopped program leaves no part of a line,
 * and releases `value` (NULL: out of memory). */
int cli_print_json(json_t *value);
/* Writes bytes to stdout past its buffer, which must be empty. */
int cli_write(const void *bytes, size_t n);
/* A JSON string; bytes that are not UTF-8 become U+FFFD. NULL: out of memory. */
json_t *cli_json_text(const char *text, size_t n);
bool cli_wants_json(const struct options *o);
/* A JSON real with enough digits to restore the float; null if x is not finite. */
json_t *cli_json_float(float x);

/* Sets engine parameters from the options that open engines. EXIT_USAGE without a model. */
int cli_engine_params(const struct options *o, qn_engine_params *params);
/* Opens the engine; reports on stderr what will run, on which device and with how much memory. */
int cli_open_engine(const struct options *o, const qn_engine_params *params, qn_engine **engine);
/* Calls qn_profile, and reports before what will run where. Returns its code. */
int cli_profile(const struct options *o, const qn_engine_params *params,
                const qn_profile_params *profile, char **json, char **html, qn_error *error);
/* With --trace: writes the trace of what ran so far. EXIT_OK without it. */
int cli_write_trace(const struct options *o, qn_engine *engine);
/* Reads a whole file ("-": stdin) of at most 256 MiB; *text is released with free(). Prints the
 * error; returns an exit code. */
int cli_read_file(const char *path, char **text, size_t *n);

/* "35.2 MB": bytes for people, in a buffer of the caller. */
const char *cli_bytes(uint64_t bytes, char buffer[32]);

#endif

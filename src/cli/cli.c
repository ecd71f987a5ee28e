/* cli.c - see cli.h. */
#include "cli/cli.h"
#include "cli/progress.h"

#include "base/checked.h"
#include "base/outfile.h"
#include "base/strbuf.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- messages ----------------------------------------------------------------------------- */

static void say(const char *fmt, va_list args) {
    char line[2048];
    vsnprintf(line, sizeof line, fmt, args);
    status_one_line(line);
    fprintf(stderr, "quern: %s\n", line);
}

int cli_error(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say(fmt, args);
    va_end(args);
    return EXIT_FAILED;
}

int cli_usage(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say(fmt, args);
    va_end(args);
    return EXIT_USAGE;
}

int cli_failed(const qn_error *error) {
    return cli_error("%s", error->message);
}

void cli_note(const struct options *o, const char *fmt, ...) {
    if (options_flag(o, OPT_QUIET)) return;
    va_list args;
    va_start(args, fmt);
    say(fmt, args);
    va_end(args);
}

int cli_finish(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return EXIT_OK;
    return cli_error("stdout: %s", strerror(errno));
}

bool cli_wants_json(const struct options *o) {
    return strcmp(options_text(o, OPT_FORMAT, "text"), "json") == 0;
}

json_t *cli_json_float(float x) {
    char shortest[32];
    snprintf(shortest, sizeof shortest, "%.9g", (double)x);
    return isfinite(x) ? json_real(strtod(shortest, NULL)) : json_null();
}

int cli_print_json(json_t *value) {
    if (!value) return cli_error("out of memory");
    size_t flags = JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9);
    char *text = json_dumps(value, flags);
    json_decref(value);
    if (!text) return cli_error("out of memory");
    const size_t n = strlen(text);
    text[n] = '\n'; /* in place of the NUL: the line is written in one piece */
    int rc = cli_finish();
    if (rc == EXIT_OK) rc = cli_write(text, n + 1);
    free(text);
    return rc;
}

int cli_write(const void *bytes, size_t n) {
    const char *at = bytes;
    while (n > 0) {
        const ssize_t done = write(STDOUT_FILENO, at, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return cli_error("stdout: %s", strerror(errno));
        at += done;
        n -= (size_t)done;
    }
    return EXIT_OK;
}

json_t *cli_json_text(const char *text, size_t n) {
    struct strbuf sound = {0};
    while (n > 0) {
        const size_t end = utf8_end(text, n), bad = end < n;
        strbuf_add(&sound, text, end);
        if (bad) strbuf_str(&sound, "\xef\xbf\xbd"); /* U+FFFD */
        text += end + bad;
        n -= end + bad;
    }
    json_t *value = json_stringn_nocheck(strbuf_text(&sound), sound.n);
    strbuf_fini(&sound);
    return value;
}

const char *cli_bytes(uint64_t bytes, char buffer[32]) {
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    double n = (double)bytes;
    size_t unit = 0;
    for (; n >= 999.5 && unit + 1 < COUNT_OF(units); unit++) n /= 1000;
    snprintf(buffer, 32, unit == 0 ? "%.0f %s" : "%.3g %s", n, units[unit]);
    return buffer;
}

/* ---- files -------------------------------------------------------------------------------- */

enum { MAX_TEXT = 256 << 20 };

static int read_stream(FILE *f, const char *name, char **text, size_t *n) {
    size_t capacity = 0;
    for (;;) {
        if (*n + 1 >= capacity) {
            capacity = MAX(capacity * 2, (size_t)4096);
            char *bigger = realloc(*text, capacity);
            if (!bigger) return cli_error("%s: out of memory", name);
            *text = bigger;
        }
        size_t got = fread(*text + *n, 1, capacity - *n - 1, f);
        *n += got;
        (*text)[*n] = '\0';
        if (got == 0) break;
        if (*n > MAX_TEXT) return cli_error("%s: longer than %d bytes", name, MAX_TEXT);
    }
    return ferror(f) ? cli_error("%s: %s", name, strerror(errno)) : EXIT_OK;
}

int cli_read_file(const char *path, char **text, size_t *n) {
    *text = NULL;
    *n = 0;
    bool standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "rb");
    if (!f) return cli_error("%s: %s", path, strerror(errno));
    int rc = read_stream(f, standard ? "stdin" : path, text, n);
    if (!standard) fclose(f);
    if (rc != EXIT_OK) {
        free(*text);
        *text = NULL;
    }
    return rc;
}

/* ---- engine ------------------------------------------------------------------------------- */

enum { TRACE_BYTES = 64 << 20 };

/* A count option as a 32-bit parameter. */
static int count32(const struct options *o, enum option option, uint32_t *out) {
    int64_t n = options_integer(o, option, 0);
    if (n > UINT32_MAX)
        return cli_usage("--%s: %lld is too large", option_table[option].name, (long long)n);
    *out = (uint32_t)n;
    return EXIT_OK;
}

/* Refuses options that have no effect beside another one. */
static int check_effects(const struct options *o) {
    static const struct {
        enum option option, beside;
        const char *value; /* of `beside`; NULL: any */
        const char *why;
    } table[] = {
        {OPT_THREADS, OPT_BACKEND, "cuda", "threads are the CPU's; a GPU has a worker per SM"},
        {OPT_ISA, OPT_BACKEND, "cuda", "instruction sets are the CPU's"},
        {OPT_COMPILE_OPTIONS, OPT_PROGRAM, NULL, "the program is compiled already"},
        {OPT_MAX_NUM_BATCHED_TOKENS, OPT_PROGRAM, NULL, "the program has it already"},
        {OPT_KV_CACHE_DTYPE, OPT_PROGRAM, NULL, "the program has it already"},
    };
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const char *beside = options_text(o, table[i].beside, NULL);
        if (!o->values[table[i].option].given || !beside) continue;
        if (table[i].value && strcmp(beside, table[i].value) != 0) continue;
        return cli_usage("--%s: has no effect beside --%s %s: %s",
                         option_table[table[i].option].name, option_table[table[i].beside].name,
                         beside, table[i].why);
    }
    const char *trace = options_text(o, OPT_TRACE, ""), *page = options_text(o, OPT_HTML, "");
    if (strcmp(trace, "-") == 0 || strcmp(page, "-") == 0)
        return cli_usage("--%s: stdout has the result; name a file",
                         option_table[strcmp(trace, "-") == 0 ? OPT_TRACE : OPT_HTML].name);
    return EXIT_OK;
}

/* Refuses files that could not be written after the work. */
static int check_files(const struct options *o) {
    static const enum option files[] = {OPT_TRACE, OPT_HTML, OPT_OUTPUT};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        const char *path = options_text(o, files[i], "-");
        struct diag d = {0};
        if (strcmp(path, "-") != 0 && outfile_check(&d, path) != QN_OK)
            return cli_error("--%s: %s", option_table[files[i]].name, d.message);
    }
    return EXIT_OK;
}

int cli_engine_params(const struct options *o, qn_engine_params *p) {
    qn_engine_params_init(p);
    int rc = check_effects(o);
    if (rc == EXIT_OK) rc = check_files(o);
    if (rc != EXIT_OK) return rc;
    p->model = options_text(o, OPT_MODEL, NULL);
    p->program = options_text(o, OPT_PROGRAM, NULL);
    bool file_alone =
        o->command == CMD_VERIFY || o->command == CMD_GRAPH || o->command == CMD_EXPLAIN;
    if (!p->model && !(file_alone && p->program))
        return cli_usage("which model? Give a Hugging Face directory: quern %s --model DIR",
                         command_table[o->command].name);
    p->tokenizer = options_text(o, OPT_TOKENIZER, NULL);
    p->load_format = options_text(o, OPT_LOAD_FORMAT, NULL);
    p->backend = options_text(o, OPT_BACKEND, NULL);
    p->isa = options_text(o, OPT_ISA, NULL);
    p->dtype = options_text(o, OPT_DTYPE, NULL);
    p->kv_cache_dtype = options_text(o, OPT_KV_CACHE_DTYPE, NULL);
    p->served_model_name = options_text(o, OPT_SERVED_MODEL_NAME, NULL);
    p->gpu_memory_utilization = options_number(o, OPT_GPU_MEMORY_UTILIZATION, 0);
    if (o->values[OPT_GPU_MEMORY_UTILIZATION].given &&
        !(p->gpu_memory_utilization > 0 && p->gpu_memory_utilization <= 1))
        return cli_usage("--gpu-memory-utilization: want a share above 0 and up to 1");
    p->kv_cache_memory_bytes = (uint64_t)options_integer(o, OPT_KV_CACHE_MEMORY_BYTES, 0);
    p->no_prefix_caching = options_flag(o, OPT_NO_ENABLE_PREFIX_CACHING);
    p->enable_return_routed_experts = options_flag(o, OPT_ENABLE_RETURN_ROUTED_EXPERTS);
    p->max_inter_token_latency_ms = options_number(o, OPT_MAX_INTER_TOKEN_LATENCY_MS, 0);
    if (!(p->max_inter_token_latency_ms >= 0 && p->max_inter_token_latency_ms <= 60000))
        return cli_usage("--max-inter-token-latency-ms: want 0 to 60000");
    p->seed = (uint64_t)options_integer(o, OPT_SEED, 0);
    p->compile_options = options_text(o, OPT_COMPILE_OPTIONS, NULL);
    p->trace_bytes = o->values[OPT_TRACE].given ? TRACE_BYTES : 0;
    rc = count32(o, OPT_MAX_MODEL_LEN, &p->max_model_len);
    if (rc == EXIT_OK) rc = count32(o, OPT_MAX_NUM_SEQS, &p->max_num_seqs);
    if (rc == EXIT_OK) rc = count32(o, OPT_MAX_NUM_BATCHED_TOKENS, &p->max_num_batched_tokens);
    if (rc == EXIT_OK) rc = count32(o, OPT_THREADS, &p->threads);
    return rc;
}

/* The library calls this after the memory plan is made and before any of that memory is
 * allocated. */
static int announce(void *user, const qn_engine_info *info) {
    const struct options *o = user;
    char total[32], weights[32], kv[32], rest[32];
    if (!options_flag(o, OPT_QUIET) && isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
    cli_note(o, "%s: %u layers, %s, on %s: %s", info->model, info->n_layers, info->dtype,
             info->backend, info->device);
    cli_note(
        o,
        "memory %s: weights %s, KV cache %s (%llu positions, for up to %u requests of up to %u), "
        "rest %s",
        cli_bytes(info->total_bytes, total), cli_bytes(info->weight_bytes, weights),
        cli_bytes(info->kv_cache_bytes, kv), (unsigned long long)info->kv_blocks * info->kv_block,
        info->max_num_seqs, info->max_model_len,
        cli_bytes(info->workspace_bytes + info->other_bytes, rest));
    return 0;
}

int cli_open_engine(const struct options *o, const qn_engine_params *params, qn_engine **engine) {
    qn_error error;
    qn_engine_params p = *params;
    struct progress progress;
    p.plan = announce;
    p.plan_user = (void *)(uintptr_t)o;
    progress_attach(&progress, o, &p);
    int rc = qn_engine_open(&p, engine, &error);
    progress_end(&progress);
    return rc == QN_OK ? EXIT_OK : cli_failed(&error);
}

int cli_profile(const struct options *o, const qn_engine_params *params,
                const qn_profile_params *profile, char **json, char **html, qn_error *error) {
    qn_engine_params p = *params;
    struct progress progress;
    p.plan = announce;
    p.plan_user = (void *)(uintptr_t)o;
    progress_attach(&progress, o, &p);
    int rc = qn_profile(&p, profile, json, html, error);
    progress_end(&progress);
    return rc;
}

int cli_write_trace(const struct options *o, qn_engine *engine) {
    const char *path = options_text(o, OPT_TRACE, NULL);
    qn_error error;
    if (!path) return EXIT_OK;
    if (qn_engine_trace_write(engine, path, &error) != QN_OK) return cli_failed(&error);
    cli_note(o, "trace in %s; open it in https://ui.perfetto.dev", path);
    return EXIT_OK;
}

/* cmd_profile.c - quern profile: the account of a decode iteration, as a table, as JSON, and as a
 * page.
 */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static double number(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static long long whole(const json_t *o, const char *key) {
    return (long long)json_integer_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key) {
    return json_string_value(json_object_get(o, key));
}

/* ---- text --------------------------------------------------------------------------------- */

static void print_share(const char *name, double us, double total) {
    printf("  %-18s %8s %10.1f %6.1f %%\n", name, "", us, total > 0 ? 100 * us / total : 0);
}

static void print_account(const json_t *root) {
    double total = number(root, "iteration_us");
    size_t i;
    json_t *op;
    printf("  %-18s %8s %10s %8s %10s %8s %9s\n", "", "tasks", "us", "share", "MB", "GB/s",
           "of floor");
    json_array_foreach(json_object_get(root, "operators"), i, op) {
        double us = number(op, "us");
        printf("  %-18s %8.0f %10.1f %6.1f %%", text(op, "op"), number(op, "tasks"), us,
               total > 0 ? 100 * us / total : 0);
        if (json_is_null(json_object_get(op, "gb_s")))
            putchar('\n');
        else
            printf(" %10.3f %8.2f %7.0f %%\n", number(op, "bytes") * 1e-6, number(op, "gb_s"),
                   number(op, "percent_of_floor"));
    }
    print_share("waiting for tasks", number(root, "wait_us"), total);
    print_share("hand-overs", number(root, "hand_over_us"), total);
    print_share("waking the host", number(root, "wake_us"), total);
    print_share("boundary", number(root, "boundary_us"), total);
    printf("  %-18s %8s %10.1f          %10.3f %8.2f %7.0f %%\n", "one iteration", "", total,
           number(root, "bytes") * 1e-6, total > 0 ? number(root, "bytes") / total * 1e-3 : 0,
           number(root, "percent_of_floor"));
}

/* How even the workers' shares are: over all tasks, and over each operator with at least one task
 * per worker.
 */
static void print_balance(const json_t *root) {
    const double workers = number(root, "n_workers");
    size_t i;
    json_t *op;
    printf("\nbusiest worker over the mean: %.3f in all\n", number(root, "busiest_over_mean"));
    json_array_foreach(json_object_get(root, "operators"), i,
                       op) if (workers > 1 && number(op, "tasks") >= workers)
        printf("  %-18s %6.3f\n", text(op, "op"), number(op, "busiest_over_mean"));
    if (json_object_get(root, "experts_read_per_layer") != NULL)
        printf("experts read by a layer: %.2f\n", number(root, "experts_read_per_layer"));
}

/* The workers that other workers waited for the longest; the JSON form has all workers. */
static void print_workers(const json_t *workers) {
    enum { MOST = 5 };
    size_t i, n = json_array_size(workers), shown[MOST], n_shown = 0;
    for (n_shown = 0; n_shown < n && n_shown < MOST; n_shown++) {
        size_t best = n;
        for (i = 0; i < n; i++) {
            bool seen = false;
            for (size_t k = 0; k < n_shown; k++) seen = seen || shown[k] == i;
            if (!seen && (best == n || number(json_array_get(workers, i), "waited_for_us") >
                                           number(json_array_get(workers, best), "waited_for_us")))
                best = i;
        }
        shown[n_shown] = best;
        const json_t *worker = json_array_get(workers, best);
        printf("  for worker %-9lld %8.1f   in sum over the others\n", whole(worker, "worker"),
               number(worker, "waited_for_us"));
    }
    if (n > MOST) printf("  and %zu more workers\n", n - MOST);
}

static void print_waits(const json_t *root) {
    size_t i;
    json_t *wait, *us;
    const char *who;
    printf("\nwho waited for what, us of every worker\n");
    json_array_foreach(json_object_get(root, "waits"), i, wait) {
        printf("  for %-16s %8.1f  ", text(wait, "for"), number(wait, "us"));
        json_object_foreach(json_object_get(wait, "by"), who, us)
            printf("  %s %.1f", who, json_number_value(us));
        putchar('\n');
    }
    print_workers(json_object_get(root, "waited_for_workers"));
}

static void print_path(const json_t *root) {
    const json_t *path = json_object_get(root, "critical_path");
    const char *kind;
    json_t *us;
    printf("\ncritical path of a typical iteration: %lld tasks, %.1f us, of it\n",
           whole(path, "n_tasks"), number(path, "us"));
    json_object_foreach(json_object_get(path, "by_operator"), kind, us)
        printf("  %-18s %10.1f us\n", kind, json_number_value(us));
    printf("  %-18s %10.1f us\n", "hand-overs", number(path, "hand_over_us"));
}

static void print_losses(const json_t *root) {
    size_t i;
    json_t *loss;
    printf("\nthe largest losses against reading %.3f MB at %.2f GB/s (%.1f us)\n",
           number(root, "bytes") * 1e-6, number(root, "read_floor_gb_s"), number(root, "floor_us"));
    json_array_foreach(json_object_get(root, "losses"), i, loss)
        printf("%3zu. %8.1f us  %s\n", i + 1, number(loss, "us"), text(loss, "why"));
}

/* Bytes that a GPU's loaders had in flight, and pages that were free; nothing for a CPU. */
static void print_ring(const json_t *root) {
    const json_t *ring = json_object_get(root, "ring");
    double n = (double)whole(ring, "n_loaders");
    if (!ring || n < 1) return;
    printf("\nweights on their way: %.3f MB on average, %.1f KB per worker; %.1f pages per worker "
           "free\n",
           number(ring, "bytes_in_flight") * 1e-6, number(ring, "bytes_in_flight") * 1e-3 / n,
           number(ring, "pages_free") / n);
}

static void print_text(const json_t *root) {
    const json_t *trace = json_object_get(root, "trace");
    printf("%s on %s: batch %lld, %lld decode iterations of %.1f us (least disturbed run)\n\n",
           text(root, "model"), text(root, "device"), whole(root, "batch_size"),
           whole(root, "iterations"), number(root, "iteration_us"));
    print_account(root);
    print_balance(root);
    print_waits(root);
    print_path(root);
    print_losses(root);
    print_ring(root);
    printf("\nrecording: %.0f records per iteration", number(trace, "records_per_iteration"));
    if (number(trace, "ns_per_record") > 0)
        printf(", %.0f ns for each that reads the clock: %.2f %% of it",
               number(trace, "ns_per_record"), number(trace, "overhead_percent"));
    printf("; measured, the fastest tenth: %.3f ms per token with, %.3f without (%+.1f %%); %lld "
           "dropped\n",
           number(trace, "ms_per_token_with"), number(trace, "ms_per_token_without"),
           number(trace, "measured_percent"), whole(trace, "dropped"));
}

/* ---- the command -------------------------------------------------------------------------- */

static int write_page(const struct options *o, const char *path, const char *html) {
    FILE *f = fopen(path, "wb");
    bool written = f && fputs(html, f) >= 0;
    if (f && fclose(f) != 0) written = false;
    if (!written) return cli_error("%s: %s", path, strerror(errno));
    cli_note(o, "page in %s", path);
    return EXIT_OK;
}

static int lengths(const struct options *o, qn_profile_params *p) {
    const struct option_value *batch = &o->values[OPT_BATCH_SIZE];
    int64_t in = options_integer(o, OPT_INPUT_LEN, p->input_len);
    int64_t out = options_integer(o, OPT_OUTPUT_LEN, p->output_len);
    if (batch->n > 1) return cli_usage("--batch-size: one size at a time");
    if (batch->n && (batch->integers[0] < 1 || batch->integers[0] > 1024))
        return cli_usage("--batch-size: want 1 to 1024, have %lld", (long long)batch->integers[0]);
    if (in < 1 || in > 1 << 20) return cli_usage("--input-len: want 1 to %d", 1 << 20);
    if (out < 4 || out > 1 << 20) return cli_usage("--output-len: want 4 to %d", 1 << 20);
    if (batch->n) p->batch_size = (uint32_t)batch->integers[0];
    p->input_len = (uint32_t)in;
    p->output_len = (uint32_t)out;
    return EXIT_OK;
}

int cmd_profile(const struct options *o) {
    qn_engine_params params;
    qn_profile_params profile;
    qn_error error;
    char *json = NULL, *html = NULL;
    const char *page = options_text(o, OPT_HTML, NULL);
    qn_profile_params_init(&profile);
    int rc = cli_engine_params(o, &params);
    if (rc == EXIT_OK) rc = lengths(o, &profile);
    if (rc != EXIT_OK) return rc;
    profile.trace = options_text(o, OPT_TRACE, NULL);
    if (cli_profile(o, &params, &profile, &json, page ? &html : NULL, &error) != QN_OK)
        return cli_failed(&error);
    json_t *root = json_loads(json, 0, NULL);
    qn_free(json);
    if (!root || cli_wants_json(o)) {
        rc = cli_print_json(root);
    } else {
        print_text(root);
        json_decref(root);
    }
    if (rc == EXIT_OK && page) rc = write_page(o, page, html);
    qn_free(html);
    return rc;
}

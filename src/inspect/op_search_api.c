/* op_search_api.c - the public functions that search block graphs and draw them. */
#include "engine/api.h"

#include "base/clock.h"
#include "base/checked.h"
#include "base/mapfile.h"
#include "block/op_text.h"
#include "search/search.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void qn_op_search_params_init(qn_op_search_params *params) {
    *params = (qn_op_search_params){
        .struct_size = sizeof *params, .n_tasks = 1, .n_threads = 1, .n_graphs = 16};
}

/* ---- files ---- */

/* A file holds block graphs if its first word is "task", else an operator. */
static bool holds_blocks(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && strchr(" \t\r\n#", text[i]) != NULL) {
        const char *end = text[i] == '#' ? memchr(text + i, '\n', n - i) : NULL;
        if (text[i] == '#' && end == NULL) return false;
        i = end != NULL ? (size_t)(end - text) : i + 1;
    }
    return n - i > 5 && memcmp(text + i, "task ", 5) == 0;
}

static int search_text(struct diag *d, const char *path, const struct mapfile *file,
                       const struct search_params *params, struct search_result *out) {
    struct expr *x = malloc(sizeof *x);
    if (x == NULL) return fail_nomem(d, sizeof *x, "an operator");
    int rc = op_text_parse(d, path, (const char *)file->data, file->bytes, x);
    if (rc == QN_OK) rc = search(d, x, params, out);
    free(x);
    return rc;
}

/* ---- results ---- */

static json_t *graph_json(const struct search_graph *g) {
    struct strbuf text = {0};
    block_write(&g->blocks, &text);
    json_t *o = json_pack("{s:f, s:b, s:I, s:s}", "cost", g->cost, "proved", 1, "tasks",
                          (json_int_t)g->blocks.n_tasks, "text", strbuf_text(&text));
    strbuf_fini(&text);
    return o;
}

static int result_json(struct diag *d, const struct search_result *r, double seconds,
                       struct strbuf *out) {
    json_t *graphs = json_array();
    for (size_t i = 0; i < r->graphs.n; i++)
        json_array_append_new(graphs, graph_json(&r->graphs.items[i]));
    json_t *o = json_pack("{s:o, s:I, s:f, s:I, s:I, s:b}", "graphs", graphs, "states",
                          (json_int_t)r->n_states, "seconds", seconds, "applications",
                          (json_int_t)r->n_applications, "skeletons", (json_int_t)r->n_skeletons,
                          "complete", r->complete);
    char *text = o == NULL ? NULL : json_dumps(o, JSON_COMPACT);
    json_decref(o);
    if (text == NULL) return fail_nomem(d, 0, "the graphs that were found");
    strbuf_str(out, text);
    strbuf_char(out, '\n');
    free(text);
    return QN_OK;
}

static void result_text(const struct search_result *r, double seconds, struct strbuf *out) {
    strbuf_printf(out, "# %zu graphs, all proved; %llu values, %llu skeletons, %.3f s%s\n",
                  r->graphs.n, (unsigned long long)r->n_states, (unsigned long long)r->n_skeletons,
                  seconds, r->complete ? "" : "; a budget ran out: there may be cheaper ones");
    if (r->graphs.n == 0 && r->n_refused > 0)
        strbuf_printf(out, "# %llu were refused; the first: %s\n", (unsigned long long)r->n_refused,
                      r->refused.message);
    for (size_t i = 0; i < r->graphs.n; i++) {
        strbuf_printf(out, "\n# cost %.1f cycles by the model%s\n", r->graphs.items[i].cost,
                      r->graphs.items[i].stable ? "" : "; sums of exponentials have no maximum");
        block_write(&r->graphs.items[i].blocks, out);
    }
}

/* Hands the text over to the caller, or releases it. */
static int finish(int rc, struct diag *d, struct strbuf *out, char **text, qn_error *error) {
    if (rc == QN_OK) rc = strbuf_status(d, out);
    if (rc == QN_OK)
        *text = out->text;
    else
        strbuf_fini(out);
    return api_return(rc, d, error);
}

/* ---- qn_op_search ---- */

static int read_params(struct diag *d, const qn_op_search_params *from, struct search_params *to,
                       bool *json) {
    *to = search_params_default();
    *json = from->format != NULL && strcmp(from->format, "json") == 0;
    if (from->format != NULL && !*json && strcmp(from->format, "text") != 0)
        return fail(d, QN_EINVAL, "format: want text or json, have '%.40s'", from->format);
    if (from->n_tasks < 1 || from->n_tasks > 2 || from->n_threads < 1 || from->n_graphs < 1)
        return fail(d, QN_EINVAL, "tasks: want 1 or 2; threads and graphs: at least 1");
    to->n_tasks = from->n_tasks;
    to->n_threads = from->n_threads;
    to->n_graphs = from->n_graphs;
    return problem_sizes_parse(d, from->sizes != NULL ? from->sizes : "", &to->sizes);
}

int qn_op_search(const char *path, const qn_op_search_params *params, char **text,
                 qn_error *error) {
    struct diag d = {0};
    struct strbuf out = {0};
    struct search_params p;
    struct search_result result;
    struct mapfile file;
    qn_op_search_params defaults;
    const double start = clock_s();
    bool json;
    *text = NULL;
    qn_op_search_params_init(&defaults);
    int rc = read_params(&d, params != NULL ? params : &defaults, &p, &json);
    if (rc == QN_OK) rc = mapfile_open(&d, path, OP_TEXT_MAX_BYTES, &file);
    if (rc != QN_OK) return api_return(rc, &d, error);
    rc = search_text(&d, path, &file, &p, &result);
    mapfile_close(&file);
    if (rc != QN_OK) return api_return(rc, &d, error);
    if (json)
        rc = result_json(&d, &result, clock_s() - start, &out);
    else
        result_text(&result, clock_s() - start, &out);
    search_result_fini(&result);
    return finish(rc, &d, &out, text, error);
}

/* ---- qn_op_show ---- */

/* The graph of the file, or the cheapest one for its operator. */
static int graph_of_file(struct diag *d, const char *path, const struct mapfile *file,
                         struct block_graph *g) {
    struct search_params params = search_params_default();
    struct search_result result;
    if (holds_blocks((const char *)file->data, file->bytes)) {
        TRY(block_read(d, path, (const char *)file->data, file->bytes, g));
        return block_graph_verify(d, g, &params.limits);
    }
    TRY(search_text(d, path, file, &params, &result));
    const int rc = result.graphs.n > 0
                       ? QN_OK
                       : fail(d, QN_EUNSUPPORTED, "%s: no block graph was found%s%s", path,
                              result.n_refused > 0 ? ": " : "", result.refused.message);
    if (rc == QN_OK) *g = result.graphs.items[0].blocks;
    search_result_fini(&result);
    return rc;
}

int qn_op_show(const char *path, const char *format, char **text, qn_error *error) {
    static const struct {
        const char *name;
        void (*write)(const struct block_graph *, struct strbuf *);
    } formats[] = {{"text", block_write}, {"dot", block_dot}, {"html", block_html}};
    struct diag d = {0};
    struct strbuf out = {0};
    struct mapfile file;
    struct block_graph g;
    size_t f = 0;
    *text = NULL;
    while (format != NULL && f < COUNT_OF(formats) && strcmp(formats[f].name, format) != 0) f++;
    if (f == COUNT_OF(formats))
        return api_return(
            fail(&d, QN_EINVAL, "format: want text, dot or html, have '%.40s'", format), &d, error);
    int rc = mapfile_open(&d, path, OP_TEXT_MAX_BYTES, &file);
    if (rc != QN_OK) return api_return(rc, &d, error);
    rc = graph_of_file(&d, path, &file, &g);
    mapfile_close(&file);
    if (rc == QN_OK) formats[f].write(&g, &out);
    return finish(rc, &d, &out, text, error);
}

/* view.c - qn_graph: any stage as text, dot, JSON or a page, and what it changed. */
#include "inspect/view.h"

#include "inspect/view_page.h"
#include "inspect/graph_view.h"

#include <stdlib.h>

/* A program file holds all of its last stage, so no model is needed. */
static int show_file(struct diag *d, const char *path, const struct compile_hook *hook) {
    struct prog_header *program;
    TRY(program_read(d, path, &program));
    int rc = view_program(d, program, hook);
    free(program);
    return rc;
}

int view_graphs(struct diag *d, const qn_engine_params *params, const struct compile_hook *hook) {
    qn_engine_params p;
    const struct backend *backend;
    struct model *model = NULL;
    struct prog_header *program = NULL;
    struct engine_plan plan;
    TRY(engine_params(d, params, &p));
    if (p.program && !p.model) return show_file(d, p.program, hook);
    TRY(backend_find(d, p.backend, &backend));
    int rc = engine_model(d, &p, &model);
    if (rc == QN_OK) rc = engine_program(d, &p, model, backend, hook, NULL, &plan, &program);
    if (rc == QN_OK && p.program) rc = view_program(d, program, hook);
    model_free(model);
    free(program);
    return rc;
}

/* ---- choosing the stage ------------------------------------------------------------------- */

enum { KERNEL = -1, EVENTS = N_TASK_STAGES, LAST = N_TASK_STAGES - 1 };

/* The stage to show, and its view. */
struct wanted {
    int stage; /* KERNEL, enum task_stage, EVENTS */
    bool program_numbers, diff;
    uint32_t n_rows; /* 0: the first variant */
    struct view_scope scope;
    uint32_t n_tasks, n_events; /* of the variants before */
    struct strbuf variants;     /* "1, 2, 4" */
    struct view view, before;
    bool found, has_before;
};

static int find_stage(struct diag *d, const char *name, struct wanted *w) {
    if (!name || strcmp(name, "kernel") == 0) {
        w->stage = KERNEL;
        return QN_OK;
    }
    w->program_numbers =
        strcmp(name, "program") == 0 || strcmp(name, "tasks") == 0 || strcmp(name, "events") == 0;
    w->stage = strcmp(name, "events") == 0 ? EVENTS : LAST;
    if (w->program_numbers) return QN_OK;
    for (w->stage = 0; w->stage < N_TASK_STAGES; w->stage++)
        if (strcmp(name, task_stage_name((enum task_stage)w->stage)) == 0) return QN_OK;
    struct strbuf list = {0};
    for (int s = 0; s < N_TASK_STAGES; s++)
        strbuf_printf(&list, ", %s", task_stage_name((enum task_stage)s));
    fail(d, QN_EINVAL, "stage: no '%s'; there are kernel%s, tasks, events, program", name,
         strbuf_text(&list));
    strbuf_fini(&list);
    return QN_EINVAL;
}

/* A program file keeps what its tables need: the kernel graph and the last task graph. */
static int in_a_file(struct diag *d, const char *name, const struct wanted *w) {
    if (w->diff)
        return fail(d, QN_EINVAL,
                    "diff: a program file holds only the final stage, nothing to compare it with; "
                    "give --model instead of --program");
    if (w->stage == KERNEL || w->stage >= LAST) return QN_OK;
    return fail(d, QN_EINVAL,
                "stage: %s is not in a program file, which holds only the final stage (kernel, %s, "
                "tasks, events, program); give --model instead of --program",
                name, task_stage_name((enum task_stage)LAST));
}

static bool this_variant(const struct wanted *w, uint32_t n_rows) {
    return !w->found && (w->n_rows == 0 || w->n_rows == n_rows);
}

static int on_kernel(void *user, struct diag *d, const struct kgraph *k) {
    struct wanted *w = user;
    strbuf_printf(&w->variants, "%s%u", w->variants.n ? ", " : "", k->n_rows);
    if (!this_variant(w, k->n_rows)) return QN_OK;
    if (w->scope.layer >= (int)k->spec.n_layers)
        return fail(d, QN_EINVAL, "layer: want 0 to %u, have %d", k->spec.n_layers - 1,
                    w->scope.layer);
    if (w->stage == KERNEL) w->found = true;
    if (w->stage == KERNEL) return view_kernel(d, k, &w->scope, &w->view);
    if (!w->diff || w->stage != STAGE_DECOMPOSE) return QN_OK;
    w->has_before = true;
    return view_kernel(d, k, &w->scope, &w->before);
}

static int on_tasks(void *user, struct diag *d, const struct tgraph *g, enum task_stage stage) {
    struct wanted *w = user;
    struct view_scope scope = w->scope;
    bool last = (int)stage == LAST;
    if (w->program_numbers) {
        scope.first_task = w->n_tasks;
        scope.first_event = w->n_events;
    }
    if (last) w->n_tasks += (uint32_t)g->tasks.n;
    if (last) w->n_events += (uint32_t)g->events.n;
    if (!this_variant(w, g->kernel->n_rows)) return QN_OK;
    if (w->stage == EVENTS && last) {
        w->found = true;
        return view_events(d, g, &scope, &w->view);
    }
    if (w->diff && (int)stage == w->stage - 1) {
        w->has_before = true;
        return view_tasks(d, g, stage, &scope, &w->before);
    }
    if ((int)stage != w->stage) return QN_OK;
    w->found = true;
    return view_tasks(d, g, stage, &scope, &w->view);
}

/* ---- output ------------------------------------------------------------------------------- */

static int write_page(struct diag *d, const struct view *v, struct strbuf *out) {
    struct strbuf json = {0};
    view_json(v, &json);
    int rc = strbuf_status(d, &json);
    if (rc == QN_OK) rc = view_page_make(d, "graph", strbuf_text(&json), out);
    strbuf_fini(&json);
    return rc;
}

static int write_view(struct diag *d, const struct wanted *w, const char *format,
                      struct strbuf *out) {
    bool text = strcmp(format, "text") == 0, json = strcmp(format, "json") == 0;
    if (w->diff) {
        if (!w->has_before)
            return fail(d, QN_EINVAL, "diff: there is no stage before %s to compare with",
                        w->view.stage);
        if (!text && !json) return fail(d, QN_EINVAL, "diff: format text or json, not %s", format);
        return text ? view_diff_text(d, &w->before, &w->view, out)
                    : view_diff_json(d, &w->before, &w->view, out);
    }
    if (strcmp(format, "html") == 0) return write_page(d, &w->view, out);
    if (text)
        view_text(&w->view, out);
    else if (json)
        view_json(&w->view, out);
    else if (strcmp(format, "dot") == 0)
        view_dot(&w->view, out);
    else
        return fail(d, QN_EINVAL, "format: want text, dot, json or html, have '%s'", format);
    return strbuf_status(d, out);
}

void qn_graph_params_init(qn_graph_params *params) {
    *params = (qn_graph_params){.struct_size = sizeof *params, .layer = -1};
}

int qn_graph(const qn_engine_params *params, const qn_graph_params *graph, char **text,
             qn_error *error) {
    struct diag d = {0};
    qn_graph_params p;
    qn_engine_params e;
    struct wanted w = {0};
    struct strbuf out = {0};
    struct compile_hook hook = {.kernel = on_kernel, .tasks = on_tasks, .user = &w};
    *text = NULL;
    qn_graph_params_init(&p);
    int rc = api_struct_in(&p, sizeof p, graph)
                 ? find_stage(&d, p.stage, &w)
                 : fail(&d, QN_EINVAL, "qn_graph_params: struct_size is not set");
    if (rc == QN_OK) {
        w.scope.layer = p.layer < 0 ? VIEW_ALL_LAYERS : p.layer;
        w.diff = p.diff != 0;
        w.n_rows = p.n_rows;
        rc = engine_params(&d, params, &e);
    }
    if (rc == QN_OK && e.program) rc = in_a_file(&d, p.stage, &w);
    if (rc == QN_OK) rc = view_graphs(&d, params, &hook);
    if (rc == QN_OK && !w.found)
        rc = fail(&d, QN_EINVAL, "rows: no variant has %u; there are %s", w.n_rows,
                  strbuf_text(&w.variants));
    if (rc == QN_OK) rc = write_view(&d, &w, p.format ? p.format : "text", &out);
    if (rc == QN_OK)
        *text = out.text;
    else
        strbuf_fini(&out);
    view_fini(&w.view);
    view_fini(&w.before);
    strbuf_fini(&w.variants);
    return api_return(rc, &d, error);
}

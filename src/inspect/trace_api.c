/* trace_api.c - qn_engine_trace_write: writes an engine's trace to a file. */
#include "engine/engine.h"
#include "inspect/trace.h"

static int write_trace(struct diag *d, qn_engine *e, const char *path) {
    struct trace trace;
    TRY(engine_trace_wait(d, e));
    TRY(trace_read(d, e->trace, e->program, &trace));
    int rc = trace_write(d, &trace, e->info.served_model_name, path);
    trace_fini(&trace);
    return rc;
}

int qn_engine_trace_write(qn_engine *engine, const char *path, qn_error *error) {
    struct diag d = {0};
    return api_return(write_trace(&d, engine, path), &d, error);
}

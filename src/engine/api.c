/* api.c - the public functions that need no engine, and the helpers of all public functions. */
#include "engine/api.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>

const char *qn_version(void) {
    return QN_VERSION;
}

const char *qn_status_text(int code) {
    return status_text(code);
}

void qn_free(void *p) {
    free(p);
}

const char *qn_finish_reason_text(int finish_reason) {
    switch (finish_reason) {
    case QN_FINISH_STOP: return "stop";
    case QN_FINISH_LENGTH: return "length";
    case QN_FINISH_ABORT: return "abort";
    case QN_FINISH_ERROR: return "error";
    default: return NULL;
    }
}

int api_return(int rc, const struct diag *d, qn_error *error) {
    if (!error) return rc;
    error->code = rc;
    snprintf(error->message, sizeof error->message, "%s",
             rc == QN_OK        ? ""
             : d->code != QN_OK ? d->message
                                : status_text(rc));
    return rc;
}

enum { MAX_STRUCT = 1 << 16 }; /* no struct of any version is larger */

bool api_struct_fits(const void *given, size_t least) {
    size_t size;
    memcpy(&size, given, sizeof size);
    return size >= least && size <= MAX_STRUCT;
}

bool api_struct_in(void *full, size_t full_size, const void *given) {
    size_t size;
    memcpy(&size, given, sizeof size);
    if (!api_struct_fits(given, sizeof size)) return false;
    memcpy(full, given, MIN(size, full_size));
    memcpy(full, &full_size, sizeof full_size);
    return true;
}

void api_struct_out(void *given, const void *full, size_t full_size) {
    size_t size;
    memcpy(&size, given, sizeof size);
    memcpy((char *)given + sizeof size, (const char *)full + sizeof size,
           MIN(size, full_size) - sizeof size);
}

/* api_check.c - nothing at run time: the error codes of quern.h and of base/status.def are the same
 * list, or this file does not compile. */
#include "quern.h"

#define STATUS(name, number, text)                                                                 \
    _Static_assert(QN_##name == (number), "quern.h and status.def disagree about QN_" #name);
#include "base/status.def"
#undef STATUS

_Static_assert(sizeof(qn_error) == sizeof(int32_t) + 1000, "qn_error mirrors struct diag");

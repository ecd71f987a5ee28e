/* api_check.c - nothing at run time: quern.h agrees with base/status.def and base/sampling.def, or
 * this file does not compile. */
#include "quern.h"

#define STATUS(name, number, text)                                                                 \
    _Static_assert(QN_##name == (number), "quern.h and status.def disagree about QN_" #name);
#include "base/status.def"
#undef STATUS

/* The members of qn_sampling_params have the types of their kinds in base/sampling.def. */
#define TYPE_NUMBER   float
#define TYPE_ABOVE    float
#define TYPE_INT      int32_t
#define TYPE_COUNT    uint32_t
#define TYPE_OPTIONAL uint32_t
#define TYPE_SEED     uint64_t
#define TYPE_FLAG     int
#define TYPE_TEXTS    const char *const *
#define TYPE_IDS      const int32_t *
#define TYPE_BIAS     const qn_logit_bias *
#define SAMPLING(ID, name, kind, ...)                                                              \
    _Static_assert(_Generic(((qn_sampling_params *)0)->name, TYPE_##kind : 1, default : 0),        \
                   "quern.h and sampling.def disagree about the type of " #name);
#include "base/sampling.def"

/* ... and as many elements as it says. */
enum {
#define SAMPLING(...)
#define SAMPLING_LIST(ID, name, kind, low, high, ...) MOST_##ID = high,
#include "base/sampling.def"
};
_Static_assert((int)MOST_STOP == (int)QN_MAX_STOP &&
                   (int)MOST_STOP_TOKEN_IDS == (int)QN_MAX_STOP_TOKEN_IDS &&
                   (int)MOST_LOGIT_BIAS == (int)QN_MAX_LOGIT_BIAS,
               "quern.h and sampling.def disagree about the lengths of lists");

_Static_assert(sizeof(qn_error) == sizeof(int32_t) + 1000, "qn_error mirrors struct diag");

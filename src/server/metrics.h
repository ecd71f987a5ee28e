/* metrics.h - the counters and histograms of metrics.def, for /metrics. The event loop owns them.
 */
#ifndef QN_SERVER_METRICS_H
#define QN_SERVER_METRICS_H

#include "base/strbuf.h"

#include <stdint.h>

enum metric_counter {
#define COUNTER(ID, name, about) COUNTER_##ID,
#include "server/metrics.def"
#undef COUNTER
    N_COUNTERS
};

enum metric_histogram {
#define HISTOGRAM(ID, name, buckets, about) HISTOGRAM_##ID,
#include "server/metrics.def"
#undef HISTOGRAM
    N_HISTOGRAMS
};

enum { METRICS_MAX_BUCKETS = 24 };

struct metrics {
    uint64_t counters[N_COUNTERS];
    struct {
        uint64_t counts[METRICS_MAX_BUCKETS + 1]; /* by bucket; the last: above all */
        uint64_t n;
        double sum;
    } histograms[N_HISTOGRAMS];
};

void metrics_add(struct metrics *m, enum metric_counter counter, uint64_t n);
void metrics_observe(struct metrics *m, enum metric_histogram histogram, double x);
/* labels: "model_name=\"tiny\",engine=\"0\"". */
void metrics_print(const struct metrics *m, const char *labels, struct strbuf *b);
/* Numbers of one kind ("gauge", "counter"). A name may include a label, as "a{state=\"b\"}"; names
 * of one family must be neighbors. */
struct metric_value {
    const char *name, *about;
    double x;
};
void metrics_print_values(const struct metric_value *values, size_t n, const char *kind,
                          const char *labels, struct strbuf *b);

#endif

/* metrics.c - see metrics.h. */
#include "server/metrics.h"

#include "base/checked.h"

#include <string.h>

static const double bounds_SECONDS[] = {50e-6, 100e-6, 250e-6, 500e-6, 1e-3,   2.5e-3, 5e-3, 10e-3,
                                        25e-3, 50e-3,  100e-3, 250e-3, 500e-3, 1,      2.5,  5,
                                        10,    30,     60,     120,    300,    600};
static const double bounds_TOKENS[] = {1,   2,   5,   10,  20,  50,  100, 200, 500, 1e3,
                                       2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6};

static const struct {
    const char *name, *about;
} counter_table[N_COUNTERS] = {
#define COUNTER(ID, name, about) {name, about},
#include "server/metrics.def"
#undef COUNTER
};

static const struct {
    const char *name, *about;
    const double *bounds;
    size_t n_bounds;
} histogram_table[N_HISTOGRAMS] = {
#define HISTOGRAM(ID, name, buckets, about)                                                        \
    {name, about, bounds_##buckets, COUNT_OF(bounds_##buckets)},
#include "server/metrics.def"
#undef HISTOGRAM
};

void metrics_add(struct metrics *m, enum metric_counter counter, uint64_t n) {
    m->counters[counter] += n;
}

void metrics_observe(struct metrics *m, enum metric_histogram histogram, double x) {
    size_t bucket = 0;
    while (bucket < histogram_table[histogram].n_bounds &&
           x > histogram_table[histogram].bounds[bucket])
        bucket++;
    m->histograms[histogram].counts[bucket]++;
    m->histograms[histogram].n++;
    m->histograms[histogram].sum += x;
}

static void describe(struct strbuf *b, const char *name, size_t n, const char *kind,
                     const char *about) {
    strbuf_printf(b, "# HELP %.*s %s\n# TYPE %.*s %s\n", (int)n, name, about, (int)n, name, kind);
}

void metrics_print_values(const struct metric_value *values, size_t n, const char *kind,
                          const char *labels, struct strbuf *b) {
    for (size_t i = 0; i < n; i++) {
        const char *name = values[i].name;
        const size_t family = strcspn(name, "{"), all = strlen(name);
        if (i == 0 || strncmp(values[i - 1].name, name, family + 1) != 0)
            describe(b, name, family, kind, values[i].about);
        /* "a{state="b"}" without its end, or "a" */
        strbuf_printf(b, "%.*s%s%s} %.15g\n", (int)(family < all ? all - 1 : all), name,
                      family < all ? "," : "{", labels, values[i].x);
    }
}

static void print_counters(const struct metrics *m, const char *labels, struct strbuf *b) {
    struct metric_value values[N_COUNTERS];
    for (size_t i = 0; i < N_COUNTERS; i++)
        values[i] = (struct metric_value){counter_table[i].name, counter_table[i].about,
                                          (double)m->counters[i]};
    metrics_print_values(values, N_COUNTERS, "counter", labels, b);
}

static void print_histogram(const struct metrics *m, size_t i, const char *labels,
                            struct strbuf *b) {
    const char *name = histogram_table[i].name;
    uint64_t below = 0;
    describe(b, name, strlen(name), "histogram", histogram_table[i].about);
    for (size_t k = 0; k < histogram_table[i].n_bounds; k++) {
        below += m->histograms[i].counts[k];
        strbuf_printf(b, "%s_bucket{le=\"%.12g\",%s} %llu\n", name, histogram_table[i].bounds[k],
                      labels, (unsigned long long)below);
    }
    strbuf_printf(b, "%s_bucket{le=\"+Inf\",%s} %llu\n%s_sum{%s} %.12g\n%s_count{%s} %llu\n", name,
                  labels, (unsigned long long)m->histograms[i].n, name, labels,
                  m->histograms[i].sum, name, labels, (unsigned long long)m->histograms[i].n);
}

void metrics_print(const struct metrics *m, const char *labels, struct strbuf *b) {
    print_counters(m, labels, b);
    for (size_t i = 0; i < N_HISTOGRAMS; i++) print_histogram(m, i, labels, b);
}

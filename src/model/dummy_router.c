#include "model/dummy_router.h"

#include <math.h>

enum { HALVINGS = 50 };
static const double MOST = 0.45; /* largest share of tokens that choose one expert */

/* The share of tokens that choose the expert of a rank, if the first one has `share`. */
static double share_of(double share, uint32_t rank) {
    return fmin(share / (rank + 1.0), MOST);
}

/* The first expert's share at which each token chooses top_k experts. */
static double first_share(uint32_t n, uint32_t top_k) {
    double low = 0, high = (double)n * n;
    for (int i = 0; i < HALVINGS; i++) {
        const double share = (low + high) / 2;
        double sum = 0;
        for (uint32_t r = 0; r < n; r++) sum += share_of(share, r);
        if (sum < top_k)
            low = share;
        else
            high = share;
    }
    return high;
}

/* The number that a share p < 1/2 of normally distributed numbers exceeds. */
static double quantile(double p) {
    double low = 0, high = 10;
    for (int i = 0; i < HALVINGS; i++) {
        const double x = (low + high) / 2;
        if (0.5 * erfc(x * 0.70710678118654752) > p)
            low = x;
        else
            high = x;
    }
    return high;
}

static uint32_t common_divisor(uint32_t a, uint32_t b) {
    return b == 0 ? a : common_divisor(b, a % b);
}

void dummy_router_scales(uint32_t n, uint32_t top_k, float *scale) {
    const double share = first_share(n, top_k), least = quantile(MOST);
    uint32_t step = n * 5 / 8 | 1;
    while (common_divisor(step, n) != 1) step += 2;
    for (uint32_t r = 0; r < n; r++) {
        const uint32_t expert = (uint32_t)((uint64_t)r * step % n);
        scale[expert] = (float)(least / quantile(share_of(share, r)));
    }
}

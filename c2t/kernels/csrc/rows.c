/* Log-sum-exp, the most probable tokens and the entropy of next-token logits; see rows.py. */

#include "c2t.h"
#include "top_k.h"
#include "vectors.h"

/* W logits from x on; -inf in place of those beyond the end. */
static inline vector some(const float *x, long left) {
    if (left >= W) return READ(x);
    float lanes[W];
    for (long i = 0; i < W; i++) lanes[i] = i < left ? x[i] : -INFINITE;
    return AT(lanes);
}

/* Bits of a float as an integer of the same order. */
static inline integers order_of(vector x) {
    integers bits = (integers)(x + 0.0f); /* one zero */
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

static long at_least(const float *x, long vocabulary, int32_t bound) {
    integers count = {0};
    for (long i = 0; i < vocabulary; i += W) count -= order_of(some(x + i, vocabulary - i)) >= bound;
    long all = 0;
    for (int i = 0; i < W; i++) all += count[i];
    return all;
}

/* The m-th largest logit, m < vocabulary, by bisection on the order of floats. */
static float quantile(const float *x, long vocabulary, long m) {
    int64_t low = INT32_MIN, high = INT32_MAX; /* at least m are >= low, fewer are >= high + 1 */
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (at_least(x, vocabulary, (int32_t)middle) >= m) low = middle;
        else high = middle - 1;
    }
    union { int32_t bits; float value; } threshold = {(int32_t)low ^ (((int32_t)low >> 31) & 0x7fffffff)};
    return threshold.value;
}

/* Rows of contiguous logits. m < vocabulary: -1 for all tokens, 0 for no entropy (NaN). value, token: (rows, k). */
void rank_rows(const float *logits, long rows, long vocabulary, long k, long m, int64_t *token, float *value,
               float *entropy, float *log_norm, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long r = 0; r < rows; r++) {
        const float *x = logits + r * vocabulary;
        float peak = peak_of(x, vocabulary), bound = -INFINITE;
        long above = 0;
        if (m > 0) bound = quantile(x, vocabulary, m);
        integers nans = {0}, higher = {0};
        vector sum = {0}, sum_of_all = {0}, weighted = {0};
        for (long i = 0; i < vocabulary; i += W) {
            vector some_x = some(x + i, vocabulary - i), less = some_x - peak;
            vector p = choose(some_x > -INFINITE, exponential(less), (vector){0});
            nans |= some_x != some_x;
            sum_of_all += p;
            integers counted = bound > -INFINITE ? some_x > bound : some_x > -INFINITE;
            sum += choose(counted, p, (vector){0});
            weighted += choose(counted, p * less, (vector){0});
            higher -= counted;
        }
        int broken = 0;
        for (int i = 0; i < W; i++) broken |= nans[i] != 0, above += higher[i];
        double all = total(sum_of_all), of_most = total(sum), mean = total(weighted);
        double log_all = __builtin_log(all);
        if (bound > -INFINITE) { /* of equal logits at the bound, as many as fit */
            double less = (double)bound - peak, p = __builtin_exp(less) * (m - above);
            of_most += p, mean += p * less;
        }
        log_norm[r] = broken ? __builtin_nanf("") : peak == -INFINITE ? peak : (float)(peak + log_all);
        /* -sum p (less - log_all) with p = e^less / all */
        entropy[r] = broken || !m ? __builtin_nanf("") : (float)((of_most * log_all - mean) / all);
        top_k(x, vocabulary, k, value + r * k, token + r * k);
        for (long i = 0; i < k; i++) value[r * k + i] -= log_norm[r];
    }
}

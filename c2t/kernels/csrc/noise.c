/* Logits of a draft with the noise of the target's samples; see noise.py. */

#include "c2t.h"
#include "random.h"
#include "vectors.h"

#define PART 256 /* tokens whose random numbers are made before any of them is used */

/* log(x) of positive numbers, to about 2 units in the last place: their exponent, and a polynomial between sqrt(1/2)
   and sqrt(2). */
static inline vector logarithm(vector x) {
    const vector zero = {0};
    integers bits = (integers)x;
    vector n = __builtin_convertvector((bits >> 23) - 126, vector), m = (vector)((bits & 0x007fffff) | 0x3f000000);
    integers low = m < 0.707106781f;
    n -= choose(low, zero + 1.0f, zero), m += choose(low, m, zero), m -= 1.0f;
    vector square = m * m, y = zero + 7.0376836292e-2f;
    y = y * m - 1.1514610310e-1f;
    y = y * m + 1.1676998740e-1f;
    y = y * m - 1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f;
    y = y * m - 1.6668057665e-1f;
    y = y * m + 2.0000714765e-1f;
    y = y * m - 2.4999993993e-1f;
    y = y * m + 3.3333331174e-1f;
    y = y * m * square - n * 2.12194440e-4f - square * 0.5f;
    return m + y + n * 0.693359375f;
}

/* Gumbel noise of random numbers u, of which these are the upper 32 bits: -log(-log(1 - u)). What wins has a small u,
   whose logarithm a rounded 1 - u would not give. */
static inline vector gumbel(words high) {
    vector u = (__builtin_convertvector(high, vector) + 0.5f) * 0x1p-32f;
    vector rest = (__builtin_convertvector(~high, vector) + 0.5f) * 0x1p-32f;
    vector small = u + u * u * (0.5f + u * (1.0f / 3 + u * 0.25f));
    return -logarithm(choose(u < 0.015625f, small, -logarithm(rest)));
}

/* Add the noise of tokens ids[0 .. count) (NULL: of 0 and on) to their logits; an id of -1 is none. */
static void add_to(float *logits, const int64_t *ids, long count, float temperature, uint64_t key) {
    uint32_t high[PART] __attribute__((aligned(64)));
    float last[W];
    for (long from = 0; from < count; from += PART) {
        long many = from + PART < count ? PART : count - from, i = 0;
        for (long j = 0; j < many; j++) high[j] = keyed(key, ids ? ids[from + j] : from + j) >> 32;
        for (; i + W <= many; i += W) AT(logits + from + i) += gumbel(*(const words *)(high + i)) * temperature;
        if (i == many) continue;
        for (long j = many; j < i + W; j++) high[j] = 0;
        AT(last) = gumbel(*(const words *)(high + i)) * temperature;
        for (long j = i; j < many; j++) logits[from + j] += last[j - i];
    }
}

/* Logits (rows, vocabulary + oov_count): of tokens `ids`, NULL for all, then of oov_ids[text[r]], -1 for none.
   position: of the sampled token; temperature, stream: of each text. */
void add_noise(float *logits, long rows, long vocabulary, const int64_t *ids, const int64_t *oov_ids, long oov_count,
               const int64_t *text, const int64_t *position, const float *temperature, const int64_t *stream,
               int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (rows > 1)
    for (long r = 0; r < rows; r++) {
        float *its = logits + r * (vocabulary + oov_count);
        if (temperature[text[r]] == 0) continue;
        uint64_t key = key_of_sample((uint64_t)stream[text[r]], position[r]);
        add_to(its, ids, vocabulary, temperature[text[r]], key);
        add_to(its + vocabulary, oov_ids + text[r] * oov_count, oov_count, temperature[text[r]], key);
    }
}

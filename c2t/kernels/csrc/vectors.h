/* Vectors of floats as the compiler has them for this machine, and what the kernels do with them. */

#pragma once
#include <stdint.h>

#if defined(__AVX512F__)
#define W 16 /* floats of a vector */
#else
#define W 8
#endif

typedef float vector __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint16_t bf16s __attribute__((vector_size(2 * W), aligned(2), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * W), aligned(4), may_alias));

#define AT(pointer) (*(vector *)(pointer))
#define READ(pointer) (*(const vector *)(pointer))
#define INFINITE __builtin_inff()

/* Lanes of two vectors by their numbers, those of b after those of a. GCC before 12 has not what Clang has. */
#ifdef __clang__
#define LANES(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define LANES(a, b, ...) __builtin_shuffle(a, b, (integers){__VA_ARGS__})
#endif

/* W numbers in bf16. */
static inline vector widened(const uint16_t *numbers) {
    return (vector)(__builtin_convertvector(*(const bf16s *)numbers, words) << 16);
}

static inline float total(vector v) {
    float lanes[W];
    AT(lanes) = v;
    for (int half = W / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

/* The first halves of segments of so many lanes, `by` lanes further: one vector's and the other's in turns. */
#define PAIR(l, by) (l) + (by), (l) + (by) + W
#define QUAD(l, by) (l) + (by), (l) + 1 + (by), (l) + (by) + W, (l) + 1 + (by) + W
#define FOUR(l) (l), (l) + 1, (l) + 2, (l) + 3
#if W == 16
#define EIGHTS(by) FOUR(by), FOUR(4 + (by)), FOUR(16 + (by)), FOUR(20 + (by))
#define FOURS(by) FOUR(by), FOUR(16 + (by)), FOUR(8 + (by)), FOUR(24 + (by))
#define TWOS(by) QUAD(0, by), QUAD(4, by), QUAD(8, by), QUAD(12, by)
#define ONES(by) PAIR(0, by), PAIR(2, by), PAIR(4, by), PAIR(6, by), PAIR(8, by), PAIR(10, by), PAIR(12, by), PAIR(14, by)
#else
#define FOURS(by) FOUR(by), FOUR(8 + (by))
#define TWOS(by) QUAD(0, by), QUAD(4, by)
#define ONES(by) PAIR(0, by), PAIR(2, by), PAIR(4, by), PAIR(6, by)
#endif
#define SUMS(a, b, HALVES, by) (LANES(a, b, HALVES(0)) + LANES(a, b, HALVES(by)))

/* The vector of the totals of W vectors. A step adds the halves of each segment of lanes, as `total` does, and puts
   those of two vectors side by side. */
static inline __attribute__((always_inline)) vector totals(vector *v) {
#if W == 16
    for (int i = 0; i < 8; i++) v[i] = SUMS(v[i], v[i + 8], EIGHTS, 8);
#endif
    for (int i = 0; i < 4; i++) v[i] = SUMS(v[i], v[i + 4], FOURS, 4);
    for (int i = 0; i < 2; i++) v[i] = SUMS(v[i], v[i + 2], TWOS, 2);
    return SUMS(v[0], v[1], ONES, 1);
}

#if W == 16
/* Rows i and i + s of 16: lanes that stand across the diagonal of a square of 2 s change places. */
#define LOWER(l, s) ((l) & (s) ? 16 + (l) - (s) : (l))
#define UPPER(l, s) ((l) & (s) ? 16 + (l) : (l) + (s))
#define FOUR_OF(OF, l, s) OF(l, s), OF(l + 1, s), OF(l + 2, s), OF(l + 3, s)
#define ALL_OF(OF, s) FOUR_OF(OF, 0, s), FOUR_OF(OF, 4, s), FOUR_OF(OF, 8, s), FOUR_OF(OF, 12, s)
#define EXCHANGE(s)                                                                                               \
    for (int i = 0; i < 16; i++)                                                                                  \
        if (!(i & s)) {                                                                                           \
            vector a = v[i], b = v[i + s];                                                                        \
            v[i] = LANES(a, b, ALL_OF(LOWER, s)), v[i + s] = LANES(a, b, ALL_OF(UPPER, s));                       \
        }

/* Turn the columns of 16 vectors into vectors, in place. */
static inline __attribute__((always_inline)) void transpose(vector *v) { EXCHANGE(8) EXCHANGE(4) EXCHANGE(2) EXCHANGE(1) }
#endif

static inline float greatest(vector v) {
    float lanes[W];
    AT(lanes) = v;
    for (int half = W / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    return lanes[0];
}

/* Lanes of a where `where` is set, of b elsewhere. */
static inline vector choose(integers where, vector a, vector b) {
    return (vector)((where & (integers)a) | (~where & (integers)b));
}

/* e^x to about 2 units in the last place: 2^n times a polynomial on [-ln(2)/2, ln(2)/2]. */
static inline vector exponential(vector x) {
    const vector zero = {0};
    x = choose(x < 88.0f, x, zero + 88.0f);
    x = choose(x > -87.0f, x, zero - 87.0f);
    vector n = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: what stays of the sum is rounded to a whole number */
    n -= 12582912.0f;
    x = x - n * 0.693359375f;
    x = x + n * 2.12194440e-4f;
    vector y = zero + 1.9875691500e-4f;
    y = y * x + 1.3981999507e-3f;
    y = y * x + 8.3334519073e-3f;
    y = y * x + 4.1665795894e-2f;
    y = y * x + 1.6666665459e-1f;
    y = y * x + 5.0000001201e-1f;
    y = y * x * x + x + 1.0f;
    return (vector)((integers)y + (__builtin_convertvector(n, integers) << 23));
}

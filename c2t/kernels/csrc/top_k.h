/* The largest logits of a row. */

#pragma once
#include "vectors.h"

#define PART 128 /* logits whose maximum is looked at first */

static vector greatest_lanes(const float *x, long count) {
    vector peak = READ(x);
    for (long i = W; i < count; i += W) peak = choose(READ(x + i) > peak, READ(x + i), peak);
    return peak;
}

static float peak_of(const float *x, long count) {
    float peak = x[0];
    long whole = count / W * W;
    if (whole) {
        vector peaks = greatest_lanes(x, whole);
        for (int i = 0; i < W; i++) peak = peaks[i] > peak ? peaks[i] : peak;
    }
    for (long i = whole; i < count; i++) peak = x[i] > peak ? x[i] : peak;
    return peak;
}

/* Insert a token after all that are at least as probable. */
static void insert(float *value, int64_t *token, long count, float x, int64_t id) {
    long rank = count;
    for (; rank > 0 && value[rank - 1] < x; rank--) value[rank] = value[rank - 1], token[rank] = token[rank - 1];
    value[rank] = x, token[rank] = id;
}

/* The k largest, equal ones by lowest id. */
static void top_k(const float *x, long vocabulary, long k, float *value, int64_t *token) {
    for (long i = 0; i < k; i++) insert(value, token, i, x[i], i);
    for (long from = k; k && from < vocabulary; from += PART) {
        long to = from + PART < vocabulary ? from + PART : vocabulary;
        if (peak_of(x + from, to - from) <= value[k - 1]) continue;
        for (long i = from; i < to; i++)
            if (x[i] > value[k - 1]) insert(value, token, k - 1, x[i], i);
    }
}

/* One logit, from an LM head as torch stores it. */

#pragma once
#include "vectors.h"

/* lm_head: all tokens' rows of `hidden` numbers, a multiple of W, in bf16 if `is_bf16`. */
static float logit_of(int64_t token, const float *state, const void *lm_head, long is_bf16, long hidden) {
    vector sum = {0};
    for (long i = 0, at = token * hidden; i < hidden; i += W, at += W) {
        vector weight = is_bf16 ? widened((const uint16_t *)lm_head + at) : READ((const float *)lm_head + at);
        sum += READ(state + i) * weight;
    }
    return total(sum);
}

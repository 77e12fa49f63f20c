/* Logits of an LM head in 4 bits, of which the largest are computed anew; see rescored.py. */

#include "c2t.h"
#include "top_k.h"
#include "lm_head.h"

#define MOST 64 /* logits of a row that are computed anew */

/* Replace the `count` largest logits of each row, at most MOST and the vocabulary's tokens. Rows begin `stride` behind each other. states: (rows, hidden).
   lm_head, is_bf16: see lm_head.h; bias: NULL if it has none. */
void rescore(float *logits, long rows, long stride, long vocabulary, long count, const float *states, long hidden,
            const void *lm_head, long is_bf16, const float *bias, int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long r = 0; r < rows; r++) {
        float value[MOST], *own = logits + r * stride;
        int64_t token[MOST];
        top_k(own, vocabulary, count, value, token);
        for (long i = 0; i < count; i++) {
            int64_t t = token[i];
            own[t] = logit_of(t, states + r * hidden, lm_head, is_bf16, hidden) + (bias ? bias[t] : 0);
        }
    }
}

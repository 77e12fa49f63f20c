/* Logits of an LM head in 4 bits, of which the largest are computed again, exactly; see rescored.py. */

#include "c2t.h"
#include "top_k.h"
#include "lm_head.h"

#define MOST 64 /* rescored logits of a row */

/* Replace the `count` largest logits of each row, at most MOST and the vocabulary's tokens. stride: from one row to the
   next. states: (rows, hidden).
   lm_head, is_bf16: see lm_head.h; bias: NULL if it has none. */
void rescore(float *logits, long rows, long stride, long vocabulary, long count, const float *states, long hidden,
            const void *lm_head, long is_bf16, const float *bias, int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long r = 0; r < rows; r++) {
        float value[MOST], *x = logits + r * stride;
        int64_t token[MOST];
        top_k(x, vocabulary, count, value, token);
        for (long i = 0; i < count; i++) {
            int64_t t = token[i];
            x[t] = logit_of(t, states + r * hidden, lm_head, is_bf16, hidden) + (bias ? bias[t] : 0);
        }
    }
}

/* Logits of out-of-vocabulary tokens; see oov_tokens.py. */

#include "c2t.h"
#include "lm_head.h"

/* Write logits of a text's out-of-vocabulary tokens after the `vocabulary` ones of each row: of states (rows, hidden)
   of texts `text`, whose tokens are ids (texts, count), -1 for none. lm_head: all tokens' rows of `hidden` numbers,
   a multiple of W, in bf16 if `is_bf16`. */
void add_oov_tokens(const float *states, const int64_t *text, long rows, long hidden, const void *lm_head, long is_bf16,
                    const int64_t *ids, long count, float *logits, long vocabulary, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < count; i++)
        for (long r = 0; r < rows; r++) { /* states of a text stand together, so a token's row is still in the cache */
            int64_t token = ids[text[r] * count + i];
            float *logit = logits + r * (vocabulary + count) + vocabulary + i;
            *logit = token < 0 ? -INFINITE : logit_of(token, states + r * hidden, lm_head, is_bf16, hidden);
        }
}

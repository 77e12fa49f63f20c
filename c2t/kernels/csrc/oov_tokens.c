/* Logits of the tokens that only some texts have; see oov_tokens.py. */

#include "c2t.h"
#include "lm_head.h"

/* Write logits of a text's own tokens behind the `vocabulary` ones of each row: of states (rows, hidden) of texts `text`, whose `own` tokens are
   ids (texts, own), -1 for none. lm_head: all tokens' rows of `hidden` numbers, a multiple of W, in bf16 if `is_bf16`. */
void add_oov_tokens(const float *states, const int64_t *text, long rows, long hidden, const void *lm_head, long is_bf16,
                    const int64_t *ids, long own, float *logits, long vocabulary, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < own; i++)
        for (long r = 0; r < rows; r++) { /* states of a text stand together, so a token's row is still in the cache */
            int64_t token = ids[text[r] * own + i];
            float *logit = logits + r * (vocabulary + own) + vocabulary + i;
            *logit = token < 0 ? -INFINITE : logit_of(token, states + r * hidden, lm_head, is_bf16, hidden);
        }
}

/* Logits without the tokens that a constraint forbids; see masks.py. */

#include "c2t.h"
#include "masks.h"

#include <math.h>

/* Forbid those of the tokens ids[0 .. count) (NULL: of 0 and on; -1 is none) that the mask lacks. Returns how many are
   left. */
static long forbid(float *x, const int64_t *ids, long count, const uint32_t *mask) {
    long left = 0;
    for (long i = 0; i < count; i++) {
        int64_t token = ids ? ids[i] : i;
        int allowed = token >= 0 && allows(mask, token) && x[i] != -INFINITY;
        left += allowed;
        if (!allowed) x[i] = -INFINITY;
    }
    return left;
}

/* Let the tokens be equally probable; -1 is none. */
static void make_equal(float *x, const int64_t *ids, long count) {
    for (long i = 0; i < count; i++) x[i] = ids && ids[i] < 0 ? -INFINITY : 0;
}

/* Forbid what the mask lacks; where that is every token, all are equally probable. */
void mask_row(float *logits, long vocabulary, const int64_t *ids, const int64_t *oov_ids, long oov_count,
              const void *mask) {
    long left = forbid(logits, ids, vocabulary, mask) + forbid(logits + vocabulary, oov_ids, oov_count, mask);
    if (left) return;
    make_equal(logits, ids, vocabulary);
    make_equal(logits + vocabulary, oov_ids, oov_count);
}

/* mask: of each of the rows of logits, whose text is `text`; NULL for none. */
void mask_rows(float *logits, long rows, long vocabulary, const int64_t *ids, const int64_t *oov_ids, long oov_count,
               const int64_t *text, const int64_t *mask, int threads) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
    for (long i = 0; i < rows; i++)
        if (mask[i])
            mask_row(logits + i * (vocabulary + oov_count), vocabulary, ids, oov_ids + text[i] * oov_count, oov_count,
                     (const void *)mask[i]);
}

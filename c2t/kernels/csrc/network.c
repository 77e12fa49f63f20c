/* The confidence of a classifier with one hidden layer in each of some nodes; see network.py. */

#include "c2t.h"
#include "vectors.h"

#include <math.h>

/* Input of W nodes from number `from` on, of which there are `some`. */
static vector input_of(const network *n, const void *column, long input, long from, long some) {
    float lanes[W] = {0};
    for (long i = 0; i < some; i++) {
        lanes[i] = n->whole[input] ? (float)((const int64_t *)column)[from + i] : ((const float *)column)[from + i];
        if (n->exps[input]) lanes[i] = expf(lanes[i]);
    }
    return AT(lanes);
}

/* columns: one for each input, of `count` numbers. A node's confidence is the same among any others. */
void confidences(const network *n, const void *const *columns, long count, float *confidence) {
    for (long from = 0; from < count; from += W) {
        long some = count - from < W ? count - from : W;
        vector x[n->inputs], logit = {0};
        for (long i = 0; i < n->inputs; i++) x[i] = input_of(n, columns[i], i, from, some);
        for (long u = 0; u < n->units; u++) {
            vector unit = (vector){0} + n->hidden_bias[u];
            for (long i = 0; i < n->inputs; i++) unit += x[i] * n->hidden_weight[u * n->inputs + i];
            /* Unlike a maximum this lets NaN through, so that a node without an input has no confidence. */
            logit += choose(unit < 0.0f, (vector){0}, unit) * n->output_weight[u];
        }
        for (long i = 0; i < some; i++) confidence[from + i] = 1 / (1 + expf(-(logit[i] + *n->output_bias)));
    }
}

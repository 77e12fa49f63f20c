/* The walk along trees in which the target takes its most probable tokens; see greedy.py. */

#include "vectors.h"

#define PART 1024 /* logits whose maximum is found before any of them is looked at by itself */

/* The first of the largest logits; *largest is NaN where one of them is. */
static long most_probable(const float *x, long vocabulary, float *largest) {
    long part = 0;
    float peak = -INFINITE;
    integers nans = {0};
    int broken = 0;
    for (long from = 0; from < vocabulary; from += PART) {
        long to = from + PART < vocabulary ? from + PART : vocabulary, i = from;
        vector peaks = (vector){0} - INFINITE;
        for (; i + W <= to; i += W) {
            vector some = READ(x + i);
            peaks = choose(some > peaks, some, peaks);
            nans |= some != some;
        }
        float most = greatest(peaks);
        for (; i < to; i++) most = x[i] > most ? x[i] : most, broken |= x[i] != x[i];
        if (most > peak) peak = most, part = from;
    }
    for (int i = 0; i < W; i++) broken |= nans[i] != 0;
    *largest = broken ? __builtin_nanf("") : peak;
    while (part + 1 < vocabulary && x[part] < peak) part++;
    return part;
}

/* Trees (rows, slots): the logits after slot s of row r begin at logits + place[r slots + s] * stride. path: (rows,
   slots), -1 beyond its end. length: drafted tokens on it. largest: the logit of the bonus token, or the first one on
   the way that is not finite, where a walk ends. */
void walk(const float *logits, long stride, long vocabulary, const int64_t *place, const int64_t *token,
          const int64_t *parent, const uint8_t *alive, long rows, long slots, int64_t *path, int64_t *length,
          int64_t *bonus, float *largest, int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (rows > 1)
    for (long r = 0; r < rows; r++) {
        long first = r * slots, slot = 0, child = 0, steps = 0;
        while (child < slots) {
            slot = child;
            path[first + steps++] = slot;
            bonus[r] = most_probable(logits + place[first + slot] * stride, vocabulary, largest + r);
            if (!__builtin_isfinite(largest[r])) break;
            for (child = slot + 1; child < slots; child++) /* which stands behind its parent */
                if (alive[first + child] && parent[first + child] == slot && token[first + child] == bonus[r]) break;
        }
        length[r] = steps - 1;
        for (; steps < slots; steps++) path[first + steps] = -1;
    }
}

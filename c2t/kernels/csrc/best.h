/* The order of candidates. */

#pragma once
#include <stdint.h>

/* Places of the `count` best of n nodes of each row: by score, where dead ones have -inf, then by `second` unless it is
   NULL, then by place. */
static void the_best(const float *score, const float *second, const uint8_t *alive, long rows, long n, long count,
                     int64_t *place) {
    for (long r = 0; r < rows; r++, score += n, second += second ? n : 0, alive += n, place += count)
        for (long i = 0, kept = 0; i < n; i++) {
            float own = alive[i] ? score[i] : -__builtin_inff();
            long at = kept;
            for (; at > 0; at--) {
                long other = place[at - 1];
                float its = alive[other] ? score[other] : -__builtin_inff();
                if (!(own > its || (own == its && second && second[i] > second[other]))) break;
                if (at < count) place[at] = other;
            }
            if (at < count) place[at] = i;
            if (kept < count) kept++;
        }
}

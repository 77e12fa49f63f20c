/* Layout of a batch's real slots: where they stand, and the index of each slot's values; see layout.py. */

#include "c2t.h"

/* Find the real ones of (rows, n) slots. Returns S, how many there are. */
long lay_out(const uint8_t *real, long rows, long n, const layout *out) {
    long count = 0;
    for (long r = 0, i = 0; r < rows; r++) {
        long before = count, span = 0;
        for (long s = 0; s < n; s++, i++) {
            if (real[i]) {
                out->number[count] = i, out->row[count] = r, out->slot[count++] = s;
                span = s + 1;
            }
            out->index[i] = count ? count - 1 : 0; /* for a slot that is not real: another one's */
        }
        out->size[r] = count - before, out->span[r] = span;
    }
    return count;
}

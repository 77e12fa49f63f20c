/* Layout of a batch's real slots: where they stand, and which of theirs are a slot's values; see layout.py. */

#include "c2t.h"

/* Find the real ones of (rows, n) slots. Returns S, how many there are. */
long lay_out(const uint8_t *real, long rows, long n, const layout *found) {
    long count = 0;
    for (long r = 0, i = 0; r < rows; r++) {
        long before = count, span = 0;
        for (long s = 0; s < n; s++, i++) {
            if (real[i]) {
                found->number[count] = i, found->row[count] = r, found->slot[count++] = s;
                span = s + 1;
            }
            found->place[i] = count ? count - 1 : 0; /* of one that is not real some other one's */
        }
        found->size[r] = count - before, found->span[r] = span;
    }
    return count;
}

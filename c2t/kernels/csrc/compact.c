/* Moves accepted paths to the ends of their rows; see compact.py. */

#include "c2t.h"

#include <stdlib.h>
#include <string.h>

/* buffers: keys, and `half` slots further values; a head's slots, of `bytes` bytes, begin `head` slots after those of
   the head before. source, target: each row's first slots in the first head. Returns 0, or 1 without memory. */
int compact(char *const *buffers, long layers, long rows, long heads, long half, long head, long bytes,
            const int64_t *index, long steps, const int64_t *count, const int64_t *source, const int64_t *target) {
    char *path = malloc(steps * bytes + 1);
    if (!path) return 1;
    for (long r = 0; r < rows; r++) {
        long first = 0; /* slots up to here are where they belong */
        while (first < count[r] && source[r] + index[r * steps + first] == target[r] + first) first++;
        if (first == count[r]) continue;
        for (long layer = 0; layer < layers; layer++)
            for (long part = 0; part < 2 * heads; part++) {
                char *of = buffers[layer] + (part / heads * half + part % heads * head) * bytes;
                for (long i = first; i < count[r]; i++)
                    memcpy(path + i * bytes, of + (source[r] + index[r * steps + i]) * bytes, bytes);
                memcpy(of + (target[r] + first) * bytes, path + first * bytes, (count[r] - first) * bytes);
            }
    }
    free(path);
    return 0;
}

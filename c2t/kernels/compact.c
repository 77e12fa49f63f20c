/* Moves accepted paths to the ends of their rows; see compact.py. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* buffers: of shape (2, rows, heads, capacity, dim), slots of `bytes` bytes. Returns 0, or 1 without memory. */
int compact(char *const *buffers, long layers, long rows, long heads, long capacity, long bytes, const int64_t *index,
            long steps, const int64_t *count, const int64_t *lengths, long start) {
    char *path = malloc(steps * bytes + 1);
    if (!path) return 1;
    for (long r = 0; r < rows; r++) {
        long first = 0; /* slots up to here are where they belong */
        while (first < count[r] && start + index[r * steps + first] == lengths[r] + first) first++;
        if (first == count[r]) continue;
        for (long layer = 0; layer < layers; layer++)
            for (long half = 0; half < 2; half++)
                for (long h = 0; h < heads; h++) {
                    char *row = buffers[layer] + ((half * rows + r) * heads + h) * capacity * bytes;
                    for (long i = first; i < count[r]; i++)
                        memcpy(path + i * bytes, row + (start + index[r * steps + i]) * bytes, bytes);
                    memcpy(row + (lengths[r] + first) * bytes, path + first * bytes, (count[r] - first) * bytes);
                }
    }
    free(path);
    return 0;
}

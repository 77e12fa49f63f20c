/* Entries of a draft's round: the slots of its trees that were expanded, and what each of them sees; see entries.py. */

#include "c2t.h"

#include <string.h>

/* Append a level's slots (rows, new->count) to the previous entries, whose states are `hidden`. Returns how many of the
   slots are not -1, or -1 if one is outside of the tree. */
long descend(const columns *tree, const int64_t *slots, const int64_t *lengths, const entries *previous,
             const float *hidden, const entries *all, const level *new) {
    long used = 0, F = new->count, E = previous->count, width = new->width;
    for (long i = 0; i < tree->rows * F; i++)
        if (slots[i] >= tree->slots) return -1;
    memset(all->sight, 0, tree->rows * all->count * all->keys);
    for (long r = 0; r < tree->rows; r++) {
        const uint8_t *seen = previous->sight + r * E * previous->keys;
        uint8_t *sees = all->sight + r * all->count * all->keys;
        int64_t *slot = all->slot + r * all->count;
        memcpy(slot, previous->slot + r * E, E * sizeof *slot);
        for (long e = 0; e < E; e++) memcpy(sees + e * all->keys, seen + e * previous->keys, previous->keys);
        new->asked[r] = 0;
        for (long f = 0, i = r * F; f < F; f++, i++) {
            long at = r * tree->slots + (slots[i] < 0 ? 0 : slots[i]), parent = 0;
            for (long e = E; e-- > 0;)
                if (slot[e] == tree->parent[at]) parent = e;
            slot[E + f] = slots[i] < 0 ? -1 : slots[i];
            used += slots[i] >= 0;
            new->asked[r] |= slots[i] >= 0 && tree->alive[at];
            new->token[i] = tree->token[at];
            new->position[i] = lengths[r] + tree->depth[at]; /* a child of the root comes next */
            memcpy(new->features + i * width, hidden + (r * E + parent) * width, width * sizeof *hidden);
            uint8_t *line = sees + (E + f) * all->keys;
            memcpy(line, seen + parent * previous->keys, previous->keys);
            line[previous->keys + f] = 1;
        }
    }
    return used;
}

/* Positions (rows, steps) of text after a prefix, of which row r has lengths[r] of `prefix` keys, and the keys of
   prefix and text that each step sees: sight (rows, steps, prefix + steps). Returns how many steps are real, below
   count[r], or -1 if a row has more keys than `prefix`. */
long follow(const int64_t *lengths, const int64_t *count, long rows, long steps, long prefix, int64_t *position,
            uint8_t *sight) {
    long real = 0, keys = prefix + steps;
    for (long r = 0; r < rows; r++)
        if (lengths[r] < 0 || lengths[r] > prefix) return -1;
    memset(sight, 0, rows * steps * keys);
    for (long r = 0; r < rows; r++)
        for (long i = 0; i < steps; i++) {
            uint8_t *line = sight + (r * steps + i) * keys;
            position[r * steps + i] = lengths[r] + i;
            memset(line, 1, lengths[r]);
            memset(line + prefix, 1, i + 1);
            real += i < count[r];
        }
    return real;
}

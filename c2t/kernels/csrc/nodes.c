/* Operations on all columns of tree nodes; see nodes.py. */

#include "c2t.h"

#include <string.h>

#define WHOLE 4 /* token, parent, depth, rank */
#define REAL 4  /* log_prob, log_joint, entropy, max_log_prob */
enum { TOKEN, PARENT, DEPTH, RANK };
enum { LOG_PROB, LOG_JOINT, ENTROPY, MAX_LOG_PROB };

/* Nodes at `index`, out->slots in a row. new_index: room for a row's slots, where parents are to become indices into
   these, else NULL; a stack has none for as many as a policy may draft. Returns 1 if an index points outside. */
int take(const nodes *from, const int64_t *index, int64_t *new_index, const nodes *out) {
    long n = from->slots, m = out->slots, rows = from->rows;
    for (long i = 0; i < rows * m; i++)
        if (index[i] < 0 || index[i] >= n) return 1;
    for (long r = 0; r < rows; r++) {
        const int64_t *at = index + r * m;
        for (long c = 0; c < WHOLE; c++)
            for (long i = 0; i < m; i++) out->whole[(c * rows + r) * m + i] = from->whole[(c * rows + r) * n + at[i]];
        for (long c = 0; c < REAL; c++)
            for (long i = 0; i < m; i++) out->real[(c * rows + r) * m + i] = from->real[(c * rows + r) * n + at[i]];
        for (long i = 0; i < m; i++) out->score[r * m + i] = from->score[r * n + at[i]];
        for (long i = 0; i < m; i++) out->alive[r * m + i] = from->alive[r * n + at[i]];
        if (!new_index) continue;
        int64_t *parent = out->whole + (PARENT * rows + r) * m;
        memset(new_index, 0, n * sizeof *new_index);
        for (long i = 0; i < m; i++) new_index[at[i]] = i;
        for (long i = 0; i < m; i++) parent[i] = parent[i] < 0 ? -1 : new_index[parent[i]];
    }
    return 0;
}

#define JOIN(type, columns, a, b, out)                                                                            \
    for (long line = 0; line < (columns) * first->rows; line++) {                                                 \
        memcpy((out) + line * (n + m), (a) + line * n, n * sizeof(type));                                         \
        memcpy((out) + line * (n + m) + n, (b) + line * m, m * sizeof(type));                                     \
    }

/* Each row's nodes of the first, then those of the second. */
void join(const nodes *first, const nodes *second, const nodes *out) {
    long n = first->slots, m = second->slots;
    JOIN(int64_t, WHOLE, first->whole, second->whole, out->whole)
    JOIN(float, REAL, first->real, second->real, out->real)
    JOIN(float, 1, first->score, second->score, out->score)
    JOIN(uint8_t, 1, first->alive, second->alive, out->alive)
}

/* K candidates under each of F slots of a row (-1: none), with these tokens and log-probabilities (rows, F, K);
   entropy: (rows, F). Their scores are not written. Returns 1 if a slot is outside. */
int children(const nodes *tree, const int64_t *slots, long F, long K, const int64_t *token, const float *log_prob,
             const float *entropy, const nodes *out) {
    long n = tree->slots, cells = tree->rows * n, news = tree->rows * F * K;
    for (long i = 0; i < tree->rows * F; i++)
        if (slots[i] >= n) return 1;
    for (long i = 0; i < tree->rows * F; i++) {
        long parent = slots[i] < 0 ? 0 : slots[i], above = i / F * n + parent;
        const float *line = log_prob + i * K;
        float most = line[0];
        for (long k = 1; k < K; k++) most = line[k] > most || line[k] != line[k] ? line[k] : most;
        for (long k = 0, cell = i * K; k < K; k++, cell++) {
            out->whole[TOKEN * news + cell] = token[cell];
            out->whole[PARENT * news + cell] = parent;
            out->whole[DEPTH * news + cell] = tree->whole[DEPTH * cells + above] + 1;
            out->whole[RANK * news + cell] = k;
            out->real[LOG_PROB * news + cell] = line[k];
            out->real[LOG_JOINT * news + cell] = tree->real[LOG_JOINT * cells + above] + line[k];
            out->real[ENTROPY * news + cell] = entropy[i];
            out->real[MAX_LOG_PROB * news + cell] = most;
            out->alive[cell] = slots[i] >= 0 && tree->alive[above];
        }
    }
    return 0;
}

/* reach: (rows, slots, slots), zeros at first: slot j is slot i, or one above it. Parents come before children. */
void ancestors(const int64_t *parent, long rows, long slots, uint8_t *reach) {
    for (long r = 0; r < rows; r++)
        for (long i = 0; i < slots; i++) {
            uint8_t *line = reach + (r * slots + i) * slots;
            int64_t above = parent[r * slots + i];
            if (above >= 0 && above < i) memcpy(line, line + (above - i) * slots, above + 1);
            line[i] = 1;
        }
}

/* Indices of the `count` best nodes of each row: by score, where dead ones have -inf, then by `second` unless it is
   NULL, then by index. */
void best(const float *score, const float *second, const uint8_t *alive, long rows, long n, long count, int64_t *index) {
    for (long r = 0; r < rows; r++, score += n, second += second ? n : 0, alive += n, index += count)
        for (long i = 0, chosen = 0; i < n; i++) {
            float value = alive[i] ? score[i] : -__builtin_inff();
            long at = chosen;
            for (; at > 0; at--) {
                long other = index[at - 1];
                float its = alive[other] ? score[other] : -__builtin_inff();
                if (!(value > its || (value == its && second && second[i] > second[other]))) break;
                if (at < count) index[at] = other;
            }
            if (at < count) index[at] = i;
            if (chosen < count) chosen++;
        }
}

/* Which candidates of a level join the trees, whose nodes are `grown` (rows, slots), at most `most` with these. Those
   that join, are alive and not impossible are taken in the order of `best`, `width` of them at most; of these those
   that are to be expanded (all if NULL) go on, unless the tree is full. strict: `width` is a limit like `most`, and
   what limits keep out is counted in `capped`. usable: room for rows * n bytes. index, fits, frontier: (rows, wide).
   Returns how many columns of these are in use; going: whether any node goes on. */
long admit(const float *score, const float *joint, const uint8_t *joins, const uint8_t *alive, const uint8_t *expand,
           long rows, long n, const uint8_t *grown, long slots, long width, long most, int strict, long wide,
           uint8_t *usable, int64_t *index, uint8_t *fits, int64_t *frontier, int64_t *capped, int *going) {
    int64_t count[rows], room[rows];
    long used = 0;
    for (long r = 0; r < rows; r++) {
        long survivors = 0;
        for (long i = r * n; i < (r + 1) * n; i++)
            survivors += usable[i] = joins[i] && alive[i] && joint[i] > -__builtin_inff();
        room[r] = most;
        for (long s = r * slots; s < (r + 1) * slots; s++) room[r] -= grown[s];
        long wanted = survivors < width ? survivors : width;
        count[r] = wanted < room[r] ? wanted : room[r];
        capped[r] = (strict ? survivors : wanted) - count[r];
        if (count[r] > used) used = count[r];
    }
    *going = 0;
    for (long r = 0; r < rows; r++) {
        int64_t *at = index + r * wide;
        best(score + r * n, score == joint ? 0 : joint + r * n, usable + r * n, 1, n, used, at);
        for (long i = 0; i < used; i++) {
            int fit = i < count[r], goes = fit && count[r] < room[r] && (!expand || expand[r * n + at[i]]);
            fits[r * wide + i] = fit;
            frontier[r * wide + i] = goes ? slots + i : -1;
            *going |= goes;
        }
    }
    return used;
}

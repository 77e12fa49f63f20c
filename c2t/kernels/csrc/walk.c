/* The target's tokens, and the walk along trees that accepts them; see walk.py. */

#include "c2t.h"
#include "masks.h"
#include "random.h"
#include "vectors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PEAKS 1024 /* logits whose maximum is computed before any of them is compared */
#define TRIES 3 /* best tokens that are asked for before a mask */
#define CHANCES 256 /* the same for the tokens of a sample */
#define SLACK 1.0001f /* more than `exponential`, and numbers rounded to 24 bits, can be wrong by */

/* The first of the largest logits; *largest is NaN where one of them is. */
static long most_probable(const float *x, long vocabulary, float *largest) {
    long part = 0;
    float peak = -INFINITE;
    integers nans = {0};
    int broken = 0;
    for (long from = 0; from < vocabulary; from += PEAKS) {
        long to = from + PEAKS < vocabulary ? from + PEAKS : vocabulary, i = from;
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

/* A logit with the Gumbel noise of its token. */
static double noisy(float logit, uint64_t key, long token) {
    double uniform = (double)(keyed(key, token) >> 11) * 0x1p-53 + 0x1p-54;
    if (uniform > 1 - 0x1p-53) uniform = 1 - 0x1p-53;
    return logit - log(-log1p(-uniform));
}

/* The token of the largest noisy logit, x / temperature; `token` is the most probable one.

   Noise of u is less than -log(u), so that only a token with u < e^(logit - best) can win. A rounded u and a rounded
   power rule out nearly all of them; the others are computed in full. */
static long sampled(const float *x, long vocabulary, float temperature, uint64_t key, long token) {
    uint32_t high[CHANCES] __attribute__((aligned(64)));
    int32_t may[CHANCES] __attribute__((aligned(64)));
    float top = x[token] / temperature;
    double best = noisy(top, key, token);
    for (long from = 0; from < vocabulary; from += CHANCES) {
        long count = from + CHANCES < vocabulary ? CHANCES : vocabulary - from, i = 0;
        const float *part = x + from;
        for (long j = 0; j < count; j++) high[j] = keyed(key, from + j) >> 32;
        float ahead = (float)(best - top); /* a difference of logits is exact enough in float32, a large logit is not */
        integers any = {0};
        for (; i + W <= count; i += W) {
            vector least = __builtin_convertvector(*(const words *)(high + i), vector) * 0x1p-32f;
            integers here = least <= exponential(READ(part + i) / temperature - top - ahead) * SLACK;
            *(integers *)(may + i) = here;
            any |= here;
        }
        int some = i < count;
        for (; i < count; i++) may[i] = 1;
        for (int j = 0; j < W; j++) some |= any[j];
        for (long j = 0; some && j < count; j++)
            if (may[j]) {
                double its = noisy(part[j] / temperature, key, from + j);
                if (its > best || (its == best && from + j < token)) best = its, token = from + j;
            }
    }
    return token;
}

/* Sample a token from each distribution; `stride` logits from one row to the next; see `sampled`. */
void draw(const float *logits, long stride, long vocabulary, const int64_t *key, long rows, int64_t *token,
          int threads) {
#pragma omp parallel for num_threads(threads) if (rows > 1)
    for (long r = 0; r < rows; r++) {
        const float *x = logits + r * stride;
        float largest;
        token[r] = sampled(x, vocabulary, 1, (uint64_t)key[r], most_probable(x, vocabulary, &largest));
    }
}

/* Copy logits without the tokens that a mask lacks. */
static void copy_allowed(const float *x, long vocabulary, const uint32_t *mask, float *room) {
    for (long from = 0; from < vocabulary; from += 32) {
        uint32_t word = mask[from >> 5];
        long count = from + 32 < vocabulary ? 32 : vocabulary - from;
        for (long i = 0; i < count; i++) room[from + i] = word >> i & 1 ? x[from + i] : -INFINITE;
    }
}

/* The most probable token, or at a temperature a sampled one. *largest: see `most_probable`; where it is not finite,
   the token is meaningless. */
static long chosen(const float *x, long vocabulary, float temperature, uint64_t key, float *largest) {
    long token = most_probable(x, vocabulary, largest);
    return temperature && __builtin_isfinite(*largest) ? sampled(x, vocabulary, temperature, key, token) : token;
}

/* What `chosen` is among the tokens that may follow a path. A mask takes longer than an answer for one token, so that
   the best ones are asked for first. A broken logit is not asked for, since a mask may exclude it. */
static long allowed(ask_after ask, long r, const int64_t *path, long length, const float *x, long vocabulary,
                    float temperature, uint64_t key, float *room, float *largest) {
    const uint32_t *mask = 0;
    const float *left = x;
    int64_t token = 0, only = -1;
    for (int tries = 0; tries < TRIES && !mask; tries++) {
        token = chosen(left, vocabulary, temperature, key, largest);
        if (!__builtin_isfinite(*largest)) break;
        uint8_t follows = 1;
        mask = ask(r, path, length, &token, 1, &follows, &only);
        if (only >= 0) return *largest = only < vocabulary ? x[only] : __builtin_nanf(""), only;
        if (!mask && follows) return token;
        if (!tries) memcpy(room, x, vocabulary * sizeof *x), left = room;
        room[token] = -INFINITE;
    }
    if (!mask && !(mask = ask(r, path, length, 0, 0, 0, 0))) return chosen(x, vocabulary, temperature, key, largest);
    copy_allowed(x, vocabulary, mask, room);
    return chosen(room, vocabulary, temperature, key, largest);
}

/* Trees (rows, slots): the logits after slot s of row r begin at logits + index[r slots + s] * stride. temperature,
   stream: of each row; at 0 the most probable tokens are taken, else tokens are sampled by the random numbers of the
   stream at the token's position. root: the positions of the roots. All three NULL: every row has 0. path: (rows,
   slots), -1 beyond its end. length: drafted tokens on it. largest: the logit of the bonus token (if it is sampled,
   of the most probable one), or the first one on the way that is not finite, where a walk ends. What a constraint
   forbids is not taken. Returns the slots of the longest path, or -1 without memory. */
long walk(const float *logits, long stride, long vocabulary, const int64_t *index, const int64_t *token,
          const int64_t *parent, const uint8_t *alive, long rows, long slots, const float *temperature,
          const int64_t *stream, const int64_t *root, const void *constraint, int64_t *path, int64_t *length,
          int64_t *bonus, float *largest, int threads) {
    long longest = 0;
    float *rooms = constraint ? malloc(rows * vocabulary * sizeof *rooms) : 0;
    int64_t *tokens = constraint ? malloc(rows * slots * sizeof *tokens) : 0;
    if (constraint && !(rooms && tokens)) longest = -1, rows = 0;
#pragma omp parallel for schedule(dynamic) num_threads(threads) reduction(max : longest) if (rows > 1)
    for (long r = 0; r < rows; r++) {
        long first = r * slots, slot = 0, child = 0, steps = 0;
        while (child < slots) {
            slot = child;
            path[first + steps++] = slot;
            const float *x = logits + index[first + slot] * stride;
            float heat = temperature ? temperature[r] : 0;
            uint64_t key = heat ? key_of_sample((uint64_t)stream[r], root[r] + steps) : 0; /* of its children's position */
            if (constraint && steps > 1) tokens[first + steps - 2] = token[first + slot];
            bonus[r] = constraint ? allowed((ask_after)constraint, r, tokens + first, steps - 1, x, vocabulary, heat, key,
                                            rooms + r * vocabulary, largest + r)
                                  : chosen(x, vocabulary, heat, key, largest + r);
            if (!__builtin_isfinite(largest[r])) break;
            for (child = slot + 1; child < slots; child++) /* a child's slot comes after its parent's */
                if (alive[first + child] && parent[first + child] == slot && token[first + child] == bonus[r]) break;
        }
        length[r] = steps - 1;
        if (steps > longest) longest = steps;
        for (; steps < slots; steps++) path[first + steps] = -1;
    }
    free(rooms), free(tokens);
    return longest;
}

/* A draft's logits raised by what followed the same tokens earlier in the text; see ngrams.py. */

#include "c2t.h"
#include "vectors.h"

#include <stdlib.h>

/* A token that followed, how often it did behind a context of each length, its place among the numbers, and where the
   last of these contexts ended. */
typedef struct {
    int64_t token;
    long times[MOST_KINDS], place, end;
} follower;

/* Followers of one context, and the number of each one more than it is, hashed by its token; 0 for none. most: a power
   of two, more than there can be followers. */
typedef struct {
    follower *found;
    int32_t *number;
    long count, most;
} followers;

/* The last `longest` tokens of a path, its end first: up the tree to below the root, then back through the text, whose
   last token is the root. Returns how many there are. */
static long read_context(const int64_t *token, const int64_t *parent, int64_t slot, const int64_t *text, long length,
                         long longest, int64_t *context) {
    long found = 0;
    for (; parent[slot] >= 0 && found < longest; slot = parent[slot]) context[found++] = token[slot];
    for (long place = length; place-- && found < longest;) context[found++] = text[place];
    return found;
}

/* The follower of this token, a new one if need be. */
static follower *follower_of(followers *all, int64_t token) {
    long place = (long)((uint64_t)token * 0x9e3779b97f4a7c15u >> 32) & (all->most - 1);
    for (; all->number[place]; place = (place + 1) & (all->most - 1))
        if (all->found[all->number[place] - 1].token == token) return all->found + all->number[place] - 1;
    all->found[all->count] = (follower){.token = token, .place = place};
    all->number[place] = (int32_t)++all->count;
    return all->found + all->count - 1;
}

static void forget(followers *all) {
    while (all->count) all->number[all->found[--all->count].place] = 0;
}

/* Count what followed the context in the text. places: how often a context of each length was there, and went on. */
static void count_followers(const int64_t *text, long length, const int64_t *context, long known, long shortest,
                            long kinds, long *places, followers *all) {
    for (long n = 0; n < kinds; n++) places[n] = 0;
    for (long end = shortest - 1; known >= shortest && end < length - 1; end++) {
        long same = 0;
        while (same < known && same <= end && text[end - same] == context[same]) same++;
        if (same < shortest) continue;
        follower *next = follower_of(all, text[end + 1]);
        for (long n = 0; n <= same - shortest; n++) places[n]++, next->times[n]++;
        next->end = end;
    }
}

/* Tokens that logits are of: `count` in rising order, NULL for all, then the `own` of each text (-1: none). */
typedef struct {
    const int64_t *common, *of_text;
    long count, own;
} vocabulary;

/* The place of a token, -1 if text r has none for it. */
static long place_of(int64_t token, const vocabulary *v, long r) {
    if (!v->common) return token;
    for (long i = 0; i < v->own; i++)
        if (v->of_text[r * v->own + i] == token) return v->count + i;
    const int64_t *ids = v->common;
    long low = 0, high = v->count;
    while (low < high) {
        long middle = (low + high) / 2;
        if (ids[middle] < token) low = middle + 1;
        else high = middle;
    }
    return low < v->count && ids[low] == token ? low : -1;
}

static double log_sum_exp(const float *x, long size) {
    long whole = size / W * W;
    vector most = {0}, sum = {0};
    most -= INFINITE;
    for (long i = 0; i < whole; i += W) most = choose(READ(x + i) > most, READ(x + i), most);
    float peak = -INFINITE;
    for (int i = 0; i < W; i++) peak = most[i] > peak ? most[i] : peak;
    for (long i = whole; i < size; i++) peak = x[i] > peak ? x[i] : peak;
    for (long i = 0; i < whole; i += W) sum += exponential(READ(x + i) - peak);
    double all = total(sum);
    for (long i = whole; i < size; i++) all += __builtin_exp(x[i] - peak);
    return peak + __builtin_log(all);
}

/* log(e^a + e^b) */
static double log_add(double a, double b) {
    double most = a > b ? a : b, least = a > b ? b : a;
    return most + __builtin_log1p(__builtin_exp(least - most));
}

/* By how much to raise the logit of a token that followed. own: its log-probability by the draft; share: what the counts
   alone would give it; left: what they leave to the draft; back: tokens from where its last context ended to the root. */
static double raise_of(const prior *p, double own, double share, double left, long back) {
    /* Only ratios matter: instead of lowering all others by `left`, raise this one by so much more. */
    double raised = log_add(0, __builtin_log(share / left) - own);
    return p->factor * raised + p->distance * __builtin_log(back < FARTHEST ? back : FARTHEST) + p->bias;
}

/* Raise the logits of `count` slots, row after row of a vocabulary, in place: slot[s] of tree row[s]. text: `stride`
   tokens from one to the next; trees of `size` slots. all: none yet, with room for as many as the longest text has
   tokens. */
static void raise_all(const int64_t *text, long stride, const int64_t *lengths, const int64_t *token,
                      const int64_t *parent, long size, const int64_t *row, const int64_t *slot, long count,
                      float *logits, const vocabulary *v, const prior *p, followers *all) {
    follower *found = all->found;
    long kinds = p->kinds, longest = p->shortest + kinds - 1;
    for (long s = 0; s < count; s++) {
        const int64_t *own = text + row[s] * stride;
        int64_t context[longest];
        long places[kinds], first = row[s] * size, length = lengths[row[s]];
        long known = read_context(token + first, parent + first, slot[s] < 0 ? 0 : slot[s], own, length, longest, context);
        count_followers(own, length, context, known, p->shortest, kinds, places, all);
        double left = 1, weight[kinds]; /* what longer contexts leave to shorter ones; of a place of each length */
        for (long n = kinds - 1; n >= 0; n--) {
            weight[n] = left / (places[n] + p->weights[n]);
            left *= p->weights[n] / (places[n] + p->weights[n]);
        }
        float *x = logits + s * (v->count + v->own);
        long named = v->count; /* of this text's vocabulary: a sum must not depend on what other texts have */
        while (named < v->count + v->own && v->of_text[row[s] * v->own + named - v->count] >= 0) named++;
        long counted = all->count;
        forget(all);
        double norm = counted ? log_sum_exp(x, named) : 0; /* of the draft's own, before a logit changes */
        for (long f = 0; f < counted; f++) {
            long place = place_of(found[f].token, v, row[s]);
            if (place < 0 || !(x[place] > -INFINITE)) continue;
            double share = 0;
            for (long n = 0; n < kinds; n++) share += found[f].times[n] * weight[n];
            x[place] += (float)raise_of(p, x[place] - norm, share, left, length - 1 - found[f].end);
        }
    }
}

/* Returns nonzero if there is no memory for the followers. */
int raise_followers(const int64_t *text, long stride, long longest, const int64_t *lengths, const int64_t *token,
                    const int64_t *parent, long size, const int64_t *row, const int64_t *slot, long count,
                    float *logits, long count_of_ids, const int64_t *ids, const int64_t *own_ids, long own,
                    const prior *p) {
    vocabulary v = {ids, own_ids, count_of_ids, own};
    long most = 2;
    while (most < 2 * longest) most *= 2;
    followers all = {malloc(longest * sizeof *all.found), calloc(most, sizeof *all.number), 0, most};
    int failed = !all.found || !all.number;
    if (!failed) raise_all(text, stride, lengths, token, parent, size, row, slot, count, logits, &v, p, &all);
    free(all.found), free(all.number);
    return failed;
}

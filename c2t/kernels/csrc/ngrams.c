/* A draft's logits, raised for tokens that followed the same context earlier in the text; see ngrams.py. */

#include "c2t.h"
#include "vectors.h"

#include <stdlib.h>

/* A token that followed, how often it did after a context of each length, its bucket in the hash table, and where the
   last of these contexts ended. */
typedef struct {
    int64_t token;
    long times[MOST_KINDS], bucket, end;
} follower;

/* Followers of one context, and the number of each one more than it is, hashed by its token; 0 for none. most: a power
   of two, more than there can be followers. */
typedef struct {
    follower *list;
    int32_t *number;
    long count, most;
} followers;

/* The last `longest` tokens of a path, its end first: up the tree to below the root, then back through the text, whose
   last token is the root. Returns how many there are. */
static long read_context(const int64_t *token, const int64_t *parent, int64_t slot, const int64_t *text, long length,
                         long longest, int64_t *context) {
    long count = 0;
    for (; parent[slot] >= 0 && count < longest; slot = parent[slot]) context[count++] = token[slot];
    for (long i = length; i-- && count < longest;) context[count++] = text[i];
    return count;
}

/* The follower of this token, a new one if need be. */
static follower *follower_of(followers *all, int64_t token) {
    long bucket = (long)((uint64_t)token * 0x9e3779b97f4a7c15u >> 32) & (all->most - 1);
    for (; all->number[bucket]; bucket = (bucket + 1) & (all->most - 1))
        if (all->list[all->number[bucket] - 1].token == token) return all->list + all->number[bucket] - 1;
    all->list[all->count] = (follower){.token = token, .bucket = bucket};
    all->number[bucket] = (int32_t)++all->count;
    return all->list + all->count - 1;
}

static void forget(followers *all) {
    while (all->count) all->number[all->list[--all->count].bucket] = 0;
}

/* Count the tokens after the context in the text. occurrences: of a context of each length that has a next token. */
static void count_followers(const int64_t *text, long length, const int64_t *context, long context_length,
                            long shortest, long kinds, long *occurrences, followers *all) {
    for (long n = 0; n < kinds; n++) occurrences[n] = 0;
    for (long end = shortest - 1; context_length >= shortest && end < length - 1; end++) {
        long same = 0;
        while (same < context_length && same <= end && text[end - same] == context[same]) same++;
        if (same < shortest) continue;
        follower *next = follower_of(all, text[end + 1]);
        for (long n = 0; n <= same - shortest; n++) occurrences[n]++, next->times[n]++;
        next->end = end;
    }
}

/* Tokens that logits are of: `count` in rising order, NULL for all, then `oov_count` of each text (-1: none). */
typedef struct {
    const int64_t *common, *of_text;
    long count, oov_count;
} vocabulary;

/* The index of a token's logit, -1 if text r has none. */
static long place_of(int64_t token, const vocabulary *v, long r) {
    if (!v->common) return token;
    for (long i = 0; i < v->oov_count; i++)
        if (v->of_text[r * v->oov_count + i] == token) return v->count + i;
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

/* Boost of the logit of a token that followed. log_prob: by the draft; share: the counts' probability of it; left: the
   factor of the draft's; back: tokens from where its last context ended to the root. */
static double raise_of(const prior *p, double log_prob, double share, double left, long back) {
    /* Only ratios matter: instead of lowering all others by `left`, raise this one by so much more. */
    double raised = log_add(0, __builtin_log(share / left) - log_prob);
    return p->factor * raised + p->distance * __builtin_log(back < FARTHEST ? back : FARTHEST) + p->bias;
}

/* Raise the logits of `count` slots, row after row of a vocabulary, in place: slot[s] of tree row[s]. text: `stride`
   tokens from one to the next; trees of `size` slots. all: none yet, with room for as many as the longest text has
   tokens. */
static void raise_all(const int64_t *text, long stride, const int64_t *lengths, const int64_t *token,
                      const int64_t *parent, long size, const int64_t *row, const int64_t *slot, long count,
                      float *logits, const vocabulary *v, const prior *p, followers *all) {
    follower *followed = all->list;
    long kinds = p->kinds, longest = p->shortest + kinds - 1;
    for (long s = 0; s < count; s++) {
        const int64_t *row_text = text + row[s] * stride;
        int64_t context[longest];
        long occurrences[kinds], first = row[s] * size, length = lengths[row[s]];
        long context_length =
            read_context(token + first, parent + first, slot[s] < 0 ? 0 : slot[s], row_text, length, longest, context);
        count_followers(row_text, length, context, context_length, p->shortest, kinds, occurrences, all);
        double left = 1, weight[kinds]; /* what longer contexts leave to shorter ones; of one occurrence of each length */
        for (long n = kinds - 1; n >= 0; n--) {
            weight[n] = left / (occurrences[n] + p->weights[n]);
            left *= p->weights[n] / (occurrences[n] + p->weights[n]);
        }
        float *x = logits + s * (v->count + v->oov_count);
        long named = v->count; /* of this text's vocabulary: a sum must not depend on what other texts have */
        while (named < v->count + v->oov_count && v->of_text[row[s] * v->oov_count + named - v->count] >= 0) named++;
        long counted = all->count;
        forget(all);
        double norm = counted ? log_sum_exp(x, named) : 0; /* of the draft's logits, before one changes */
        for (long f = 0; f < counted; f++) {
            long index = place_of(followed[f].token, v, row[s]);
            if (index < 0 || !(x[index] > -INFINITE)) continue;
            double share = 0;
            for (long n = 0; n < kinds; n++) share += followed[f].times[n] * weight[n];
            x[index] += (float)raise_of(p, x[index] - norm, share, left, length - 1 - followed[f].end);
        }
    }
}

/* Returns nonzero if there is no memory for the followers. */
int raise_followers(const int64_t *text, long stride, long longest, const int64_t *lengths, const int64_t *token,
                    const int64_t *parent, long size, const int64_t *row, const int64_t *slot, long count,
                    float *logits, long count_of_ids, const int64_t *ids, const int64_t *oov_ids, long oov_count,
                    const prior *p) {
    vocabulary v = {ids, oov_ids, count_of_ids, oov_count};
    long most = 2;
    while (most < 2 * longest) most *= 2;
    followers all = {malloc(longest * sizeof *all.list), calloc(most, sizeof *all.number), 0, most};
    int failed = !all.list || !all.number;
    if (!failed) raise_all(text, stride, lengths, token, parent, size, row, slot, count, logits, &v, p, &all);
    free(all.list), free(all.number);
    return failed;
}

/* New scores of a draft's most probable tokens by what followed the same tokens earlier in the text; see ngrams.py. */

#include <stdint.h>

/* log(e^a + e^b) */
static double log_add(double a, double b) {
    double most = a > b ? a : b, least = a > b ? b : a;
    return most + __builtin_log1p(__builtin_exp(least - most));
}

/* The last `longest` tokens of a path, its end first: up the tree to below the root, then back through the text, whose
   last token is the root. Returns how many there are. */
static long read_context(const int64_t *token, const int64_t *parent, int64_t slot, const int64_t *text, long length,
                         long longest, int64_t *context) {
    long found = 0;
    for (; parent[slot] >= 0 && found < longest; slot = parent[slot]) context[found++] = token[slot];
    for (long place = length; place-- && found < longest;) context[found++] = text[place];
    return found;
}

/* rows x width slots of trees of `size` slots, each with `count` tokens; text: `length` tokens each, `stride` apart. prior: a weight for
   each length of a context from `shortest` to `longest`. */
void mix_ngrams(const int64_t *text, long stride, const int64_t *lengths, const int64_t *token, const int64_t *parent,
                long rows, long size, const int64_t *slots, long width, const int64_t *tokens, const float *log_prob,
                long count, const double *prior, long shortest, long longest, float *score, float *factor) {
    long kinds = longest - shortest + 1;
    for (long s = 0; s < rows * width; s++) {
        long row = s / width, length = lengths[row];
        const int64_t *words = text + row * stride, *candidate = tokens + s * count;
        const float *old = log_prob + s * count;
        int64_t context[longest];
        long known = read_context(token + row * size, parent + row * size, slots[s] < 0 ? 0 : slots[s], words, length,
                                  longest, context);
        long places[kinds], followed[kinds * count]; /* by length of the context: in all, and by each token */
        for (long n = 0; n < kinds; n++) places[n] = 0;
        for (long i = 0; i < kinds * count; i++) followed[i] = 0;
        for (long end = shortest - 1; known >= shortest && end < length - 1; end++) {
            long same = 0;
            while (same < known && same <= end && words[end - same] == context[same]) same++;
            for (long n = shortest; n <= same; n++) {
                places[n - shortest]++;
                for (long i = 0; i < count; i++) followed[(n - shortest) * count + i] += candidate[i] == words[end + 1];
            }
        }
        double left = 1, weight[kinds]; /* what longer contexts leave to shorter ones; of a place of each length */
        for (long n = kinds - 1; n >= 0; n--) {
            weight[n] = left / (places[n] + prior[n]);
            left *= prior[n] / (places[n] + prior[n]);
        }
        factor[s] = __builtin_log(left);
        for (long i = 0; i < count; i++) {
            double share = 0, kept = old[i] + __builtin_log(left);
            for (long n = 0; n < kinds; n++) share += followed[n * count + i] * weight[n];
            int raised = share > 0 && old[i] > -__builtin_inff();
            score[s * count + i] = raised ? log_add(kept, __builtin_log(share)) : kept;
        }
    }
}

/* One decision of a budget: which nodes to expand, and which to verify if none is; see paying.py. */

#include "c2t.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double value, confidence;
    long slot, row;
} Node;

typedef struct {
    long count; /* nodes to verify */
    double rate; /* tokens per second */
} Best;

/* Place of x among rising values, as numpy's interp has it: whole numbers at the values, between them linear. */
static double place_of(double x, const double *values, long count) {
    if (x <= values[0]) return 0;
    if (x >= values[count - 1]) return count - 1;
    long low = 0, high = count - 1;
    while (high - low > 1) {
        long middle = (low + high) / 2;
        if (values[middle] <= x) low = middle;
        else high = middle;
    }
    return low + (x - values[low]) / (values[high] - values[low]);
}

static double interpolated(double x, const double *values, const double *table, long count, long step) {
    double place = place_of(x, values, count);
    long below = (long)place;
    if (below > count - 2) return table[(count - 1) * step];
    double share = place - below;
    return (1 - share) * table[below * step] + share * table[(below + 1) * step];
}

/* The node that is worth most first; of equal ones the most confident, and of these slot by slot, so parents first. */
static int by_value(const void *one, const void *other) {
    const Node *a = one, *b = other;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    if (a->confidence != b->confidence) return a->confidence > b->confidence ? -1 : 1;
    if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
    return a->row < b->row ? -1 : a->row > b->row;
}

static int falling(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return a > b ? -1 : a < b;
}

/* How many of the nodes, in this order, to verify for most tokens per second. */
static Best best_count(const Yields *yields, long rows, double spent, const double *likely, long count) {
    Best found = {0, rows / (spent + yields->verify[rows])};
    double accepted = 0;
    for (long i = 0; i < count; i++) {
        accepted += likely[i];
        double rate = (rows + accepted) / (spent + yields->verify[rows + i + 1]);
        if (rate > found.rate) found = (Best){i + 1, rate};
    }
    return found;
}

static long least(long a, long b) { return a < b ? a : b; }

/* worth: what a token of each row counts. given: (rows, size) confidences, or with `logarithm` their logarithms; doubles
   with `wide`, else floats. slots: (rows, width), -1 for none. most: nodes to verify at most. Written are expand, of the
   shape of slots; keep, of that of given; places, of the same shape: each row's kept slots in their order, then the
   others; found: nodes to expand, tokens in the largest kept row. Returns 0, or 1 without memory. */
int decide(const Yields *yields, const double *worth, long rows, long size, const void *given, int logarithm, int wide,
           const uint8_t *alive, const int64_t *parent, const int64_t *slots, long width, double spent, long most,
           uint8_t *expand, uint8_t *keep, int64_t *places, int64_t *found) {
    long room = rows * size, asked = rows * width, K = yields->children;
    double *confidence = malloc((3 * room + 2 * asked * K + 1) * sizeof *confidence);
    Node *nodes = malloc((room + 1) * sizeof *nodes);
    if (!confidence || !nodes) {
        free(confidence), free(nodes);
        return 1;
    }
    double *likely = confidence + room, *promised = likely + room, *children = promised + room + asked * K;
    long drafted = 0;
    for (long row = 0; row < rows; row++)
        for (long slot = 0; slot < size; slot++) {
            long at = row * size + slot, above = parent[at];
            double own = -1;
            if (slot && alive[at]) {
                own = wide ? ((const double *)given)[at] : ((const float *)given)[at];
                if (logarithm) own = exp(own);
                if (above > 0 && own > confidence[row * size + above]) own = confidence[row * size + above];
                if (own >= 0) {
                    double accepted = interpolated(own, yields->sure, yields->accepted, yields->calibrated, 1);
                    nodes[drafted++] = (Node){worth[row] * accepted, own, slot, row};
                }
            }
            confidence[at] = own;
        }
    qsort(nodes, drafted, sizeof *nodes, by_value);
    for (long i = 0; i < drafted; i++) likely[i] = nodes[i].value;
    Best without = best_count(yields, rows, spent, likely, least(drafted, most));

    long end = drafted, paying = 0;
    memcpy(promised, likely, drafted * sizeof *promised);
    for (long i = 0; i < asked; i++) {
        expand[i] = slots[i] >= 0;
        if (!expand[i]) continue;
        double own = confidence[i / width * size + slots[i]];
        for (long k = 0; k < K; k++)
            promised[end++] = children[i * K + k] =
                worth[i / width] * interpolated(own, yields->parents, yields->promised + k, yields->known, K);
        paying++;
    }
    qsort(promised, end, sizeof *promised, falling);
    Best with = best_count(yields, rows, spent + yields->draft[paying], promised, least(end, most));
    double last = with.count ? promised[with.count - 1] : INFINITY; /* a node pays if its best child would be verified */
    long all = paying;
    for (long i = 0; i < asked; i++)
        if (expand[i] && children[i * K] < last) expand[i] = 0, paying--;
    if (paying < all) {
        memcpy(promised, likely, drafted * sizeof *promised);
        end = drafted;
        for (long i = 0; i < asked; i++)
            if (expand[i]) memcpy(promised + end, children + i * K, K * sizeof *promised), end += K;
        qsort(promised, end, sizeof *promised, falling);
        with = best_count(yields, rows, spent + yields->draft[paying], promised, least(end, most));
    }
    if (with.rate <= without.rate) memset(expand, 0, asked), paying = 0;

    memset(keep, 0, room);
    for (long row = 0; row < rows; row++) keep[row * size] = 1;
    for (long i = 0; i < without.count; i++) keep[nodes[i].row * size + nodes[i].slot] = 1;
    found[0] = paying, found[1] = 0;
    for (long row = 0; row < rows; row++) {
        long first = 0, rest = 0;
        for (long slot = 0; slot < size; slot++) rest += keep[row * size + slot];
        if (rest > found[1]) found[1] = rest;
        for (long slot = 0; slot < size; slot++) places[row * size + (keep[row * size + slot] ? first++ : rest++)] = slot;
    }
    free(confidence), free(nodes);
    return 0;
}

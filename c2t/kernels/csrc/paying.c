/* One decision of a budget: which nodes to expand, and which to verify if none is; see paying.py. */

#include "c2t.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double value, probability;
    long slot, row;
} Node;

typedef struct {
    long count; /* nodes to verify */
    double rate; /* tokens per second */
} Best;

/* The node that is worth most first; of equal ones the most probable, and of these slot by slot, so parents first. */
static int by_value(const void *one, const void *other) {
    const Node *a = one, *b = other;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    if (a->probability != b->probability) return a->probability > b->probability ? -1 : 1;
    if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
    return a->row < b->row ? -1 : a->row > b->row;
}

static int falling(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return a > b ? -1 : a < b;
}

/* How many of the nodes, in this order, to verify for most tokens per second. */
static Best best_count(const RoundModel *model, long rows, double spent, const double *likely, long count) {
    Best found = {0, rows / (spent + model->verify[rows])};
    double accepted = 0;
    for (long i = 0; i < count; i++) {
        accepted += likely[i];
        double rate = (rows + accepted) / (spent + model->verify[rows + i + 1]);
        if (rate > found.rate) found = (Best){i + 1, rate};
    }
    return found;
}

static long least(long a, long b) { return a < b ? a : b; }

/* worth: what a token of each row counts. log_joint: (rows, size), doubles with `wide`, else floats. slots: (rows, width),
   -1 for none. most: nodes to verify at most. Written are expand, of the shape of slots; keep, of that of log_joint;
   places, of the same shape: each row's kept slots in their order, then the others; found: nodes to expand, tokens in the
   largest kept row. Returns 0, or 1 without memory. */
int decide(const RoundModel *model, const double *worth, long rows, long size, const void *log_joint, int wide,
           const uint8_t *alive, const int64_t *parent, const int64_t *slots, long width, double spent, long most,
           uint8_t *expand, uint8_t *keep, int64_t *places, int64_t *found) {
    long room = rows * size, asked = rows * width;
    double *probability = malloc((3 * room + 2 * asked + 1) * sizeof *probability);
    Node *nodes = malloc((room + 1) * sizeof *nodes);
    if (!probability || !nodes) {
        free(probability), free(nodes);
        return 1;
    }
    double *likely = probability + room, *promised = likely + room, *children = promised + room + asked;
    long drafted = 0;
    for (long row = 0; row < rows; row++)
        for (long slot = 0; slot < size; slot++) {
            long at = row * size + slot, above = parent[at];
            double own = -1;
            if (slot && alive[at]) {
                own = exp(wide ? ((const double *)log_joint)[at] : ((const float *)log_joint)[at]);
                if (above > 0 && own > probability[row * size + above]) own = probability[row * size + above];
                if (own >= 0) nodes[drafted++] = (Node){worth[row] * own, own, slot, row};
            }
            probability[at] = own;
        }
    qsort(nodes, drafted, sizeof *nodes, by_value);
    for (long i = 0; i < drafted; i++) likely[i] = nodes[i].value;
    Best without = best_count(model, rows, spent, likely, least(drafted, most));

    long end = drafted, paying = 0;
    memcpy(promised, likely, drafted * sizeof *promised);
    for (long i = 0; i < asked; i++) {
        expand[i] = slots[i] >= 0;
        if (!expand[i]) continue;
        promised[end++] = children[i] = model->child * (worth[i / width] * probability[i / width * size + slots[i]]);
        paying++;
    }
    qsort(promised, end, sizeof *promised, falling);
    Best with = best_count(model, rows, spent + model->draft[paying], promised, least(end, most));
    double last = with.count ? promised[with.count - 1] : INFINITY; /* a node pays if its child would be verified */
    long all = paying;
    for (long i = 0; i < asked; i++)
        if (expand[i] && children[i] < last) expand[i] = 0, paying--;
    if (paying < all) {
        memcpy(promised, likely, drafted * sizeof *promised);
        end = drafted;
        for (long i = 0; i < asked; i++)
            if (expand[i]) promised[end++] = children[i];
        qsort(promised, end, sizeof *promised, falling);
        with = best_count(model, rows, spent + model->draft[paying], promised, least(end, most));
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
    free(probability), free(nodes);
    return 0;
}

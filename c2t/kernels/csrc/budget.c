/* One decision of a budget: which nodes to expand, and which to verify if none is; see budget.py. */

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

/* The largest value first; of equal ones the most probable, and of these slot by slot, so parents first. */
static int by_value(const void *first, const void *second) {
    const Node *a = first, *b = second;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    if (a->probability != b->probability) return a->probability > b->probability ? -1 : 1;
    if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
    return a->row < b->row ? -1 : a->row > b->row;
}

static int falling(const void *first, const void *second) {
    double a = *(const double *)first, b = *(const double *)second;
    return a > b ? -1 : a < b;
}

/* How many of the nodes, in this order, to verify for most tokens per second. */
static Best best_count(const RoundModel *model, long rows, double spent, const double *likely, long count) {
    Best best = {0, rows / (spent + model->verify[rows])};
    double accepted = 0;
    for (long i = 0; i < count; i++) {
        accepted += likely[i];
        double rate = (rows + accepted) / (spent + model->verify[rows + i + 1]);
        if (rate > best.rate) best = (Best){i + 1, rate};
    }
    return best;
}

static long least(long a, long b) { return a < b ? a : b; }

/* row_weight: of a token of each row. log_joint: (rows, size), doubles with `wide`, else floats. slots: (rows, width),
   -1 for none. most: nodes to verify at most. Written are expand, of the shape of slots; keep, of that of log_joint;
   order, of the same shape: each row's retained slots in their order, then the others; counts: nodes to expand, tokens
   in the largest retained row. Returns 0, or 1 without memory. */
int select_nodes(const RoundModel *model, const double *row_weight, long rows, long size, const void *log_joint,
                 int wide, const uint8_t *alive, const int64_t *parent, const int64_t *slots, long width, double spent,
                 long most, uint8_t *expand, uint8_t *keep, int64_t *order, int64_t *counts) {
    long room = rows * size, asked = rows * width;
    double *probability = malloc((3 * room + 2 * asked + 1) * sizeof *probability);
    Node *nodes = malloc((room + 1) * sizeof *nodes);
    if (!probability || !nodes) {
        free(probability), free(nodes);
        return 1;
    }
    double *likely = probability + room, *expected = likely + room, *children = expected + room + asked;
    long drafted = 0;
    for (long row = 0; row < rows; row++)
        for (long slot = 0; slot < size; slot++) {
            long at = row * size + slot, above = parent[at];
            double p = -1;
            if (slot && alive[at]) {
                p = exp(wide ? ((const double *)log_joint)[at] : ((const float *)log_joint)[at]);
                if (above > 0 && p > probability[row * size + above]) p = probability[row * size + above];
                if (p >= 0) nodes[drafted++] = (Node){row_weight[row] * p, p, slot, row};
            }
            probability[at] = p;
        }
    qsort(nodes, drafted, sizeof *nodes, by_value);
    for (long i = 0; i < drafted; i++) likely[i] = nodes[i].value;
    Best without = best_count(model, rows, spent, likely, least(drafted, most));

    long end = drafted, expanded = 0;
    memcpy(expected, likely, drafted * sizeof *expected);
    for (long i = 0; i < asked; i++) {
        expand[i] = slots[i] >= 0;
        if (!expand[i]) continue;
        children[i] = model->child * (row_weight[i / width] * probability[i / width * size + slots[i]]);
        expected[end++] = children[i];
        expanded++;
    }
    qsort(expected, end, sizeof *expected, falling);
    Best with = best_count(model, rows, spent + model->draft[expanded], expected, least(end, most));
    double last = with.count ? expected[with.count - 1] : INFINITY; /* of a child to be expanded for */
    long all = expanded;
    for (long i = 0; i < asked; i++)
        if (expand[i] && children[i] < last) expand[i] = 0, expanded--;
    if (expanded < all) {
        memcpy(expected, likely, drafted * sizeof *expected);
        end = drafted;
        for (long i = 0; i < asked; i++)
            if (expand[i]) expected[end++] = children[i];
        qsort(expected, end, sizeof *expected, falling);
        with = best_count(model, rows, spent + model->draft[expanded], expected, least(end, most));
    }
    if (with.rate <= without.rate) memset(expand, 0, asked), expanded = 0;

    memset(keep, 0, room);
    for (long row = 0; row < rows; row++) keep[row * size] = 1;
    for (long i = 0; i < without.count; i++) keep[nodes[i].row * size + nodes[i].slot] = 1;
    counts[0] = expanded, counts[1] = 0;
    for (long row = 0; row < rows; row++) {
        long first = 0, rest = 0;
        for (long slot = 0; slot < size; slot++) rest += keep[row * size + slot];
        if (rest > counts[1]) counts[1] = rest;
        for (long slot = 0; slot < size; slot++) order[row * size + (keep[row * size + slot] ? first++ : rest++)] = slot;
    }
    free(probability), free(nodes);
    return 0;
}

/* How far what followed in the text is trusted; see `Prior` and `Trust` in ngrams.py. */

#pragma once

#define MOST_KINDS 8 /* lengths of contexts */
#define FARTHEST 128 /* tokens back that a distance is counted to */

/* weights: of each of `kinds` lengths of a context, from `shortest` on. The others are those of `Trust`. */
typedef struct {
    double weights[MOST_KINDS];
    long shortest, kinds;
    double factor, distance, bias;
} prior;

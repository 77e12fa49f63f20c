/* A classifier with one hidden layer; see network.py. */

#pragma once
#include <stdint.h>

/* whole, exps: of each input, whether its column has whole numbers instead of floats, and whether the input is the
   column's exponential. hidden_weight: (units, inputs). conditional: a node's score is its confidence times its parent's
   score. */
typedef struct {
    const uint8_t *whole, *exps;
    long inputs, units;
    const float *hidden_weight, *hidden_bias, *output_weight, *output_bias;
    long conditional;
} network;

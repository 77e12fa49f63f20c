/* What the functions of llama_layer.c are given. */

#pragma once
#include <stdint.h>

typedef struct {
    const void *panels;
    const float *bias; /* or NULL */
    const float *scales; /* of the columns, of bytes; else NULL */
    long inputs, outputs;
    long kind;
} matrix;

typedef struct {
    matrix qkv, out, gate, up, down;
    const float *read_norm, *norm; /* weights; read_norm is NULL in a layer that reads its input as it is */
    long heads, kv_heads, dim;
    float epsilon;
} layer;

/* What turns a token and a state, side by side, into the inputs of a head's layers: an EAGLE-1/2 head's fc, or the
   projections of an EAGLE-3 head's first layer, for which both are normalised by these weights. */
typedef struct {
    matrix into;
    const float *token_norm, *state_norm; /* or both NULL */
    float epsilon;
} reader;

/* Keys of each layer, and its values so many numbers behind them: slot s of head h begins at h * head + s * dim. */
typedef struct {
    void *const *keys;
    long values, head;
    const int64_t *place; /* of each new token: its slot is place + behind */
    long behind;
    long halves; /* the numbers are bf16, which needs instructions for that; else float32 */
} cache;

/* Cosines and sines of `known` positions, for half of a head's dimensions, and the position of each token. */
typedef struct {
    const float *cosine, *sine;
    const int64_t *position;
    long known;
} rotations;

/* What the tokens see: prefix[r] slots from first[r] on, and of the `slots` behind these the ones in the mask, (rows,
   slots) bytes. The rows of a text, whose first slots are the same, stand one after the other. */
typedef struct {
    const int64_t *first, *prefix;
    const uint8_t *mask;
    long slots, longest; /* longest: prefix */
} sight;

/* The C interface for Python: the structures that it fills and the functions, each declared once. native.py reads this
   file, so it holds nothing but comments, `#define NAME NUMBER`, such structures and such prototypes. */

#pragma once
#include <stdint.h>

#define MOST_KINDS 8 /* lengths of contexts */
#define FARTHEST 128 /* tokens back that a distance is counted to */

/* rest: a matrix of another kind, whose outputs follow after the panels that are here; or NULL. outputs: of both. */
typedef struct {
    const void *panels;
    const float *bias; /* or NULL */
    const float *scales; /* of the columns, for INT8; else NULL */
    long inputs, outputs;
    long kind;
    const void *rest;
    long panels_here;
} matrix;

/* A decoder layer: matrices, and weights of norms, each NULL where a layer has none. read_norm, norm: of what attention
   and the MLP read. out_norm, down_norm: of what they add. query_norm, key_norm: of so many (`span`) numbers of the
   queries and keys at a time. window: of positions, the token's own included, that it sees; 0 for all. table: which of
   the rotations turns queries and keys; -1 for none. gelu: GELU by tanh instead of SiLU. scale: of the scores. */
typedef struct {
    matrix qkv, out, gate, up, down;
    const float *read_norm, *norm, *out_norm, *down_norm, *query_norm, *key_norm;
    long query_span, key_span;
    long heads, kv_heads, dim;
    long window, table, gelu;
    float epsilon, scale;
} layer;

/* Maps a token's embedding and a state, concatenated, to the inputs of a head's layers: an EAGLE-1/2 head's fc, or the
   projections of an EAGLE-3 head's first layer, for which both are normalised by these weights. */
typedef struct {
    matrix into;
    const float *token_norm, *state_norm; /* or both NULL */
    float epsilon;
} reader;

/* Keys of each layer, and its values `values` numbers after them: slot s of head h begins at h * head + s * dim. */
typedef struct {
    void *const *keys;
    long values, head;
    const int64_t *slot; /* of each new token, before `offset` is added */
    long offset;
    long is_bf16; /* the numbers are bf16, which needs instructions for that; else float32 */
} cache;

/* Cosines and sines of so many positions, `half` of each: a head's first 2 * half dimensions turn, the others stay. */
typedef struct {
    const float *cosine, *sine;
    long half, positions;
} rotations;

/* The cache's slots that tokens see: prefix[r] from first[r] on, and those of the next `slots` that the mask, (rows,
   slots) bytes, selects. The rows of a text, whose first slots are the same, stand together. A layer with a window sees
   the last ones of the prefix, whose slots are its positions, and what the mask `windowed` selects. */
typedef struct {
    const int64_t *first, *prefix;
    const uint8_t *mask, *windowed;
    long slots, longest; /* longest: prefix */
} sight;

/* A classifier with one hidden layer; see network.py. whole, exps: of each input, whether its column has whole numbers
   instead of floats, and whether the input is the column's exponential. hidden_weight: (units, inputs). conditional: a
   node's score is its confidence times its parent's score. */
typedef struct {
    const uint8_t *whole, *exps;
    long inputs, units;
    const float *hidden_weight, *hidden_bias, *output_weight, *output_bias;
    long conditional;
} network;

/* Weights of n-gram counts; see `Prior` and `Trust` in ngrams.py. weights: of each of `kinds` lengths
   of a context, from `shortest` on. */
typedef struct {
    double weights[MOST_KINDS];
    long shortest, kinds;
    double factor, distance, bias;
} prior;

/* The costs that a budget decides by, see budget.py: seconds of forwards by the number of tokens of all rows, and a
   child's share of its parent's probability. */
typedef struct {
    const double *verify, *draft;
    double child;
} RoundModel;

/* Columns of tree nodes in blocks: whole (4, rows, slots): token, parent, depth, rank; real (4, rows, slots): log_prob,
   log_joint, entropy, max_log_prob; score, alive: (rows, slots). */
typedef struct {
    int64_t *whole;
    float *real, *score;
    uint8_t *alive;
    long rows, slots;
} nodes;

/* Columns of a tree that entries are made from, (rows, slots) each. */
typedef struct {
    const int64_t *token, *parent, *depth;
    const uint8_t *alive;
    long rows, slots;
} columns;

/* slot: (rows, count), -1 for none; sight: (rows, count, keys). */
typedef struct {
    int64_t *slot;
    uint8_t *sight;
    long count, keys;
} entries;

/* Of the new entries: (rows, count), and their parents' states, (rows, count, width). asked: (rows). */
typedef struct {
    int64_t *token, *position;
    float *features;
    uint8_t *asked;
    long count, width;
} level;

/* Of a batch's S real slots: (S) each, and index: (rows, n). size, span: (rows). */
typedef struct {
    int64_t *number, *row, *slot, *index;
    long *size, *span;
} layout;

/* See `LevelPlan` (level_plan.py). reranked: 0 if candidates join by threshold. entropy: m of rank_rows. network: NULL for the joint
   probability; inputs: its columns. */
typedef struct {
    long K, width, levels, reranked, most, strict, entropy;
    const network *network;
    const int64_t *inputs;
    float threshold;
} plan;

/* table: embeddings of so many tokens. ids: the tokens that are drafted from, NULL for all. room: floats that the
   layers need for a state, and for each slot that it sees, `lanes` for each thread. all: LM head of all tokens, NULL
   without out-of-vocabulary tokens. base: the residual's input. norm: of the layers' outputs, NULL if they have
   none, with the reader's epsilon; normed: the outputs so normalised are the states, else only what the LM head
   reads. */
typedef struct {
    reader read;
    matrix lm_head;
    const float *norm;
    long base, normed;
    const layer *layers;
    long count;
    const void *table;
    long embeddings, is_bf16;
    const int64_t *ids;
    long vocabulary, hidden, room, lanes;
    const void *all;
    long all_is_bf16;
} head;

/* The rows' roots: tokens, tokens before each, states (rows, hidden). The cache has `text_slots` for the texts, and row
   r's first slot is r * step. oov_ids: out-of-vocabulary tokens of the texts, (rows, oov_count), -1 for none. */
typedef struct {
    long rows;
    const int64_t *root, *lengths;
    const float *hidden;
    void *const *keys;
    long values, head, step, text_slots;
    const float *cosine, *sine;
    long positions;
    const int64_t *oov_ids;
    long oov_count;
} text;

/* N-grams that raise the logits, see ngrams.c; prior: NULL for none. */
typedef struct {
    const int64_t *text;
    long stride, longest;
    const int64_t *lengths;
    const prior *prior;
} ngrams;

/* The noise of the target's samples, see noise.py; temperature: NULL for none. */
typedef struct {
    const float *temperature;
    const int64_t *stream, *root;
} noise;

/* A budget's input, see budget.py: seconds of a round with trees without its forwards; the weight of a token of each row;
   model: NULL without a budget. */
typedef struct {
    const RoundModel *model;
    const double *row_weight;
    double start;
    long most;
} budget_input;

/* A call from one file into another is to ours, whatever else the process has loaded under the same name. */
#pragma GCC visibility push(protected)

/* compact.c */
int compact(char *const *buffers, long layers, long rows, long heads, long half, long head, long bytes,
            const int64_t *index, long steps, const int64_t *count, const int64_t *source, const int64_t *target);

/* draft_phase.c */
long room_of(const plan *p, const head *h, const text *t, int threads);
long draft_phase(const plan *p, const head *h, const text *t, const ngrams *g, const noise *drawn,
                 const void *constraint, const budget_input *s, char *room, int64_t *whole, float *real, float *score,
                 uint8_t *alive, int64_t *capped, int64_t *passes, int64_t *expanded, int threads);

/* entries.c */
long descend(const columns *tree, const int64_t *slots, const int64_t *lengths, const entries *previous,
             const float *hidden, const entries *all, const level *new);
long follow(const int64_t *lengths, const int64_t *count, long rows, long steps, long prefix, int64_t *position,
            uint8_t *sight);

/* layout.c */
long lay_out(const uint8_t *real, long rows, long n, const layout *out);

/* decoder_layers.c */
int decoder_layers(const layer *layers, long count, float *x, float *read, const rotations *tables,
                   const int64_t *position, long rows, const int64_t *wanted, long many, const cache *c, const sight *s,
                   float *room, float *const *taps, int threads);
void linear(const matrix *m, const float *x, long rows, float *room, float *y, long stride, int threads);
int read_both(const reader *how, const void *table, long embeddings, int is_bf16, const int64_t *token,
              const float *states, long rows, float *room, float *y, int threads);
void rms_norm(const float *x, const float *weight, float epsilon, long rows, long width, float *y, int threads);
long lanes(void);
long best_kind(void);
int has_int8(void);
int dpbf16_is_faster(void);

/* masks.c */
void mask_row(float *logits, long vocabulary, const int64_t *ids, const int64_t *oov_ids, long oov_count,
              const void *mask);
void mask_rows(float *logits, long rows, long vocabulary, const int64_t *ids, const int64_t *oov_ids, long oov_count,
               const int64_t *text, const int64_t *mask, int threads);

/* network.c */
void confidences(const network *n, const void *const *columns, long count, float *confidence);

/* ngrams.c */
int raise_followers(const int64_t *text, long stride, long longest, const int64_t *lengths, const int64_t *token,
                    const int64_t *parent, long size, const int64_t *row, const int64_t *slot, long count,
                    float *logits, long count_of_ids, const int64_t *ids, const int64_t *oov_ids, long oov_count,
                    const prior *p);

/* nodes.c */
int take(const nodes *from, const int64_t *index, int64_t *new_index, const nodes *out);
void join(const nodes *first, const nodes *second, const nodes *out);
int children(const nodes *tree, const int64_t *slots, long F, long K, const int64_t *token, const float *log_prob,
             const float *entropy, const nodes *out);
void ancestors(const int64_t *parent, long rows, long slots, uint8_t *reach);
void best(const float *score, const float *second, const uint8_t *alive, long rows, long n, long count, int64_t *index);
long admit(const float *score, const float *joint, const uint8_t *joins, const uint8_t *alive, const uint8_t *expand,
           long rows, long n, const uint8_t *grown, long slots, long width, long most, int strict, long wide,
           uint8_t *usable, int64_t *index, uint8_t *fits, int64_t *frontier, int64_t *capped, int *going);

/* noise.c */
void add_noise(float *logits, long rows, long vocabulary, const int64_t *ids, const int64_t *oov_ids, long oov_count,
               const int64_t *text, const int64_t *position, const float *temperature, const int64_t *stream,
               int threads);

/* oov_tokens.c */
void add_oov_tokens(const float *states, const int64_t *text, long rows, long hidden, const void *lm_head, long is_bf16,
                    const int64_t *ids, long count, float *logits, long vocabulary, int threads);

/* budget.c */
int select_nodes(const RoundModel *model, const double *row_weight, long rows, long size, const void *log_joint,
                 int wide, const uint8_t *alive, const int64_t *parent, const int64_t *slots, long width, double spent,
                 long most, uint8_t *expand, uint8_t *keep, int64_t *order, int64_t *counts);

/* rescored.c */
void rescore(float *logits, long rows, long stride, long vocabulary, long count, const float *states, long hidden,
            const void *lm_head, long is_bf16, const float *bias, int threads);

/* rows.c */
void rank_rows(const float *logits, long rows, long vocabulary, long k, long m, int64_t *token, float *value,
               float *entropy, float *log_norm, int threads);

/* walk.c */
void draw(const float *logits, long stride, long vocabulary, const int64_t *key, long rows, int64_t *token,
          int threads);
long walk(const float *logits, long stride, long vocabulary, const int64_t *index, const int64_t *token,
          const int64_t *parent, const uint8_t *alive, long rows, long slots, const float *temperature,
          const int64_t *stream, const int64_t *root, const void *constraint, int64_t *path, int64_t *length,
          int64_t *bonus, float *largest, int threads);

#pragma GCC visibility pop

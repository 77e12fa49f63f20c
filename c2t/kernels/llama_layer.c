/* Llama's decoder layers for the few rows of a tree, or of a prompt, on a CPU.

   Weights are bf16 or float32, all arithmetic is float32. Whatever is computed for a row does not depend on how many
   rows there are, on the slots that it does not see, nor on the number of threads: every sum runs over the same numbers
   in the same order. So a token's logits in a tree equal those of plain decoding bit for bit.

   Every matrix is stored in panels of 2 W output columns (see `PackedMatrix` in llama_layer.py). While a panel's column
   vectors pass through the registers once, up to MAX_ROWS rows take them along: that many cost little more than one.

   Compiled for the machine that it runs on, by compiled.py. */

#include "vectors.h"

#include <omp.h>

#define MAX_ROWS (W == 16 ? 14 : 6)

typedef float pair[2 * W];

typedef struct {
    const void *panels;
    const float *bias; /* or NULL */
    long inputs, outputs;
    long bf16;
} matrix;

typedef struct {
    matrix qkv, out, gate, up, down;
    const float *read_norm, *norm; /* weights; read_norm is NULL in a layer that reads its input as it is */
    long heads, kv_heads, dim;
    float epsilon;
} layer;

/* Keys of each layer, and its values so many floats behind them: slot s of head h begins at h * head + s * dim. */
typedef struct {
    float *const *keys;
    long values, head;
    const int64_t *place; /* slot of each new token */
} cache;

/* The slots that each of the queries sees: the first count[r] of index + r * stride, in rising order. */
typedef struct {
    const int32_t *index, *count;
    long stride;
} sight;

/* One pass over a panel: `rows` rows of `inputs` numbers against 2 W columns. */
#define TILE(NAME, ROWS, STEP, LOAD)                                                                              \
    static void NAME##ROWS(const void *panel, const float *x, long width, long inputs, pair *y) {                 \
        const uint32_t *w = panel;                                                                                \
        vector sum[ROWS][2];                                                                                      \
        for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = (vector){0};                                       \
        for (long k = 0; k < inputs; k++, w += STEP) {                                                            \
            __builtin_prefetch(w + 96 * W, 0, 2);                                                                \
            vector left, right;                                                                                   \
            LOAD;                                                                                                 \
            _Pragma("GCC unroll 16") for (int r = 0; r < ROWS; r++) {                                             \
                float scalar = x[r * width + k];                                                                  \
                sum[r][0] += scalar * left;                                                                       \
                sum[r][1] += scalar * right;                                                                      \
            }                                                                                                     \
        }                                                                                                         \
        for (int r = 0; r < ROWS; r++) AT(y[r]) = sum[r][0], AT(y[r] + W) = sum[r][1];                            \
    }

/* A word of bf16 holds column i in its low half and column W + i in its high half. */
#define BF16                                                                                                      \
    words both = *(const words *)w;                                                                               \
    left = (vector)(both << 16), right = (vector)(both & 0xffff0000u)
#define FLOAT left = READ(w), right = READ(w + W)
#define TILES(ROWS) TILE(bf16_, ROWS, W, BF16) TILE(float_, ROWS, 2 * W, FLOAT)

TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)
#if W == 16
TILES(7) TILES(8) TILES(9) TILES(10) TILES(11) TILES(12) TILES(13) TILES(14)
#define LIST(NAME)                                                                                                \
    { 0, NAME##1, NAME##2, NAME##3, NAME##4, NAME##5, NAME##6, NAME##7, NAME##8, NAME##9, NAME##10, NAME##11,     \
      NAME##12, NAME##13, NAME##14 }
#else
#define LIST(NAME) { 0, NAME##1, NAME##2, NAME##3, NAME##4, NAME##5, NAME##6 }
#endif

typedef void (*tile)(const void *, const float *, long, long, pair *);
static const tile TILE_OF[2][MAX_ROWS + 1] = {LIST(float_), LIST(bf16_)};

/* y[r] = columns 2 W p and on of x[r] m' + bias. */
static void multiply(const matrix *m, long p, const float *x, long rows, pair *y) {
    long words_of_panel = m->inputs * (m->bf16 ? W : 2 * W);
    TILE_OF[m->bf16][rows]((const uint32_t *)m->panels + p * words_of_panel, x, m->inputs, m->inputs, y);
    if (m->bias)
        for (long r = 0; r < rows; r++)
            for (long i = 0; i < 2 * W; i++) y[r][i] += m->bias[p * 2 * W + i];
}

/* Rows in parts of nearly equal size, the panel of part after part still being in the cache. */
#define PARTS(rows) (((rows) + MAX_ROWS - 1) / MAX_ROWS)
#define FOR_PANELS_AND_PARTS(m, rows)                                                                             \
    _Pragma("omp for schedule(static)") for (long p = 0; p < (m)->outputs / (2 * W); p++)                         \
        for (long part = 0, from = 0, to; part < PARTS(rows); part++, from = to)                                  \
            if (to = (part + 1) * (rows) / PARTS(rows), 1)

static void project(const matrix *m, const float *x, long rows, float *y) {
    pair columns[MAX_ROWS];
    FOR_PANELS_AND_PARTS(m, rows) {
        multiply(m, p, x + from * m->inputs, to - from, columns);
        for (long r = from; r < to; r++) {
            float *place = y + r * m->outputs + p * 2 * W;
            AT(place) = AT(columns[r - from]), AT(place + W) = AT(columns[r - from] + W);
        }
    }
}

static void project_and_add(const matrix *m, const float *x, long rows, float *y) {
    pair columns[MAX_ROWS];
    FOR_PANELS_AND_PARTS(m, rows) {
        multiply(m, p, x + from * m->inputs, to - from, columns);
        for (long r = from; r < to; r++) {
            float *place = y + r * m->outputs + p * 2 * W;
            AT(place) += AT(columns[r - from]), AT(place + W) += AT(columns[r - from] + W);
        }
    }
}

static void gate_and_up(const layer *l, const float *x, long rows, float *y) {
    pair gate[MAX_ROWS], up[MAX_ROWS];
    FOR_PANELS_AND_PARTS(&l->gate, rows) {
        multiply(&l->gate, p, x + from * l->gate.inputs, to - from, gate);
        multiply(&l->up, p, x + from * l->up.inputs, to - from, up);
        for (long r = from; r < to; r++)
            for (long i = 0; i < 2 * W; i += W) {
                vector g = AT(gate[r - from] + i);
                AT(y + r * l->gate.outputs + p * 2 * W + i) = g / (1.0f + exponential(-g)) * AT(up[r - from] + i);
            }
    }
}

static void normalise(const float *x, const float *weight, float epsilon, long rows, long width, float *y) {
#pragma omp for schedule(static)
    for (long r = 0; r < rows; r++) {
        const float *from = x + r * width;
        float *to = y + r * width;
        vector squares = {0};
        for (long i = 0; i < width; i += W) squares += READ(from + i) * READ(from + i);
        float scale = 1.0f / __builtin_sqrtf(total(squares) / width + epsilon);
        for (long i = 0; i < width; i += W) AT(to + i) = READ(from + i) * scale * READ(weight + i);
    }
}

/* Turn queries (in place) and keys, and put keys and values into the cache. cosine, sine: (rows, dim / 2). */
static void turn(const layer *l, float *qkv, const float *cosine, const float *sine, long rows, float *keys,
                 const cache *c) {
    long dim = l->dim, half = dim / 2, heads = l->heads + 2 * l->kv_heads;
#pragma omp for schedule(static)
    for (long r = 0; r < rows; r++)
        for (long h = 0; h < heads; h++) {
            float *from = qkv + (r * heads + h) * dim, *to = from;
            if (h >= l->heads) {
                long head = (h - l->heads) % l->kv_heads;
                to = keys + (h < l->heads + l->kv_heads ? 0 : c->values) + head * c->head + c->place[r] * dim;
            }
            for (long i = 0; i < half; i += W) {
                vector a = AT(from + i), b = AT(from + half + i);
                if (h < l->heads + l->kv_heads) {
                    vector cos = READ(cosine + r * half + i), sin = READ(sine + r * half + i), old = a;
                    a = a * cos - b * sin;
                    b = b * cos + old * sin;
                }
                AT(to + i) = a, AT(to + half + i) = b;
            }
        }
}

/* Sums over the lanes of four vectors, each as `total` has it, since only the order of additions matters. */
static inline void four_totals(const vector *v, float *y) {
    vector low, high;
    float lanes[W];
#if W == 16
    const integers front = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, back = front + 8;
    vector ab = __builtin_shuffle(v[0], v[1], front) + __builtin_shuffle(v[0], v[1], back);
    vector cd = __builtin_shuffle(v[2], v[3], front) + __builtin_shuffle(v[2], v[3], back);
    const integers even = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27}, odd = even + 4;
    low = __builtin_shuffle(ab, cd, even), high = __builtin_shuffle(ab, cd, odd);
    vector all = low + high; /* four lanes of each */
    all += __builtin_shuffle(all, (integers){2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
    all += __builtin_shuffle(all, (integers){1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14});
    AT(lanes) = all;
    for (int i = 0; i < 4; i++) y[i] = lanes[4 * i];
#else
    const integers front = {0, 1, 2, 3, 8, 9, 10, 11}, back = front + 4;
    vector ab = __builtin_shuffle(v[0], v[1], front) + __builtin_shuffle(v[0], v[1], back);
    vector cd = __builtin_shuffle(v[2], v[3], front) + __builtin_shuffle(v[2], v[3], back);
    const integers even = {0, 1, 4, 5, 8, 9, 12, 13}, odd = even + 2;
    low = __builtin_shuffle(ab, cd, even), high = __builtin_shuffle(ab, cd, odd);
    vector all = low + high; /* two lanes of each */
    all += __builtin_shuffle(all, (integers){1, 0, 3, 2, 5, 4, 7, 6});
    AT(lanes) = all;
    for (int i = 0; i < 4; i++) y[i] = lanes[2 * i];
#endif
}

/* Attention of the query heads that share a key-value head, over the slots that their token sees, at least one.
   weights: for each head, room for the number of slots rounded up to W. */
static void attend(const float *query, const float *keys, const float *values, const int32_t *seen, long count,
                   long group, long dim, float *weights, float *y) {
    long padded = (count + W - 1) / W * W;
    float scale = 1.0f / __builtin_sqrtf(dim);
    for (long j = 0; j < count; j += 4) {
        const float *key[4];
        for (int i = 0; i < 4; i++) key[i] = keys + seen[j + i < count ? j + i : count - 1] * dim;
        for (long h = 0; h < group; h++) {
            vector product[4] = {{0}};
            for (long d = 0; d < dim; d += W)
                for (int i = 0; i < 4; i++) product[i] += READ(query + h * dim + d) * READ(key[i] + d);
            four_totals(product, weights + h * padded + j);
        }
    }
    for (long h = 0; h < group; h++) {
        float *of = weights + h * padded, *to = y + h * dim;
        for (long j = count; j < padded; j++) of[j] = -__builtin_inff();
        vector peaks = READ(of), sums = {0};
        for (long j = W; j < padded; j += W) peaks = choose(READ(of + j) > peaks, READ(of + j), peaks);
        float peak = peaks[0];
        for (int i = 1; i < W; i++) peak = peaks[i] > peak ? peaks[i] : peak;
        for (long j = 0; j < padded; j += W) {
            vector all = READ(of + j);
            AT(of + j) = choose(all > -__builtin_inff(), exponential((all - peak) * scale), (vector){0});
            sums += READ(of + j);
        }
        float whole = total(sums);
        for (long d = 0; d < dim; d += 2 * W) {
            vector part[4][2] = {{{0}}}; /* four sums: one would wait for each addition to end before the next */
            for (long j = 0; j < count; j += 4)
                for (int i = 0; i < 4; i++) {
                    const float *value = values + seen[j + i < count ? j + i : count - 1] * dim + d;
                    part[i][0] += of[j + i] * READ(value), part[i][1] += of[j + i] * READ(value + W);
                }
            for (int i = 0; i < 2; i++)
                AT(to + d + i * W) = ((part[0][i] + part[1][i]) + (part[2][i] + part[3][i])) / whole;
        }
    }
}

static void copy(const float *x, long rows, long width, float *y) {
#pragma omp for schedule(static)
    for (long r = 0; r < rows; r++) __builtin_memcpy(y + r * width, x + r * width, width * sizeof *y);
}

/* Layers of the same shape, x (rows, hidden) in place. room: rows * (hidden + max((heads + 2 kv_heads) dim, inner) +
   heads dim) floats, and for each thread (stride of sight + W) floats for each head of a group. taps: where the inputs
   of each layer go, and the last one's outputs; each may be NULL. threads: torch's number, since its OpenMP may be
   another one than this file's. */
void llama_layers(const layer *layers, long count, float *x, const float *cosine, const float *sine, long rows,
                  const cache *c, const sight *s, float *room, float *const *taps, int threads) {
    long hidden = layers->out.outputs, dim = layers->dim, kv_heads = layers->kv_heads, group = layers->heads / kv_heads;
    long heads = layers->heads + 2 * kv_heads;
    long wide = heads * dim > layers->gate.outputs ? heads * dim : layers->gate.outputs;
    float *normal = room, *joined = normal + rows * hidden, *attended = joined + rows * wide;
    float *weights = attended + rows * layers->heads * dim;
#pragma omp parallel num_threads(threads)
    {
        float *mine = weights + omp_get_thread_num() * group * (s->stride + W);
        for (const layer *l = layers; l < layers + count; l++) {
            float *keys = c->keys[l - layers], *tap = taps[l - layers];
            if (tap) copy(x, rows, hidden, tap);
            if (l->read_norm) normalise(x, l->read_norm, l->epsilon, rows, hidden, normal);
            project(&l->qkv, l->read_norm ? normal : x, rows, joined);
            turn(l, joined, cosine, sine, rows, keys, c);
#pragma omp for schedule(static, 1)
            for (long item = 0; item < rows * kv_heads; item++) {
                long r = item / kv_heads, h = item % kv_heads;
                const float *key = keys + h * c->head;
                attend(joined + (r * heads + h * group) * dim, key, key + c->values, s->index + r * s->stride,
                       s->count[r], group, dim, mine, attended + item * group * dim);
            }
            project_and_add(&l->out, attended, rows, x);
            normalise(x, l->norm, l->epsilon, rows, hidden, normal);
            gate_and_up(l, normal, rows, joined);
            project_and_add(&l->down, joined, rows, x);
        }
        if (taps[count]) copy(x, rows, hidden, taps[count]);
    }
}

void linear(const matrix *m, const float *x, long rows, float *y, int threads) {
#pragma omp parallel num_threads(threads)
    project(m, x, rows, y);
}

void rms_norm(const float *x, const float *weight, float epsilon, long rows, long width, float *y, int threads) {
#pragma omp parallel num_threads(threads)
    normalise(x, weight, epsilon, rows, width, y);
}

/* List the slots that each query sees: `prefix` ones from `first` on, and of the `slots` after them those in the mask,
   (rows, slots) bytes. index: (rows, stride). */
void list_seen(const int64_t *first, const int64_t *prefix, const uint8_t *mask, long rows, long slots, long stride,
               int32_t *index, int32_t *count, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long r = 0; r < rows; r++) {
        int32_t *list = index + r * stride;
        long found = 0, tail = first[r] + prefix[r];
        for (; found < prefix[r]; found++) list[found] = (int32_t)(first[r] + found);
        for (long s = 0; s < slots; s++)
            if (mask[r * slots + s]) list[found++] = (int32_t)(tail + s);
        count[r] = (int32_t)found;
    }
}

/* Floats of a vector, for the layout of panels. */
long lanes(void) { return W; }

/* Decoder layers, of Llama and its relatives, for the few rows of a tree, or of a prompt, on a CPU.

   Weights are float32 or bf16, all sums are float32. Products are float32, too, or, where the processor has an
   instruction for it and the caller asks, those of bf16 weights and inputs rounded to bf16: twice as many at a time,
   or in tiles (Intel's AMX) many times more, so that a tree's rows cost next to nothing compared with reading the
   weights. Weights may be rounded to 8 bits, and inputs with them: half the memory and four times as many products
   at a time, for a draft, whose tokens are verified anyway, or for a target that may be another model; or to 4 bits,
   for the int4 target that only drafts, or because the file of the model has 4 or 8 bits with scales of its own.

   Whatever is computed for a row does not depend on how many rows there are, on the slots that it does not see, nor
   on the number of threads: every sum runs over the same numbers in the same order. So a token's logits in a tree
   equal those of plain decoding bit for bit.

   Every matrix is stored in panels of 2 W output columns (see `PackedMatrix` in decoder_layers.py). While a panel's
   column vectors pass through the registers once, up to 14 rows (6 without AVX-512, 32 in tiles) take them along:
   that many cost little more than one.

   Compiled for the machine that it runs on, by compiled.py. */

#include "c2t.h"
#include "barrier.h"
#include "tiles.h"
#include "vectors.h"

#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#if W == 16 && defined(__clang__) /* left to itself it halves vectors, and keeps twice as many sums in memory */
#pragma clang attribute push(__attribute__((min_vector_width(512))), apply_to = function)
#endif
#if W == 16 && defined(__AVX512VNNI__)
#define HAS_INT8
#endif

#define VECTOR_ROWS (W == 16 ? 14 : 6)
#define INT8_ROWS 8 /* of more the compiler keeps sums in memory */

typedef float pair[2 * W];

/* See `Kind` in decoder_layers.py. */
enum { INT4, INT4_K, INT8_GROUPS, INT8_K, INT8, FP32, BF16_STORED, BF16, BF16_AMX };
#define INT8_INPUTS(kind) ((kind) <= INT8) /* inputs are in 8 bits */

/* Words to prefetch, `step` with each number of a row: a little ahead of those in use, or, when the panel has
   been fetched because it serves several parts, the next panel's, a share in the time of each part. */
typedef struct {
    const uint32_t *words;
    long step;
} ahead;

/* One pass over a panel: `rows` rows of inputs, EACH of them a word, against 2 W columns. */
#define PASS(NAME, COUNT, EACH, STEP, LOAD, ADD)                                                                  \
    static void NAME##COUNT(const void *panel, const void *inputs, long count, ahead next, pair *y) {             \
        const uint32_t *w = panel, *x = inputs;                                                                   \
        vector sum[COUNT][2];                                                                                     \
        for (int r = 0; r < COUNT; r++) sum[r][0] = sum[r][1] = (vector){0};                                      \
        for (long k = 0, width = count / EACH; k < width; k++, w += STEP) {                                       \
            __builtin_prefetch(next.words, 0, 2), next.words += next.step;                                        \
            vector left, right;                                                                                   \
            LOAD;                                                                                                 \
            _Pragma("GCC unroll 16") for (int r = 0; r < COUNT; r++) { ADD(x[r * width + k]); }                   \
        }                                                                                                         \
        for (int r = 0; r < COUNT; r++) AT(y[r]) = sum[r][0], AT(y[r] + W) = sum[r][1];                           \
    }

#define MULTIPLY(word)                                                                                            \
    float scalar = (union { uint32_t bits; float number; }){word}.number;                                         \
    sum[r][0] += scalar * left;                                                                                   \
    sum[r][1] += scalar * right

/* A word of bf16 holds column i in its low half and column W + i in its high half. */
#define SPREAD                                                                                                    \
    words both = *(const words *)w;                                                                               \
    left = (vector)(both << 16), right = (vector)(both & 0xffff0000u)
#define FLOAT left = READ(w), right = READ(w + W)

/* For products in bf16, a word of inputs holds two, and one of weights a column's for both. */
#define LISTS_OF_INTEGERS LIST_OF(int4_), LIST_OF(int4_k_), LIST_OF(int8_groups_), LIST_OF(int8_k_), LIST_OF(int8_)
#ifdef __AVX512BF16__
#define MULTIPLY_TWO(word)                                                                                        \
    __m512bh two = (__m512bh)_mm512_set1_epi32(word);                                                             \
    sum[r][0] = (vector)_mm512_dpbf16_ps((__m512)sum[r][0], (__m512bh)left, two);                                 \
    sum[r][1] = (vector)_mm512_dpbf16_ps((__m512)sum[r][1], (__m512bh)right, two)
#define TWO                                                                                                       \
    __builtin_prefetch(next.words - next.step + W, 0, 2);                                                         \
    FLOAT
#define PASSES_OF_BF16(COUNT) PASS(bf16_, COUNT, 2, 2 * W, TWO, MULTIPLY_TWO)
#define LISTS {LISTS_OF_INTEGERS, LIST(fp32_), LIST(bf16_stored_), LIST(bf16_)}
#else
#define PASSES_OF_BF16(COUNT)
#define LISTS {LISTS_OF_INTEGERS, LIST(fp32_), LIST(bf16_stored_)}
#endif

/* For products in 8 bits, a word of weights holds a column's for four inputs, each 128 more than it is, since the
   instruction takes them without sign. It sums whole numbers, which every order leaves the same. The inputs of a row
   have a scale for each BLOCK of them (see `round_to_int8`). */
#define BLOCK 64
#define GROUP 32
#define SMALL_GROUP 16
#define SUPER 256 /* inputs of a block of the kinds _K, whose groups' scales are whole numbers times its own */
typedef struct {
    float scale;
    int32_t start; /* of the sum: what the 128s will add to it is taken off before */
    int16_t sums[BLOCK / SMALL_GROUP]; /* of each SMALL_GROUP of the bytes */
} block;

#ifdef HAS_INT8
/* Four inputs of each row against 2 W columns. */
#define ADD_FOUR(COUNT)                                                                                           \
    _Pragma("GCC unroll 16") for (int r = 0; r < COUNT; r++) {                                                    \
        __m512i four = _mm512_set1_epi32(x[r * count + k]);                                                       \
        sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], left, four);                                                   \
        sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], right, four);                                                  \
    }
/* GCC 12 reads y before the last products are added. With many rows it has no registers for both, and 8 took a tenth
   longer; with few it has, and that is up to 4 % faster. */
#define KEEP_SUMS __asm__ volatile("" ::: "memory")
#define PASS_INT8_INPUTS(COUNT)                                                                                   \
    static void int8_##COUNT(const void *panel, const void *inputs, long count, ahead next, pair *y) {            \
        const uint32_t *w = panel, *x = inputs;                                                                   \
        for (int r = 0; r < COUNT; r++) AT(y[r]) = AT(y[r] + W) = (vector){0};                                    \
        for (long b = 0; b < count / BLOCK; b++, x += BLOCK / 4) {                                                \
            const block *of = (const block *)((const char *)inputs + count) + b;                                  \
            const long apart = count * sizeof(float) / sizeof *of;                                                \
            __m512i sum[COUNT][2];                                                                                \
            for (int r = 0; r < COUNT; r++) sum[r][0] = sum[r][1] = _mm512_set1_epi32(of[r * apart].start);       \
            for (int k = 0; k < BLOCK / 4; k++, w += 2 * W) {                                                     \
                __builtin_prefetch(next.words, 0, 2), __builtin_prefetch(next.words + W, 0, 2);                   \
                next.words += next.step;                                                                          \
                __m512i left = _mm512_loadu_si512(w), right = _mm512_loadu_si512(w + W);                          \
                ADD_FOUR(COUNT);                                                                                  \
            }                                                                                                     \
            if (COUNT > 4) KEEP_SUMS;                                                                             \
            for (int r = 0; r < COUNT; r++)                                                                       \
                for (int side = 0; side < 2; side++)                                                              \
                    AT(y[r] + side * W) += (vector)_mm512_cvtepi32_ps(sum[r][side]) * of[r * apart].scale;        \
        }                                                                                                         \
    }

/* The other kinds have a scale for each group of inputs: FIRST stands before so many (OUTER) inputs, BEFORE before each
   group (INNER), whose bytes or halves of bytes LOAD takes, four inputs at a time. START: of a group's sum, ADD: what the
   group adds to an output. Of halves of bytes, the low ones are columns i, the high ones columns W + i. Left to itself
   GCC 12 keeps the loop over a group from six rows on, and then moves every sum around it: 7 rows took 1.4 times as
   long. */
#define GROUPED(NAME, COUNT, OUTER, INNER, FIRST, BEFORE, LOAD, START, ADD)                                       \
    static void NAME##COUNT(const void *panel, const void *inputs, long count, ahead next, pair *y) {             \
        const char *w = panel, *top = panel;                                                                      \
        const uint32_t *x = inputs;                                                                               \
        const block *of = (const block *)((const char *)inputs + count);                                          \
        const long apart = count * sizeof(float) / sizeof *of;                                                    \
        for (int r = 0; r < COUNT; r++) AT(y[r]) = AT(y[r] + W) = (vector){0};                                    \
        for (long i = 0; i < count;) {                                                                            \
            vector first[2] = {{0}}, second[2] = {{0}}, scale[2], least[2] = {{0}};                               \
            top = w;                                                                                              \
            FIRST;                                                                                                \
            for (long g = 0; g < OUTER / INNER; g++, i += INNER, x += INNER / 4) {                                \
                BEFORE;                                                                                           \
                const block *block_of = of + i / BLOCK;                                                           \
                const long part = i % BLOCK / SMALL_GROUP;                                                        \
                __m512i sum[COUNT][2];                                                                            \
                for (int r = 0; r < COUNT; r++) {                                                                 \
                    const block *its = block_of + r * apart;                                                      \
                    sum[r][0] = sum[r][1] = _mm512_set1_epi32(START);                                             \
                    (void)its;                                                                                    \
                }                                                                                                 \
                _Pragma("GCC unroll 8") for (int k = 0; k < INNER / 4; k++) {                                     \
                    LOAD;                                                                                         \
                    ADD_FOUR(COUNT);                                                                              \
                }                                                                                                 \
                if (COUNT > 6) KEEP_SUMS;                                                                         \
                for (int r = 0; r < COUNT; r++) {                                                                 \
                    const block *its = block_of + r * apart;                                                      \
                    float all = SUM_OF_GROUP;                                                                     \
                    (void)all;                                                                                    \
                    for (int side = 0; side < 2; side++) {                                                        \
                        vector scaled = scale[side] * (vector)_mm512_cvtepi32_ps(sum[r][side]);                   \
                        AT(y[r] + side * W) += ADD * its->scale;                                                  \
                    }                                                                                             \
                }                                                                                                 \
            }                                                                                                     \
            (void)first, (void)second, (void)least, (void)top;                                                    \
        }                                                                                                         \
    }
#define LINE __builtin_prefetch(next.words, 0, 2), next.words += next.step
#define SUM_OF_GROUP (its->sums[part] + its->sums[part + 1])
#define OF_HALVES(at) (vector)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(at)))
#define OF_BYTES(EXTEND, at) (vector)_mm512_cvtepi32_ps(EXTEND(_mm_loadu_si128((const __m128i *)(at))))
#define NIBBLES                                                                                                   \
    LINE;                                                                                                         \
    const __m512i low = _mm512_set1_epi8(15), both = _mm512_loadu_si512(w), left = _mm512_and_si512(both, low);   \
    const __m512i right = _mm512_and_si512(_mm512_srli_epi32(both, 4), low);                                      \
    w += 4 * W
#define BYTES                                                                                                     \
    LINE, LINE;                                                                                                   \
    const __m512i left = _mm512_loadu_si512(w), right = _mm512_loadu_si512(w + 4 * W);                            \
    w += 8 * W
#define FOR_SIDES for (int side = 0; side < 2; side++)

/* INT4: before each GROUP a scale of each column and the number that 0 stands for, in fp16. */
#define SCALE_AND_LEAST                                                                                           \
    FOR_SIDES scale[side] = OF_HALVES(w + side * 2 * W), least[side] = OF_HALVES(w + (2 + side) * 2 * W), LINE;   \
    w += 8 * W
#define PASS_OF_INT4(COUNT)                                                                                       \
    GROUPED(int4_, COUNT, GROUP, GROUP, , SCALE_AND_LEAST, NIBBLES, 0, (scaled + least[side] * all))

/* INT4_K: before each SUPER two numbers in fp16, before each GROUP two bytes, which are multiples of them: the scale,
   and what is taken off. */
#define TWO_OF_SUPER                                                                                              \
    FOR_SIDES first[side] = OF_HALVES(w + side * 2 * W), second[side] = OF_HALVES(w + (2 + side) * 2 * W), LINE;  \
    w += 8 * W
#define TWO_MULTIPLES                                                                                             \
    FOR_SIDES {                                                                                                   \
        scale[side] = first[side] * OF_BYTES(_mm512_cvtepu8_epi32, w + side * W);                                 \
        least[side] = second[side] * OF_BYTES(_mm512_cvtepu8_epi32, w + (2 + side) * W);                          \
    }                                                                                                             \
    LINE;                                                                                                         \
    w += 4 * W
#define PASS_OF_INT4_K(COUNT)                                                                                     \
    GROUPED(int4_k_, COUNT, SUPER, GROUP, TWO_OF_SUPER, TWO_MULTIPLES, NIBBLES, 0, (scaled - least[side] * all))

/* INT8_GROUPS: before each GROUP a scale in fp16; bytes are 128 more than they stand for. */
#define SCALE_ALONE                                                                                               \
    FOR_SIDES scale[side] = OF_HALVES(w + side * 2 * W);                                                          \
    LINE;                                                                                                         \
    w += 4 * W
#define PASS_OF_INT8_GROUPS(COUNT)                                                                                \
    GROUPED(int8_groups_, COUNT, GROUP, GROUP, , SCALE_ALONE, BYTES, -128 * SUM_OF_GROUP, scaled)

/* INT8_K: before each SUPER a number in fp16, and bytes with a sign, whose multiples of it are the scales of each
   SMALL_GROUP. */
#define SCALES_OF_SUPER                                                                                           \
    FOR_SIDES first[side] = OF_HALVES(w + side * 2 * W);                                                          \
    for (int line = 0; line < 1 + SUPER / SMALL_GROUP / 2; line++) LINE;                                          \
    w += 4 * W + SUPER / SMALL_GROUP * 2 * W
#define MULTIPLE                                                                                                  \
    FOR_SIDES scale[side] =                                                                                       \
        first[side] * OF_BYTES(_mm512_cvtepi8_epi32, top + 4 * W + (2 * g + side) * W)
#define PASS_OF_INT8_K(COUNT)                                                                                     \
    GROUPED(int8_k_, COUNT, SUPER, SMALL_GROUP, SCALES_OF_SUPER, MULTIPLE, BYTES, -128 * its->sums[part], scaled)

#define PASSES_OF_INTEGERS(COUNT)                                                                                 \
    PASS_INT8_INPUTS(COUNT) PASS_OF_INT4(COUNT) PASS_OF_INT4_K(COUNT) PASS_OF_INT8_GROUPS(COUNT) PASS_OF_INT8_K(COUNT)
PASSES_OF_INTEGERS(1) PASSES_OF_INTEGERS(2) PASSES_OF_INTEGERS(3) PASSES_OF_INTEGERS(4)
PASSES_OF_INTEGERS(5) PASSES_OF_INTEGERS(6) PASSES_OF_INTEGERS(7) PASSES_OF_INTEGERS(8)
#define LIST_OF(NAME) {0, NAME##1, NAME##2, NAME##3, NAME##4, NAME##5, NAME##6, NAME##7, NAME##8}
#else
#define LIST_OF(NAME) {0}
#endif

#define PASSES(COUNT)                                                                                             \
    PASS(fp32_, COUNT, 1, 2 * W, FLOAT, MULTIPLY) PASS(bf16_stored_, COUNT, 1, W, SPREAD, MULTIPLY)               \
    PASSES_OF_BF16(COUNT)

PASSES(1) PASSES(2) PASSES(3) PASSES(4) PASSES(5) PASSES(6)
#if W == 16
PASSES(7) PASSES(8) PASSES(9) PASSES(10) PASSES(11) PASSES(12) PASSES(13) PASSES(14)
#define LIST(NAME)                                                                                                \
    { 0, NAME##1, NAME##2, NAME##3, NAME##4, NAME##5, NAME##6, NAME##7, NAME##8, NAME##9, NAME##10, NAME##11,     \
      NAME##12, NAME##13, NAME##14 }
#else
#define LIST(NAME) { 0, NAME##1, NAME##2, NAME##3, NAME##4, NAME##5, NAME##6 }
#endif

typedef void (*pass)(const void *, const void *, long, ahead, pair *);
static const pass PASS_OF[][VECTOR_ROWS + 1] = LISTS;

/* Inputs of a matrix are stored as its kind requires: `input_at` gives the i-th one's address, `put` stores W of them.
   For 8 bits they are stored as floats, and a whole row is rounded then. */
static inline void *input_at(void *inputs, long i, long kind) { return (char *)inputs + i * (kind >= BF16 ? 2 : 4); }

static inline void put(void *inputs, long i, vector numbers, long kind) {
#ifdef __AVX512BF16__
    if (kind >= BF16) {
        _mm256_storeu_si256(input_at(inputs, i, kind), (__m256i)_mm512_cvtneps_pbh((__m512)numbers));
        return;
    }
#endif
    AT(input_at(inputs, i, kind)) = numbers;
}

/* Round a row of floats to 8 bits, in place: the bytes, then each block's scale. */
static void round_to_int8(void *row, long count) {
#ifdef HAS_INT8
    block blocks[count / BLOCK];
    for (long b = 0; b < count / BLOCK; b++) {
        vector x[BLOCK / W], peaks = {0}, zeros = {0};
        for (int i = 0; i < BLOCK / W; i++) {
            x[i] = READ((float *)row + b * BLOCK + i * W);
            vector size = choose(x[i] < 0.0f, -x[i], x[i]);
            peaks = choose(size > peaks, size, peaks), zeros += x[i] * 0.0f;
        }
        float peak = greatest(peaks), to_byte = peak > 0 ? 127.0f / peak : 0;
        int sums[BLOCK / W];
        for (int i = 0; i < BLOCK / W; i++) {
            __m512i whole = _mm512_cvtps_epi32((__m512)(x[i] * to_byte));
            sums[i] = _mm512_reduce_add_epi32(whole);
            _mm_storeu_si128((__m128i *)((char *)row + b * BLOCK + i * W), _mm512_cvtsepi32_epi8(whole));
        }
        /* NaN and infinity make the scale NaN, and the sums anything */
        uint32_t all = (uint32_t)sums[0] + sums[1] + sums[2] + sums[3];
        blocks[b] = (block){peak / 127.0f + total(zeros), -128u * all, {sums[0], sums[1], sums[2], sums[3]}};
    }
    memcpy((char *)row + count, blocks, sizeof blocks);
#endif
}

/* Words of a panel. */
static long words_of(long kind, long inputs) {
    switch (kind) {
        case INT4: return inputs / GROUP * (2 + GROUP / 4) * W;
        case INT4_K: return inputs / SUPER * (2 + SUPER / GROUP * (1 + GROUP / 4)) * W;
        case INT8_GROUPS: return inputs / GROUP * (1 + 2 * GROUP / 4) * W;
        case INT8_K: return inputs / SUPER * (1 + SUPER / SMALL_GROUP / 2 + 2 * SUPER / 4) * W;
        case INT8: return inputs / 4 * 2 * W;
        case BF16_STORED: return inputs * W;
        case FP32: return inputs * 2 * W;
        default: return inputs / 2 * 2 * W;
    }
}

/* y[r] = columns 2 W p and on of x[r] m' + bias, for the rows of one of several parts, from number `from` on. */
static void multiply(const matrix *m, long p, const void *x, long from, long rows, long part, long parts, pair *y) {
    for (; m->rest && p >= m->panels_here; m = m->rest) p -= m->panels_here;
    long step = m->kind < INT8 || m->kind == BF16_STORED ? W : 2 * W; /* words for each line to fetch ahead */
    long words = words_of(m->kind, m->inputs);
    const uint32_t *panel = (const uint32_t *)m->panels + p * words;
    ahead near = {panel + 96 * W, step}, next = {panel + words * (parts + part) / parts, (step + parts - 1) / parts};
    ahead soon = parts == 1 ? near : next;
    const void *first = input_at((void *)x, from * m->inputs, m->kind);
#ifdef HAS_AMX
    if (m->kind == BF16_AMX)
        multiply_tiles(panel, first, m->inputs, rows, soon.words, soon.step, y);
    else
#endif
        PASS_OF[m->kind][rows](panel, first, m->inputs, soon, y);
    if (m->kind == INT8)
        for (long r = 0; r < rows; r++)
            for (long i = 0; i < 2 * W; i += W) AT(y[r] + i) *= READ(m->scales + p * 2 * W + i);
    if (m->bias)
        for (long r = 0; r < rows; r++)
            for (long i = 0; i < 2 * W; i++) y[r][i] += m->bias[p * 2 * W + i];
}

/* Rows in parts of nearly equal size, the panel of part after part still being in the cache. */
static inline long parts_of(const matrix *m, long rows) {
    long most = m->kind == BF16_AMX ? MAX_ROWS : INT8_INPUTS(m->kind) ? INT8_ROWS : VECTOR_ROWS;
    return (rows + most - 1) / most;
}
#define FOR_PANELS_AND_PARTS(m, rows)                                                                             \
    long parts = parts_of(m, rows);                                                                               \
    _Pragma("omp for schedule(static) nowait") for (long p = 0; p < (m)->outputs / (2 * W); p++)                  \
        for (long part = 0, from = 0, to; part < parts; part++, from = to)                                        \
            if (to = (part + 1) * (rows) / parts, 1)

static void project(const matrix *m, const void *x, long rows, float *y, long stride) {
    pair columns[MAX_ROWS];
    FOR_PANELS_AND_PARTS(m, rows) {
        multiply(m, p, x, from, to - from, part, parts, columns);
        for (long r = from; r < to; r++) {
            float *out = y + r * stride + p * 2 * W;
            AT(out) = AT(columns[r - from]), AT(out + W) = AT(columns[r - from] + W);
        }
    }
    barrier_wait();
}

static void project_and_add(const matrix *m, const void *x, long rows, float *y) {
    pair columns[MAX_ROWS];
    FOR_PANELS_AND_PARTS(m, rows) {
        multiply(m, p, x, from, to - from, part, parts, columns);
        for (long r = from; r < to; r++) {
            float *out = y + r * m->outputs + p * 2 * W;
            AT(out) += AT(columns[r - from]), AT(out + W) += AT(columns[r - from] + W);
        }
    }
    barrier_wait();
}

/* The inputs of `down`. */
static void gate_and_up(const layer *l, const void *x, long rows, void *y) {
    pair gate[MAX_ROWS], up[MAX_ROWS];
    FOR_PANELS_AND_PARTS(&l->gate, rows) {
        multiply(&l->gate, p, x, from, to - from, part, parts, gate);
        multiply(&l->up, p, x, from, to - from, part, parts, up);
        for (long r = from; r < to; r++)
            for (long i = 0; i < 2 * W; i += W) {
                vector g = AT(gate[r - from] + i), power = g;
                if (l->gelu) power = g * (1.5957691216f + 0.0713548162726f * g * g); /* 0.5 (1 + tanh) is a sigmoid */
                vector product = g / (1.0f + exponential(-power)) * AT(up[r - from] + i);
                put(y, r * l->gate.outputs + p * 2 * W + i, product, l->down.kind);
            }
    }
    barrier_wait();
}

/* What brings `width` numbers to the norm's size. */
static inline float norm_scale(const float *x, long width, float epsilon) {
    vector squares = {0};
    for (long i = 0; i < width; i += W) squares += READ(x + i) * READ(x + i);
    return 1.0f / __builtin_sqrtf(total(squares) / width + epsilon);
}

/* y: inputs of a matrix of this kind. */
static void normalise(const float *x, const float *weight, float epsilon, long rows, long width, void *y, long kind) {
#pragma omp for schedule(static) nowait
    for (long r = 0; r < rows; r++) {
        const float *from = x + r * width;
        float scale = norm_scale(from, width, epsilon);
        for (long i = 0; i < width; i += W) put(y, r * width + i, READ(from + i) * scale * READ(weight + i), kind);
        if (INT8_INPUTS(kind)) round_to_int8(input_at(y, r * width, kind), width);
    }
    barrier_wait();
}

/* x += y, normalised. */
static void add_normalised(const float *y, const float *weight, float epsilon, long rows, long width, float *x) {
#pragma omp for schedule(static) nowait
    for (long r = 0; r < rows; r++) {
        const float *from = y + r * width;
        float scale = norm_scale(from, width, epsilon);
        for (long i = 0; i < width; i += W) AT(x + r * width + i) += READ(from + i) * scale * READ(weight + i);
    }
    barrier_wait();
}

/* A row's queries or keys in place, `span` numbers at a time. */
static inline void normalise_spans(float *x, long width, const float *weight, float epsilon, long span) {
    for (float *end = x + width; x < end; x += span) {
        float scale = norm_scale(x, span, epsilon);
        for (long i = 0; i < span; i += W) AT(x + i) = READ(x + i) * scale * READ(weight + i);
    }
}

/* Round inputs that several threads have put. */
static void round_rows(const matrix *m, void *x, long rows) {
    if (!INT8_INPUTS(m->kind)) return;
#pragma omp for schedule(static) nowait
    for (long r = 0; r < rows; r++) round_to_int8(input_at(x, r * m->inputs, INT8), m->inputs);
    barrier_wait();
}

/* Turn queries (in place) and keys, normalised or not, and put keys and values into the cache. t: NULL to turn none. */
static void turn(const layer *l, float *qkv, const rotations *t, const int64_t *position, long rows, void *keys,
                 const cache *c) {
    long dim = l->dim, heads = l->heads + 2 * l->kv_heads, turned = l->heads + l->kv_heads;
#pragma omp for schedule(static) nowait
    for (long r = 0; r < rows; r++) {
        float *row = qkv + r * heads * dim;
        if (l->query_norm) normalise_spans(row, l->heads * dim, l->query_norm, l->epsilon, l->query_span);
        if (l->key_norm)
            normalise_spans(row + l->heads * dim, l->kv_heads * dim, l->key_norm, l->epsilon, l->key_span);
        for (long h = 0; h < heads; h++) {
            float *from = row + h * dim;
            void *to = from;
            long kind = FP32, half = t && h < turned ? t->half : 0;
            if (h >= l->heads) {
                long head = (h - l->heads) % l->kv_heads, slot = head * c->head + (c->slot[r] + c->offset) * dim;
                kind = c->is_bf16 ? BF16 : FP32;
                to = input_at(keys, (h < turned ? 0 : c->values) + slot, kind);
            }
            for (long i = 0; i < half; i += W) {
                long at = position[r] * half + i;
                vector a = AT(from + i), b = AT(from + half + i);
                vector cos = READ(t->cosine + at), sin = READ(t->sine + at);
                put(to, i, a * cos - b * sin, kind), put(to, half + i, b * cos + a * sin, kind);
            }
            for (long i = 2 * half; i < dim && to != from; i += W) put(to, i, READ(from + i), kind);
        }
    }
    barrier_wait();
}

/* Queries of tokens of one text, with one key-value head, at most W: where they are, where their outputs go (inputs of
   a matrix of this kind), from which slot on they see the prefix, and which of the slots after it. first: this thread
   may not have read the head's keys and values before. scale: of the scores. */
typedef struct {
    const float *from[W];
    void *to[W];
    const uint8_t *mask[W];
    long begin[W];
    long count, kind, first;
    float scale;
} queries;

/* Where the i-th number of the cache is, and W numbers from there on. */
static inline const void *slot(const void *numbers, long i, const int kind) {
    return input_at((void *)numbers, i, kind);
}

static inline vector number(const void *numbers, long i, const int kind) {
    return kind >= BF16 ? widened((const uint16_t *)numbers + i) : READ((const float *)numbers + i);
}

/* The processor itself fetches ahead within a page of 4 kB only: `count` slots of 64 numbers. */
static inline void fetch(const void *numbers, long from, long count, const int kind) {
    for (long i = 0; i < count; i += kind >= BF16 ? 32 : 16) __builtin_prefetch(slot(numbers, from + i, kind), 0, 2);
}

/* Products of a query and W keys, both in float32 or both in bf16. */
static inline __attribute__((always_inline)) vector products(const void *query, const void *const *key, long dim,
                                                             const int kind) {
    vector product[W];
    _Pragma("GCC unroll 16") for (int i = 0; i < W; i++) {
        product[i] = (vector){0};
#ifdef __AVX512BF16__
        for (long d = 0; kind == BF16 && d < dim; d += 2 * W) {
            __m512bh two = (__m512bh)READ((const uint16_t *)query + d);
            product[i] = (vector)_mm512_dpbf16_ps((__m512)product[i], (__m512bh)READ((const uint16_t *)key[i] + d), two);
        }
#endif
        for (long d = 0; kind == FP32 && d < dim; d += W)
            product[i] += READ((const float *)query + d) * READ((const float *)key[i] + d);
    }
    return totals(product);
}

/* Scores of some queries, `from` their numbers, over `seen` slots: weights (queries, stride). */
static inline __attribute__((always_inline)) void score(const queries *of, const void *const *from, const void *keys,
                                                        long seen, long dim, const int kind, float *weights,
                                                        long stride) {
    for (long j = 0; j < seen; j += W) {
        if (of->first) fetch(keys, (j + W) * dim, W * dim, kind);
        const void *key[W];
        for (int i = 0; i < W; i++) key[i] = slot(keys, (j + i < seen ? j + i : seen - 1) * dim, kind);
        for (long q = 0; q < of->count; q++) AT(weights + q * stride + j) = products(from[q], key, dim, kind);
    }
}

#ifdef HAS_AMX
/* The same in tiles. They compute keys by queries; queries by keys are stored. */
static inline void score_in_tiles(const queries *of, const void *const *from, const void *keys, long seen, long dim,
                                  float *weights, long stride) {
    uint32_t words[dim / 2][W];
    for (long q = 0; q < W; q++)
        for (long d = 0; d < dim / 2; d++) words[d][q] = q < of->count ? ((const uint32_t *)from[q])[d] : 0;
    for (long j = 0, rows; j < seen; j += rows) {
        rows = seen - j < MAX_ROWS ? seen - j : MAX_ROWS;
        if (of->first) fetch(keys, (j + rows) * dim, MAX_ROWS * dim, BF16_AMX);
        vector scores[MAX_ROWS];
        score_tiles(words, slot(keys, j * dim, BF16_AMX), dim, rows, (float (*)[W])scores);
        for (long half = 0; half < rows; half += W) {
            transpose(scores + half);
            for (long q = 0; q < of->count; q++) AT(weights + q * stride + j + half) = scores[half + q];
        }
    }
}
#endif

/* Queries that are mixed together, and vectors of a value's numbers: their sums fit into the registers. */
#if W == 16
#define MIXED 5
#else
#define MIXED 4
#endif
#define WIDE (W / 4)

/* Slots whose values are mixed into the sums of all queries before the next ones': they stay in the cache. */
#define SPAN 256

/* Add the values of slots `from` to `to`, numbers d and on, `vectors` vectors of them, to the sums of some queries from
   q on, by their weights: the sums run over the slots one by one, so that one without weight changes nothing, wherever
   it stands. whole: sums of the weights, made with the first numbers. ahead: the next slots' values are fetched. */
static inline __attribute__((always_inline)) void mix_part(long q, const int some, const float *weights, long stride,
                                                           const void *values, long from, long to, long dim, long d,
                                                           const int vectors, float *sums, vector *whole, int ahead,
                                                           const int kind) {
    vector sum[MIXED][WIDE];
    for (int i = 0; i < some; i++)
        for (int v = 0; v < vectors; v++) sum[i][v] = READ(sums + (q + i) * dim + d + v * W);
    for (long j = from; j < to; j++) {
        vector value[WIDE];
        if (ahead) fetch(values, (j + W) * dim + d, vectors * W, kind);
        _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++) value[v] = number(values, j * dim + d + v * W, kind);
        _Pragma("GCC unroll 5") for (int i = 0; i < some; i++) {
            vector weight = (vector){0} + weights[(q + i) * stride + j];
            _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++) sum[i][v] += weight * value[v];
            if (d == 0) whole[q + i] += weight;
        }
    }
    for (int i = 0; i < some; i++)
        for (int v = 0; v < vectors; v++) AT(sums + (q + i) * dim + d + v * W) = sum[i][v];
}

static inline __attribute__((always_inline)) void mix(long q, const int some, const float *weights, long stride,
                                                      const void *values, long from, long to, long dim, float *sums,
                                                      vector *whole, int ahead, const int kind) {
    long d = 0;
#define MIX_PART(VECTORS) mix_part(q, some, weights, stride, values, from, to, dim, d, VECTORS, sums, whole, ahead, kind)
    for (; d + WIDE * W <= dim; d += WIDE * W) MIX_PART(WIDE);
    if (d < dim) MIX_PART(2);
}

/* Attention of some queries, rounded as the keys are, over the slots of a prefix from each one's first on, and those of
   the next `slots` that their masks select; each sees at least one. The values of the others have weight 0, so they must be
   finite: zeros, or an older token's. weights: for each query room for the number of slots rounded up to W. */
static inline __attribute__((always_inline)) void attend_to(const queries *of, const void *keys, const void *values,
                                                            long prefix, long slots, long dim, const int kind,
                                                            float *weights) {
    long seen = prefix;
    for (long q = 0; q < of->count; q++)
        for (long s = slots; s > seen - prefix; s--)
            if (of->mask[q][s - 1]) seen = prefix + s;
    long stride = (seen + W - 1) / W * W;
    const void *from[W];
    uint16_t rounded[kind >= BF16 ? W * dim : 1];
    for (long q = 0; q < of->count; q++) {
        from[q] = kind >= BF16 ? (const void *)(rounded + q * dim) : of->from[q];
        for (long d = 0; kind >= BF16 && d < dim; d += W) put(rounded, q * dim + d, READ(of->from[q] + d), kind);
    }
#ifdef HAS_AMX
    if (kind == BF16_AMX)
        score_in_tiles(of, from, keys, seen, dim, weights, stride);
    else
#endif
        score(of, from, keys, seen, dim, kind, weights, stride);
    float scale = of->scale;
    for (long q = 0; q < of->count; q++) {
        float *line = weights + q * stride;
        for (long j = 0; j < of->begin[q]; j++) line[j] = -INFINITE;
        for (long j = prefix; j < seen; j++)
            if (!of->mask[q][j - prefix]) line[j] = -INFINITE;
        for (long j = seen; j < stride; j++) line[j] = -INFINITE;
        vector peaks = READ(line);
        for (long j = W; j < stride; j += W) peaks = choose(READ(line + j) > peaks, READ(line + j), peaks);
        float peak = greatest(peaks);
        for (long j = 0; j < stride; j += W) {
            vector score = READ(line + j);
            AT(line + j) = choose(score > -INFINITE, exponential((score - peak) * scale), (vector){0});
        }
    }
    float sums[W * dim];
    vector whole[W] = {{0}};
    for (long d = 0; d < of->count * dim; d += W) AT(sums + d) = (vector){0};
    long parts = (of->count + MIXED - 1) / MIXED;
    for (long begin = 0, end; begin < seen; begin = end) {
        end = seen - begin < SPAN ? seen : begin + SPAN;
        for (long part = 0, q = 0, to; part < parts; part++, q = to) {
            to = (part + 1) * of->count / parts;
#define MIX(COUNT)                                                                                                \
    case COUNT: mix(q, COUNT, weights, stride, values, begin, end, dim, sums, whole, of->first && !part, kind); break
            switch (to - q) {
                MIX(1);
                MIX(2);
                MIX(3);
                MIX(4);
#if MIXED == 5
                MIX(5);
#endif
            }
        }
    }
    for (long q = 0; q < of->count; q++)
        for (long d = 0; d < dim; d += W) put(of->to[q], d, READ(sums + q * dim + d) / whole[q], of->kind);
}

static void attend(const queries *of, const void *keys, const void *values, long prefix, long slots, long dim, long kind,
                   float *weights) {
#define ATTEND(DIM, KIND) attend_to(of, keys, values, prefix, slots, DIM, KIND, weights)
#define ATTEND_IN(KIND)                                                                                           \
    dim == 64 ? ATTEND(64, KIND) : dim == 128 ? ATTEND(128, KIND) : dim == 256 ? ATTEND(256, KIND) : ATTEND(dim, KIND)
    if (kind == BF16_AMX) /* known to the compiler, its loops are straight; so are those of the usual dimensions */
        ATTEND_IN(BF16_AMX);
    else if (kind == BF16)
        ATTEND_IN(BF16);
    else
        ATTEND_IN(FP32);
}

#define FEW 4 /* queries at least, for which a thread reads keys and values that another one has read */

/* Parts of a text's queries, each with one of the heads an item of a thread: those whose busiest thread has the fewest
   queries, and of such the fewest. */
static long even_parts(long queries, long heads, long threads) {
    long first = (queries + W - 1) / W, best = first, least = 0;
    for (long parts = first; parts < first + threads && (parts == first || queries / parts >= FEW); parts++) {
        long busiest = (parts * heads + threads - 1) / threads * ((queries + parts - 1) / parts);
        if (!least || busiest < least) least = busiest, best = parts;
    }
    return best;
}

/* The first slot of the prefix that a token at this position sees. */
static inline long first_seen(const layer *l, int64_t position, long prefix) {
    long first = l->window && position >= l->window ? position - l->window + 1 : 0;
    return first < prefix ? first : prefix;
}

/* Attention of tokens, whose queries are in qkv; y: (rows, heads dim), the inputs of `out`. wanted: numbers of these
   tokens in qkv, NULL if they are all. */
static void attention(const layer *l, const float *qkv, const int64_t *position, const void *keys, const int64_t *wanted,
                      long rows, const cache *c, const sight *s, float *weights, void *y) {
#define TOKEN(R) (wanted ? wanted[R] : (R))
    const uint8_t *mask = l->window ? s->windowed : s->mask;
    long group = l->heads / l->kv_heads, heads = l->heads + 2 * l->kv_heads, dim = l->dim;
    long kind = !c->is_bf16 ? FP32 : l->qkv.kind == BF16_AMX ? BF16_AMX : BF16;
    long mine = omp_get_thread_num(), threads = omp_get_num_threads(), item = 0;
    for (long from = 0, to; from < rows; from = to) {
        for (to = from + 1; to < rows && s->first[TOKEN(to)] == s->first[TOKEN(from)]; to++) {}
        long all = (to - from) * group, parts = (all + W - 1) / W;
        if (to - from == rows) parts = even_parts(all, l->kv_heads, threads); /* several texts are items enough */
        for (long part = 0; part < parts; part++)
            for (long h = 0; h < l->kv_heads; h++) {
                if (item++ % threads != mine) continue;
                queries of = {.count = 0, .kind = l->out.kind, .first = part < threads, .scale = l->scale};
                long prefix = s->prefix[TOKEN(from)], begin = prefix; /* none of them sees the slots before `begin` */
                for (long q = part * all / parts; q < (part + 1) * all / parts; q++) {
                    long r = from + q / group, token = TOKEN(r), head = h * group + q % group;
                    long first = first_seen(l, position[token], prefix);
                    of.from[of.count] = qkv + (token * heads + head) * dim;
                    of.to[of.count] = input_at(y, (r * l->heads + head) * dim, of.kind);
                    of.begin[of.count] = first, begin = first < begin ? first : begin;
                    of.mask[of.count++] = mask + token * s->slots;
                }
                for (long q = 0; q < of.count; q++) of.begin[q] -= begin;
                long at = h * c->head + (s->first[TOKEN(from)] + begin) * dim;
                const void *key = slot(keys, at, kind), *value = slot(keys, at + c->values, kind);
                attend(&of, key, value, prefix - begin, s->slots, dim, kind, weights);
            }
    }
    barrier_wait();
}

/* W numbers of the embeddings. */
static inline vector embedding(const void *table, long at, int is_bf16) {
    return is_bf16 ? widened((const uint16_t *)table + at) : READ((const float *)table + at);
}

static void copy(const float *x, long rows, long width, void *y, long kind) {
    long whole = width / W * W, left = width - whole;
#pragma omp for schedule(static) nowait
    for (long r = 0; r < rows; r++) {
        for (long i = 0; i < whole; i += W) put(y, r * width + i, READ(x + r * width + i), kind);
        if (INT8_INPUTS(kind)) round_to_int8(input_at(y, r * width, kind), width);
        if (!left) continue;
        float last[W] = {0}, as_put[W]; /* a whole vector would run into the next row */
        memcpy(last, x + r * width + whole, left * sizeof *last);
        put(as_put, 0, AT(last), kind);
        memcpy(input_at(y, r * width + whole, kind), as_put, (char *)input_at(as_put, left, kind) - (char *)as_put);
    }
    barrier_wait();
}

/* Inputs of a matrix of this kind: a state, normalised if the layer does that. */
static void read_state(const layer *l, const float *x, const float *norm, long rows, long hidden, void *y, long kind) {
    if (norm)
        normalise(x, norm, l->epsilon, rows, hidden, y, kind);
    else
        copy(x, rows, hidden, y, kind);
}

/* x += inputs m' + bias, normalised if the layer does that. room: rows * hidden floats. */
static void add_output(const layer *l, const matrix *m, void *inputs, const float *norm, long rows, float *room,
                       float *x) {
    round_rows(m, inputs, rows);
    if (!norm) {
        project_and_add(m, inputs, rows, x);
        return;
    }
    project(m, inputs, rows, room, m->outputs);
    add_normalised(room, norm, l->epsilon, rows, m->outputs, x);
}

/* Layers of the same shape, x (rows, hidden) in place. wanted: rising numbers of the `many` tokens whose outputs become
   the first rows of x, NULL for all; the last layer makes no more of the others than their keys and values. room:
   rows * (hidden + max((heads + 2 kv_heads) dim, inner) + heads dim) floats, and for each thread W times as many as
   slots can be seen, rounded up to W. read: the first layer's queries, keys and values (rows, (heads + 2 kv_heads) dim),
   if they are not made from x; they are turned in place. taps: where the inputs of each layer go, and the last one's
   outputs; each may be NULL. threads: torch's number, since its OpenMP may be another one than this file's. Returns 1
   if a position is not known. */
int decoder_layers(const layer *layers, long count, float *x, float *read, const rotations *tables,
                   const int64_t *position, long rows, const int64_t *wanted, long many, const cache *c, const sight *s,
                   float *room, float *const *taps, int threads) {
    for (const layer *l = layers; l < layers + count; l++)
        for (long r = 0; r < rows && l->table >= 0; r++)
            if (position[r] < 0 || position[r] >= tables[l->table].positions) return 1;
    long hidden = layers->out.outputs, dim = layers->dim, heads = layers->heads + 2 * layers->kv_heads;
    long wide = heads * dim > layers->gate.outputs ? heads * dim : layers->gate.outputs;
    float *normal = room, *joined = normal + rows * hidden, *attended = joined + rows * wide;
    float *rooms = attended + rows * layers->heads * dim;
    barrier here = {0};
#pragma omp parallel num_threads(threads)
    {
        join_barrier(&here);
        float *mine = rooms + omp_get_thread_num() * (s->longest + s->slots + W) * W;
        long left = rows;
        for (const layer *l = layers; l < layers + count; l++) {
            const int64_t *some = l == layers + count - 1 ? wanted : NULL;
            void *keys = c->keys[l - layers];
            float *tap = taps[l - layers], *qkv = l == layers && read ? read : joined;
            if (tap) copy(x, rows, hidden, tap, FP32);
            if (qkv == joined) {
                read_state(l, x, l->read_norm, rows, hidden, normal, l->qkv.kind);
                project(&l->qkv, normal, rows, qkv, l->qkv.outputs);
            }
            turn(l, qkv, l->table < 0 ? NULL : tables + l->table, position, rows, keys, c);
            if (some) left = many;
            for (long r = 0; some && omp_get_thread_num() == 0 && r < many; r++) /* attention does not read x */
                memmove(x + r * hidden, x + some[r] * hidden, hidden * sizeof *x);
            attention(l, qkv, position, keys, some, left, c, s, mine, attended);
            add_output(l, &l->out, attended, l->out_norm, left, normal, x);
            read_state(l, x, l->norm, left, hidden, normal, l->gate.kind);
            gate_and_up(l, normal, left, joined);
            add_output(l, &l->down, joined, l->down_norm, left, normal, x);
        }
        if (taps[count]) copy(x, left, hidden, taps[count], FP32);
        release_tiles();
    }
    return 0;
}

/* y = x (rows, inputs) m' + bias, `stride` floats from one row to the next. room: rows * inputs floats. */
void linear(const matrix *m, const float *x, long rows, float *room, float *y, long stride, int threads) {
    barrier here = {0};
#pragma omp parallel num_threads(threads)
    {
        join_barrier(&here);
        copy(x, rows, m->inputs, room, m->kind);
        project(m, room, rows, y, stride);
        release_tiles();
    }
}

/* y (rows, outputs) = [embedding of each token | its state] m' + bias, both normalised or not. table: so many
   embeddings of half as many numbers as m has inputs, in bf16 if `is_bf16`, else in float32. room: rows * inputs
   floats. Returns 1 if a token has no embedding. */
int read_both(const reader *how, const void *table, long embeddings, int is_bf16, const int64_t *token,
              const float *states, long rows, float *room, float *y, int threads) {
    const matrix *m = &how->into;
    long width = m->inputs / 2;
    for (long r = 0; r < rows; r++)
        if (token[r] < 0 || token[r] >= embeddings) return 1;
    barrier here = {0};
#pragma omp parallel num_threads(threads)
    {
        join_barrier(&here);
#pragma omp for schedule(static) nowait
        for (long r = 0; r < rows; r++) {
            const float *state = states + r * width;
            float of_token = 1, of_state = 1;
            if (how->token_norm) {
                vector squares[2] = {{0}};
                for (long i = 0; i < width; i += W) {
                    vector number = embedding(table, token[r] * width + i, is_bf16);
                    squares[0] += number * number, squares[1] += READ(state + i) * READ(state + i);
                }
                of_token = 1.0f / __builtin_sqrtf(total(squares[0]) / width + how->epsilon);
                of_state = 1.0f / __builtin_sqrtf(total(squares[1]) / width + how->epsilon);
            }
            for (long i = 0; i < width; i += W) {
                vector number = embedding(table, token[r] * width + i, is_bf16), state_part = READ(state + i);
                if (how->token_norm) {
                    number = number * of_token * READ(how->token_norm + i);
                    state_part = state_part * of_state * READ(how->state_norm + i);
                }
                put(room, r * m->inputs + i, number, m->kind);
                put(room, r * m->inputs + width + i, state_part, m->kind);
            }
            if (INT8_INPUTS(m->kind)) round_to_int8(input_at(room, r * m->inputs, INT8), m->inputs);
        }
        barrier_wait();
        project(m, room, rows, y, m->outputs);
        release_tiles();
    }
    return 0;
}

void rms_norm(const float *x, const float *weight, float epsilon, long rows, long width, float *y, int threads) {
    barrier here = {0};
#pragma omp parallel num_threads(threads)
    {
        join_barrier(&here);
        normalise(x, weight, epsilon, rows, width, y, FP32);
    }
}

/* Floats of a vector, for the layout of panels. */
long lanes(void) { return W; }

/* The best kind of matrix that works here. */
long best_kind(void) {
    long of_vectors = sizeof PASS_OF / sizeof *PASS_OF - 1;
    return of_vectors == BF16 && may_use_tiles() ? BF16_AMX : of_vectors;
}

/* 1 if INT8, INT4 and the kinds between them work here. */
int has_int8(void) { return PASS_OF[INT8][1] != 0; }

/* 1 if BF16 is faster than BF16_STORED. Both have the same instruction, but AMD's processors (Zen 4, measured)
   do twice as many products at a time with it, Intel's no more than without (half as many, or a quarter, measured). */
int dpbf16_is_faster(void) {
#ifdef __AVX512BF16__
    return __builtin_cpu_is("amd") != 0;
#else
    return 0;
#endif
}

#if W == 16 && defined(__clang__)
#pragma clang attribute pop
#endif

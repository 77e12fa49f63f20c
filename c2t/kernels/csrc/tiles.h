/* Products of bf16 in the tiles of a processor (Intel's AMX): up to MAX_ROWS rows of inputs against 32 columns. A row's
   sums are the same bits whatever the other rows are. */

#pragma once
#include <stdint.h>

#define MAX_ROWS 32

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define HAS_AMX
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The processor's eight tiles, of up to 16 rows of 64 bytes: sums of the first rows and of those below, weights of 32
   inputs (two of them in a word) in 16 columns, the rows' inputs. */
#define LEFT 0
#define RIGHT 1
#define LEFT_BELOW 2
#define RIGHT_BELOW 3
#define WEIGHTS_LEFT 4
#define WEIGHTS_RIGHT 5
#define ROWS 6
#define ROWS_BELOW 7
#define HIGH 16

static _Thread_local long shaped; /* for so many rows; 0: this thread uses no tiles */

/* Linux lets a process use tiles when it asks. */
static int may_use_tiles(void) {
    const long ask = 0x1023, data_of_tiles = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, ask, data_of_tiles) == 0;
}

static void shape(long rows) {
    struct {
        uint8_t palette, start, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } tiles = {.palette = 1};
    for (int t = LEFT; t <= ROWS_BELOW; t++) tiles.bytes[t] = 64, tiles.rows[t] = rows < HIGH ? rows : HIGH;
    if (rows > HIGH) tiles.rows[LEFT_BELOW] = tiles.rows[RIGHT_BELOW] = tiles.rows[ROWS_BELOW] = rows - HIGH;
    tiles.rows[WEIGHTS_LEFT] = tiles.rows[WEIGHTS_RIGHT] = HIGH;
    __asm__ volatile("" ::"m"(tiles)); /* GCC believes that the next line reads no more than a word of it */
    _tile_loadconfig(&tiles);
    shaped = rows;
}

/* y = x w' for `rows` rows of `count` inputs, a multiple of 32. weights: for each two inputs a word of each column.
   next: words to prefetch, `step` for each two inputs. */
static void multiply_tiles(const void *weights, const void *inputs, long count, long rows, const uint32_t *next, long step,
                           float (*y)[32]) {
    const char *w = weights, *x = inputs, *below = x + HIGH * 2 * count;
    if (shaped != rows) shape(rows);
    _tile_zero(LEFT);
    _tile_zero(RIGHT);
    _tile_zero(LEFT_BELOW);
    _tile_zero(RIGHT_BELOW);
    for (long k = 0; k < count; k += 32, w += 16 * 128, x += 64, below += 64) {
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++, next += step)
            __builtin_prefetch(next, 0, 2), __builtin_prefetch(next + 16, 0, 2);
        _tile_loadd(WEIGHTS_LEFT, w, 128);
        _tile_loadd(WEIGHTS_RIGHT, w + 64, 128);
        _tile_loadd(ROWS, x, 2 * count);
        _tile_dpbf16ps(LEFT, ROWS, WEIGHTS_LEFT);
        _tile_dpbf16ps(RIGHT, ROWS, WEIGHTS_RIGHT);
        if (rows <= HIGH) continue;
        _tile_loadd(ROWS_BELOW, below, 2 * count);
        _tile_dpbf16ps(LEFT_BELOW, ROWS_BELOW, WEIGHTS_LEFT);
        _tile_dpbf16ps(RIGHT_BELOW, ROWS_BELOW, WEIGHTS_RIGHT);
    }
    _tile_stored(LEFT, y[0], 128);
    _tile_stored(RIGHT, y[0] + 16, 128);
    if (rows <= HIGH) return;
    _tile_stored(LEFT_BELOW, y[HIGH], 128);
    _tile_stored(RIGHT_BELOW, y[HIGH] + 16, 128);
}

/* y = keys queries' for up to MAX_ROWS keys of `dim` numbers, a multiple of 32, and 16 queries, of which `queries` has
   for each two dimensions a word of each. */
static void score_tiles(const void *queries, const void *keys, long dim, long rows, float (*y)[16]) {
    const char *q = queries, *x = keys, *below = x + HIGH * 2 * dim;
    if (shaped != rows) shape(rows);
    _tile_zero(LEFT);
    _tile_zero(LEFT_BELOW);
    for (long k = 0; k < dim; k += 32, q += 16 * 64, x += 64, below += 64) {
        _tile_loadd(WEIGHTS_LEFT, q, 64);
        _tile_loadd(ROWS, x, 2 * dim);
        _tile_dpbf16ps(LEFT, ROWS, WEIGHTS_LEFT);
        if (rows <= HIGH) continue;
        _tile_loadd(ROWS_BELOW, below, 2 * dim);
        _tile_dpbf16ps(LEFT_BELOW, ROWS_BELOW, WEIGHTS_LEFT);
    }
    _tile_stored(LEFT, y[0], 64);
    if (rows > HIGH) _tile_stored(LEFT_BELOW, y[HIGH], 64);
}

/* Leave this thread's tiles as others (torch) expect to find them. */
static void release_tiles(void) {
    if (shaped) _tile_release();
    shaped = 0;
}
#else
static int may_use_tiles(void) { return 0; }
static void release_tiles(void) {}
#endif

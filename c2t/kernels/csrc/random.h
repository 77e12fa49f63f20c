/* Counter hash of the random numbers, as c2t/sampling.py has it. */

#pragma once
#include <stdint.h>

#define STEP 0x9E3779B97F4A7C15u

/* SplitMix64's finaliser. */
static inline uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* A key that depends on one coordinate more. */
static inline uint64_t keyed(uint64_t key, int64_t coordinate) { return mixed(key + ((uint64_t)coordinate + 1) * STEP); }

/* The key of the target's sample at a position of a stream, which is keyed by seed and sequence. */
static inline uint64_t key_of_sample(uint64_t stream, int64_t position) { return keyed(keyed(stream, position), 0); }

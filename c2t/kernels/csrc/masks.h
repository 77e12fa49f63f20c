/* The tokens that a constraint allows, by one bit each; see masks.py. */

#pragma once
#include <stdint.h>

/* Returns the mask after a path of so many tokens after row r's root: (vocabulary + 31) / 32 words; NULL for none. */
typedef const uint32_t *(*mask_after)(long row, const int64_t *path, long length);

static inline int allows(const uint32_t *mask, int64_t token) { return mask[token >> 5] >> (token & 31) & 1; }

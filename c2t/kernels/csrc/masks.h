/* The tokens that a constraint allows, by one bit each; see masks.py. */

#pragma once
#include <stdint.h>

/* Asks for the constraint after a path of so many tokens after row r's root. Returns a mask, (vocabulary + 31) / 32 words;
   or NULL, where `follows` says which of these `count` tokens may follow: all of them, if nothing was written there.
   *only, for a walk (a draft gives NULL): a token that alone may follow, if it was written there. */
typedef const uint32_t *(*ask_after)(long row, const int64_t *path, long length, const int64_t *tokens, long count,
                                     uint8_t *follows, int64_t *only);

static inline int allows(const uint32_t *mask, int64_t token) { return mask[token >> 5] >> (token & 31) & 1; }

/* SPDX-License-Identifier: Apache-2.0
 * Checksums that find damage to what was kept: XXH3 of 64 bits, of the library xxHash (`xxhsum -H3` computes it, too).
 * It is no protection against somebody who means to deceive. */
#ifndef INV_CORE_CHECKSUM_H
#define INV_CORE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

enum { INV_CHECKSUM_DIGITS = 16 }; /* of its text, in base 16, lower case */

/* Of bytes that come in pieces. */
typedef struct inv__checksum {
    _Alignas(64) unsigned char state[640];
} inv__checksum;

void inv__checksum_begin(inv__checksum *c);
void inv__checksum_add(inv__checksum *c, const void *data, size_t nbytes);
/* Writes the digits, and no 0 behind them. */
void inv__checksum_end(const inv__checksum *c, char *digits);

#endif

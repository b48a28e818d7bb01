/* SPDX-License-Identifier: Apache-2.0
 * Checksums that find damage to what was kept: XXH3 of 64 bits, of the library xxHash (`xxhsum -H3` computes it, too).
 * It is no protection against somebody who means to deceive. */
#ifndef INV_CORE_CHECKSUM_H
#define INV_CORE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

enum { INV_CHECKSUM_DIGITS = 16 }; /* of its text, in base 16, lower case */

/* Of bytes that come in pieces. */
typedef struct inv_checksum {
    _Alignas(64) unsigned char state[640];
} inv_checksum;

void inv_checksum_begin(inv_checksum *c);
void inv_checksum_add(inv_checksum *c, const void *data, size_t nbytes);
/* Writes the digits, and no 0 behind them. */
void inv_checksum_end(const inv_checksum *c, char *digits);

#endif

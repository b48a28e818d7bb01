/* SPDX-License-Identifier: Apache-2.0
 * The one file that sees xxHash. Its code is in its header, so nothing is linked. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/base/checksum.h"

_Static_assert(sizeof(XXH3_state_t) <= sizeof(inv_checksum), "another xxHash has larger states");

static XXH3_state_t *state_of(inv_checksum *c) { return (XXH3_state_t *)(void *)c->state; }

void inv_checksum_begin(inv_checksum *c) { (void)XXH3_64bits_reset(state_of(c)); }

void inv_checksum_add(inv_checksum *c, const void *data, size_t nbytes)
{
    (void)XXH3_64bits_update(state_of(c), data, nbytes);
}

void inv_checksum_end(const inv_checksum *c, char *digits)
{
    uint64_t sum = XXH3_64bits_digest((const XXH3_state_t *)(const void *)c->state);
    for (int i = INV_CHECKSUM_DIGITS; i-- > 0; sum >>= 4) digits[i] = "0123456789abcdef"[sum & 15];
}

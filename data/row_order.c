/* SPDX-License-Identifier: Apache-2.0
 * A permutation without a table: a Feistel network over the numbers of 2b bits permutes them whatever its round
 * function is; numbers that come out beyond the rows go through it again until one is a row ("cycle walking": J. Black
 * and P. Rogaway, Ciphers with Arbitrary Finite Domains, 2002). With 4^(b-1) < n <= 4^b that takes four passes at most
 * in the mean. */
#include "data/row_order.h"

enum { ROUNDS = 6 };

/* Keys the random numbers of the split, as an epoch would its own. */
static const uint64_t split_key = UINT64_MAX;

/* The mixing function is that of SplitMix64 (Steele, Lea, Flood 2014). */
uint64_t data_random_at(uint64_t seed, uint64_t epoch, uint64_t counter)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + epoch * 0xd1b54a32d192ed03u + 0x2545f4914f6cdd1du;
    for (int round = 0; round < 2; round++) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        if (round == 0) z += counter * 0x9e3779b97f4a7c15u;
    }
    return z;
}

int64_t data_permuted(uint64_t seed, uint64_t epoch, int64_t n, int64_t i)
{
    int b = 1;
    while (b < 31 && (int64_t)1 << (2 * b) < n) b++;
    const uint64_t mask = ((uint64_t)1 << b) - 1;
    uint64_t x = (uint64_t)i;
    do {
        uint64_t left = x >> b, right = x & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            const uint64_t next = left ^ (data_random_at(seed, epoch, round << 32 | right) & mask);
            left = right;
            right = next;
        }
        x = left << b | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

int64_t data_order_count(const data_order *o) { return o->held ? o->nheld : o->nrows - o->nheld; }

/* A run of rows, at a place that the seed draws. */
static int64_t first_held(const data_order *o)
{
    const int64_t places = o->nrows - o->nheld + 1;
    return (int64_t)(data_random_at(o->seed, split_key, 0) % (uint64_t)places);
}

static int64_t split_run(const data_order *o, int64_t at)
{
    const int64_t first = first_held(o);
    if (o->held) return first + at;
    return at < first ? at : at + o->nheld;
}

/* One row of each of m blocks that divide all rows evenly: so many of every class where rows are sorted by class, and
 * both sides stay in order. Of the two sides the smaller one is picked. */
static int64_t split_evenly(const data_order *o, int64_t at)
{
    const bool held_picked = o->nheld <= o->nrows - o->nheld;
    const int64_t m = held_picked ? o->nheld : o->nrows - o->nheld;
    const int64_t size = o->nrows / m, larger = o->nrows % m; /* so many blocks have a row more */
    const bool picked = o->held == held_picked;
    int64_t block = at;
    if (!picked) block = at < larger * size ? at / size : larger + (at - larger * size) / (size - 1);
    const int64_t first = block * size + (block < larger ? block : larger), rows = size + (block < larger);
    const int64_t pick = (int64_t)(data_random_at(o->seed, split_key, (uint64_t)block) % (uint64_t)rows);
    if (picked) return first + pick;
    const int64_t other = at - (first - block);
    return first + other + (other >= pick);
}

int64_t data_order_row(const data_order *o, uint64_t epoch, int64_t position)
{
    const int64_t count = data_order_count(o);
    const int64_t at = o->shuffled ? data_permuted(o->seed, epoch, count, position) : position;
    if (o->nheld == 0 || count == o->nrows) return at;
    return o->in_sequence ? split_run(o, at) : split_evenly(o, at);
}

bool data_order_holds(const data_order *o, int64_t row)
{
    if (o->nheld == 0 || row >= o->nrows) return false;
    if (o->in_sequence) return row >= first_held(o) && row < first_held(o) + o->nheld;
    data_order held = *o;
    held.held = true;
    held.shuffled = false;
    int64_t low = 0, high = o->nheld; /* rows held out are ascending */
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (data_order_row(&held, 0, middle) <= row) low = middle;
        else high = middle;
    }
    return data_order_row(&held, 0, low) == row;
}

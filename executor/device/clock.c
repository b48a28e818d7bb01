/* SPDX-License-Identifier: Apache-2.0
 * Clocks (clock.h). */
#include "executor/device/clock.h"

#include <time.h>

double inv_clock_busy(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0 ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec : 0;
}

double inv_clock_now(void)
{
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

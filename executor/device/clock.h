/* SPDX-License-Identifier: Apache-2.0
 * Clocks. */
#ifndef INV_EXECUTOR_CLOCK_H
#define INV_EXECUTOR_CLOCK_H

double inv_clock_busy(void); /* seconds of processor time of this thread */
double inv_clock_now(void);  /* seconds from some fixed point */

#endif

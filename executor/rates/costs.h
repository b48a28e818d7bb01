/* SPDX-License-Identifier: Apache-2.0
 * Rates of operators, kept between programs. */
#ifndef INV_EXECUTOR_COSTS_H
#define INV_EXECUTOR_COSTS_H

#include "core/program/cost.h"

enum { INV_COST_KEY = 1024 };

/* gpu_rates.c: general ones of device cuda */
void inv_costs_of_gpu(inv_dtype real, inv_cost_table *out);

/* cost_cache.c: what the numbers depend on, in words; "" if the processor is not known. */
void inv_costs_key(int threads, inv_dtype real, char key[INV_COST_KEY]);
/* The file for a key in `folder`, or where inv_calibrate_options.cache says that the default is; NULL: there is none.
 * In the arena. */
const char *inv_costs_path(inv_arena *a, const char *folder, const char *key);
/* false: there is no such file, or it is not one that inv_costs_write has made for this key. Corrections are in the
 * arena. */
bool inv_costs_read(inv_arena *a, const char *path, const char *key, inv_cost_table *out);
/* Whole or not at all. What fails leaves things as they were, and nobody hears of it. */
void inv_costs_write(inv_arena *a, const char *path, const char *key, const inv_cost_table *t);
/* Adds corrections of the rates of `t` to what the file has; of equal ones the new one stays. Rates that have been
 * measured again meanwhile stay, too: these are not corrections of them. Rates that steps are quicker than by far go,
 * so that they are measured again: other programs ran when they were measured. */
void inv_costs_keep(inv_arena *a, const char *path, const char *key, const inv_cost_table *t,
                    const inv_correction *fresh, size_t n);

#endif

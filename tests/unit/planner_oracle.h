/* SPDX-License-Identifier: Apache-2.0
 * The least cost of a small recovery problem, exactly: Dijkstra's algorithm over (step, set of values that are there,
 * their errors, what edges have kept for themselves). Values may be dropped at any time and edges rematerialised before
 * any step of backward. Shares nothing with the planner but the problem's description. Errors are whole numbers up to 3
 * here, of the first ORACLE_ERRS values; two edges may have a side, and are rematerialised twice at most; one value may
 * be refused. */
#ifndef INV_TESTS_PLANNER_ORACLE_H
#define INV_TESTS_PLANNER_ORACLE_H

#include "passes/planner/problem.h"

enum { ORACLE_MOST = 20, ORACLE_ERRS = 12 }; /* values */
#define ORACLE_KEPT 1e6                      /* what a no_store value counts that is kept */

/* INFINITY: nothing fits `budget`. */
double oracle_cost(const inv_problem *p, size_t budget);

#endif

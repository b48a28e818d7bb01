/* SPDX-License-Identifier: Apache-2.0
 * The least cost of a small recovery problem, exactly: Dijkstra's algorithm over (step, set of values that are there).
 * Values may be dropped at any time and edges fired before any step of backward. Shares nothing with the planner but
 * the problem's description. */
#ifndef INV_TESTS_PLANNER_ORACLE_H
#define INV_TESTS_PLANNER_ORACLE_H

#include "passes/problem.h"

enum { ORACLE_MOST = 20 }; /* values */

/* INFINITY: nothing fits `budget`. */
double oracle_cost(const inv_problem *p, size_t budget);

#endif

/* SPDX-License-Identifier: Apache-2.0
 * Worker threads and fork(): a child has none of its parent's threads, but the books of the libraries say that they are
 * there, and whoever waits for them waits forever. */
#include <omp.h>
#include <stdatomic.h>
#include <unistd.h>

#include "executor/executor.h"

static _Atomic long owner; /* the process whose worker threads there are; 0: none were asked for yet */

void inv_workers_use(inv_session *s)
{
    if (s->threads == 0) s->threads = omp_get_max_threads();
    omp_set_num_threads(s->threads);
}

inv_status inv_workers_own(inv_context *ctx)
{
    const long me = (long)getpid();
    long before = 0;
    if (omp_get_max_threads() == 1) return INV_OK;
    INV_CHECK(
        atomic_compare_exchange_strong(&owner, &before, me) || before == me, ctx, INV_E_ARG,
        "this process was made by fork() after process %ld had begun to compute, so it has no worker threads. Fork "
        "before computing, start a new process instead, or use {threads} 1 in both",
        before);
    return INV_OK;
}

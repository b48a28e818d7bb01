/* SPDX-License-Identifier: Apache-2.0
 * How far long work is, told to whoever made the context. */
#include <stdio.h>

#include "core/base/mem.h"

inv_span inv_span_enter(inv_context *ctx, const char *stage, double from, double to)
{
    const inv_span around = {ctx->from, ctx->width, ctx->stage};
    ctx->from += from * ctx->width;
    ctx->width *= to - from;
    if (!ctx->stage) ctx->stage = stage; /* what is searched for while something else is done is part of that */
    inv_progress(ctx, 0);
    return around;
}

void inv_span_leave(inv_context *ctx, inv_span around)
{
    ctx->from = around.from;
    ctx->width = around.width;
    ctx->stage = around.stage;
}

void inv_progress(inv_context *ctx, double share)
{
    const double part = share < 0 ? 0 : share > 1 ? 1 : share, all = ctx->from + part * ctx->width;
    if (ctx->progress && ctx->stage) ctx->progress(ctx->progress_opaque, ctx->stage, all < 1 ? all : 1);
}

inv_status inv_check_stop(inv_context *ctx)
{
    if (!ctx->stopped || !ctx->stopped(ctx->stopped_opaque)) return INV_OK;
    return inv_fail(ctx, INV_E_STOPPED, "stopped, as the caller wants it");
}

const char *inv_bytes_text(size_t nbytes, char text[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double n = (double)nbytes;
    size_t unit = 0;
    while (n >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        n /= 1024;
        unit++;
    }
    snprintf(text, 32, "%.*f %s", unit == 0 ? 0 : n < 10 ? 2 : 1, n, units[unit]);
    return text;
}

/* SPDX-License-Identifier: Apache-2.0
 * Texts of the status codes, and the small public calls about a context. */
#include "core/base/mem.h"

#define TEXT_OF(x) TEXT_OF_(x)
#define TEXT_OF_(x) #x

const char *inv_status_text(inv_status s)
{
    switch (s) {
#define STATUS_CASE(name, value, text) \
    case INV_##name: return text;
        INV_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *inv_version(void)
{
    return TEXT_OF(INV_VERSION_MAJOR) "." TEXT_OF(INV_VERSION_MINOR) "." TEXT_OF(INV_VERSION_PATCH);
}

const char *inv_context_message(const inv_context *ctx)
{
    if (!ctx) return "";
    return ctx->message ? ctx->message : ctx->fallback;
}

void inv_free(inv_context *ctx, void *p)
{
    if (ctx) inv_dealloc(ctx, p);
}

/* SPDX-License-Identifier: Apache-2.0
 * One context for all tests of a program: cmocka's group set-up and tear-down. Included once, after cmocka. */
#ifndef INVONNX_WITH_CONTEXT_H
#define INVONNX_WITH_CONTEXT_H

#include "invonnx/invonnx.h"

static inv_context *ctx;

static int setup(void **state)
{
    (void)state;
    return inv_context_create(NULL, &ctx) == INV_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    inv_context_destroy(ctx);
    return 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 * Shared objects that must be refused: BAD is the way in which this one is (test_plugins.c). */
#include "invonnx/plugin.h"

#define no_init 1
#define no_abi 2
#define other_abi 3
#define clash 4
#define fails 5
#define silent 6
#define ignores 7
#define larger 8
#define unresolved 9
#define op_domain 10
#define op_grad 11
#define op_kernel 12
#define op_grad_name 13
#define op_grad_draws 14
#define op_grad_type 15
#define op_grad_twice 16
#define op_grad_input 17
#define op_blank_in 18
#define op_blank_domain 19
#define op_blank_name 20
#define op_same_name 21
#define op_workspace 22
#define op_flops 23

/* clang-format off */
static const inv_inverse_def good = {
    .size = sizeof good, .name = "good", .match = "y = Neg(x)", .solve = "x = Neg(y)", .frees = "x", .kind = "",
    .cases = INV_CASES("g(float[2,3] in) => (y) { x = LeakyRelu<alpha = 0.9>(in); y = Neg(x) }"),
};
/* clang-format on */

#if BAD == no_init || BAD == no_abi || BAD == other_abi
INV_PLUGIN_EXPORT const uint32_t inv_plugin_abi, another;
#if BAD == no_abi
const uint32_t another = 1;
INV_PLUGIN_EXPORT inv_status inv_plugin_init(const inv_api *api, struct inv_registry *r);
inv_status inv_plugin_init(const inv_api *api, struct inv_registry *r) { return api->add_inverse(r, &good); }
#else
const uint32_t inv_plugin_abi = 4711;
#if BAD == other_abi
INV_PLUGIN_EXPORT inv_status inv_plugin_init(const inv_api *api, struct inv_registry *r);
inv_status inv_plugin_init(const inv_api *api, struct inv_registry *r) { return api->add_inverse(r, &good); }
#else
INV_PLUGIN_EXPORT const void *const uses_it;
const void *const uses_it = &good;
#endif
#endif
#else
#if BAD >= op_domain
static inv_status infer(const inv_op_call *c)
{
    c->out[0] = c->in[0];
    return INV_OK;
}
static inv_status lost(const inv_op_call *c)
{
    if (BAD == op_grad_type) return INV_OK;
    return c->fail(c, INV_E_IO, "the table is lost");
}
static size_t workspace(const inv_op_call *c) { return BAD == op_workspace && c->nin ? SIZE_MAX : 0; }
static double flops(const inv_op_call *c) { return BAD == op_flops && c->nin ? -1e300 * 1e300 : 1; }
/* clang-format off */
static const inv_operator_def operator_def = {
    .size = sizeof operator_def,
    .domain = BAD == op_domain ? "ai.onnx.mine" : BAD == op_blank_domain ? "com. example" : "com.example",
    .name = BAD == op_blank_name ? "Lo\tst" : "Lost",
    .since = 1, .in = BAD == op_blank_in ? "x\tw" : "x", .out = BAD == op_same_name ? "x" : "y", .infer = infer,
    .cpu = lost, .workspace = workspace, .flops = flops,
    .grad = BAD == op_grad         ? "d_x = Gemm(d_y, x)"
            : BAD == op_grad_twice ? "t = Neg(d_y); t = Neg(t); d_x = Neg(t)"
            : BAD == op_grad_input ? "x = Neg(d_y); d_x = Neg(x)"
            : BAD == op_grad_name  ? "t = Neg(d_y); d_q = Neg(t)"
            : BAD == op_grad_type  ? "d_x = Less(d_y, x)"
            : BAD == op_grad_draws ? "d_x = DropoutMask<ratio = 0.5>(d_y)"
                                   : "d_x = Neg(d_y)",
    .cases = INV_CASES("y = com.example.Lost(float[2,3] x)"),
};
/* clang-format on */
#endif

INV_PLUGIN(bad)(const inv_api *api, struct inv_registry *r)
{
    inv_status s = api->add_inverse(r, &good);
    if (s != INV_OK) return s;
#if BAD == clash
    inv_inverse_def d = good;
    d.name = "scale";
    return api->add_inverse(r, &d);
#elif BAD == fails
    return api->fail(r, INV_E_IO, "the licence server is on fire");
#elif BAD >= op_domain
    return api->add_operator(r, &operator_def);
#elif BAD == silent
    return INV_E_NUMERIC;
#elif BAD == ignores
    (void)api->add_inverse(r, &good);
    return INV_OK;
#elif BAD == larger
    inv_inverse_def d = good;
    d.name = "larger";
    d.size += 8;
    return api->add_inverse(r, &d);
#else
    extern inv_status function_of_nobody(void);
    return function_of_nobody();
#endif
}
#endif

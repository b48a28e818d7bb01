/* SPDX-License-Identifier: Apache-2.0
 * Property: a text of rules is refused with a reason, leaving nothing behind, or registered, and then what `invonnx
 * rules` prints of it is read as the same rules, and models compile with them. */
#include "fuzz.h"

#include "core/graph/model.h"
#include "core/graph/op.h"

/* Values, shapes and attributes that patterns may find: what a rule asks for need not be there. */
static const char model_text[] =
    "g(float[4,6] in, int64[3] i) => (z) { param float[3,3] A = {2, 0, 0, 0, 3, 0, 0, 0, 1}; "
    "param float[4] s = {1, 2, 3, 4}; "
    "x = LeakyRelu<alpha = 0.9>(in); x1, x2 = Split<axis = 1, num_outputs = 2>(x); f = MatMul(x2, A); t = Tanh(f); "
    "y1 = Add(x1, t); e = Exp(t); y2 = Mul(x2, e); c = Concat<axis = 1>(y1, y2); n = Neg(c); "
    "k = Transpose<perm = [1, 0]>(n); m = Mul(k, s); "
    "r = Reshape(m, int64[2] {4, 6}); q = Gather<axis = 1>(r, i); z = Sin(q) }";

static inv_status load(inv_context *ctx, const void *data, size_t size)
{
    char path[64];
    int fd = memfd_create("rules", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    inv_status s = inv_context_load_plugin(ctx, path);
    if (s != INV_OK && !*inv_context_message(ctx)) abort();
    close(fd);
    return s;
}

/* All rules, as they are printed. */
static void print_all(const inv_context *ctx, inv_str *out)
{
    for (size_t i = 0; i < inv_registry_ninverses(ctx->registry); i++)
        inv_rule_print(inv_registry_inverse_at(ctx->registry, i), out);
}

static void compile(inv_context *ctx)
{
    inv_graph *g;
    inv_session *s = NULL;
    char *json = NULL;
    if (inv_graph_parse(ctx, model_text, &g) != INV_OK) abort();
    inv_model model = {.ctx = ctx, .path = "text", .graph = g};
    const inv_session_options options = {.size = sizeof options,
                                         .plan_only = true,
                                         .purpose = INV_FOR_TRAIN,
                                         .loss = INV_LOSS_MSE,
                                         .memory = INV_MEMORY_INVERT};
    if (inv_session_create(&model, &options, &s) != INV_OK && !*inv_context_message(ctx)) abort();
    if (s && inv_session_explain(s, &json) == INV_OK) inv_free(ctx, json);
    inv_session_destroy(s);
    inv_graph_destroy(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const inv_context_options none = {.size = sizeof none, .no_rules = true};
    inv_context *ctx, *other;
    inv_str once, twice;
    if (size > 4 && memcmp(data, "\177ELF", 4) == 0) return 0; /* a shared object is code */
    if (inv_context_create(&none, &ctx) != INV_OK || inv_context_create(&none, &other) != INV_OK) abort();
    inv_str_init(&once, ctx);
    inv_str_init(&twice, other);
    if (load(ctx, data, size) == INV_OK) {
        print_all(ctx, &once);
        if (load(other, once.s, once.n) != INV_OK) abort();
        print_all(other, &twice);
        if (once.failed || twice.failed || strcmp(once.s, twice.s) != 0) abort();
        compile(ctx);
    } else if (inv_registry_ninverses(ctx->registry)) {
        abort();
    }
    inv_str_fini(&once);
    inv_str_fini(&twice);
    inv_context_destroy(other);
    inv_context_destroy(ctx);
    return 0;
}

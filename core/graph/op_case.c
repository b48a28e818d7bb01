/* SPDX-License-Identifier: Apache-2.0
 * The text of a row's case as a graph. */
#include <string.h>

#include "core/graph/ir_internal.h"

#define NEWEST_OPSET 28

static void head(inv_str *s, const inv_stmts *st)
{
    char dims[INV_SHAPE_TEXT];
    int count = 0;
    for (size_t i = 0; i < st->n; i++) {
        for (uint32_t k = 0; k < st->at[i].nin; k++) {
            const inv_data *t = &st->at[i].in_type[k];
            if (t->dtype == INV_DT_NONE || t->bytes != NULL || *st->at[i].in[k] == '\0') continue;
            inv_str_add(s, "%s%s%s %s", count++ ? ", " : "", inv_dtype_name(t->dtype), inv_shape_text(&t->shape, dims),
                        st->at[i].in[k]);
        }
    }
}

inv_status inv_case_parse(inv_context *ctx, const char *text, int opset, inv_dtype real, inv_graph **out)
{
    inv_arena a;
    inv_stmts st = {0};
    inv_str s;
    *out = NULL;
    inv_arena_init(&a, ctx);
    inv_str_init(&s, ctx);
    inv_status status = inv_text_stmts(ctx, &a, text, &st);
    if (status == INV_OK) {
        inv_str_add(&s, "<opset_import: [\"\" : %d, \"ai.onnx.preview\" : 1]>\ncase (", opset ? opset : NEWEST_OPSET);
        head(&s, &st);
        inv_str_add(&s, ") => (");
        for (uint32_t k = 0, count = 0; st.n && k < st.at[st.n - 1].nout; k++) {
            const char *name = st.at[st.n - 1].out[k];
            if (*name) inv_str_add(&s, "%s%s", count++ ? ", " : "", name);
        }
        inv_str_add(&s, ") {\n%s\n}\n", text);
        status = s.failed ? INV_E_NOMEM : inv_graph_parse(ctx, s.s, out);
    }
    inv_str_fini(&s);
    inv_arena_fini(&a);
    INV_TRY(status);
    (*out)->real = real;
    for (size_t i = 0; i < (*out)->inputs.n; i++) {
        inv_value *v = inv_val(*out, (*out)->inputs.at[i]);
        if (v->dtype == INV_F32) v->dtype = real;
    }
    return INV_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 * Finds numbers for the open dimensions of a model's inputs. */
#include "core/graph/model.h"
#include "core/program/options.h"
#include "passes/front/front.h"

inv_status inv_model_find_extents(inv_model *model, const inv_session_options *options, int64_t batch,
                                  int64_t *const *dims)
{
    INV_OBJECT(model);
    inv_session_options o;
    INV_TRY(inv_options_read_open(model->ctx, options, &o));
    INV_CHECK(dims || !o.ninputs, model->ctx, INV_E_ARG, "dims is NULL, but there are %zu inputs", o.ninputs);
    for (size_t i = 0; i < o.ninputs; i++)
        INV_CHECK(dims[i] || !o.inputs[i].rank, model->ctx, INV_E_ARG, "dims has no list for input '%s'",
                  o.inputs[i].name);
    return inv_extents_find(model->ctx, model->graph, &o, batch, dims);
}

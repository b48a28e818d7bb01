/* SPDX-License-Identifier: Apache-2.0
 * Property: any model that imports is planned, for running or for training under any options, or refused with a
 * message, within the memory that it is given. The input is four bytes of options and a model. */
#include "fuzz.h"

#include "core/graph/model.h"

enum { OPTION_BYTES = 4, MOST_INPUTS = 8, MOST_RANK = 8 };

typedef struct shapes {
    inv_array array[MOST_INPUTS];
    int64_t dims[MOST_INPUTS][MOST_RANK];
    size_t n;
} shapes;

/* What the model leaves open is `open` large; an input of unknown rank is a matrix. */
static bool shapes_of(const inv_graph *g, int64_t open, shapes *s)
{
    if (g->inputs.n > MOST_INPUTS) return false;
    s->n = g->inputs.n;
    for (size_t i = 0; i < s->n; i++) {
        const inv_value *v = inv_val(g, g->inputs.at[i]);
        int rank = v->shape.rank < 0 ? 2 : v->shape.rank;
        if (rank > MOST_RANK) return false;
        for (int k = 0; k < rank; k++)
            s->dims[i][k] = v->shape.rank < 0 || v->shape.dim[k] < 0 ? open : v->shape.dim[k];
        s->array[i] = (inv_array){.name = v->name, .dtype = v->dtype, .rank = rank, .dims = s->dims[i]};
    }
    return true;
}

static void plan(fuzz_context *f, inv_model *model, const uint8_t *o)
{
    static const char *const devices[] = {"cpu", "cpu", "sim", "cuda"};
    shapes s;
    inv_session *session = NULL;
    inv_session_options so = {
        .size = sizeof so,
        .purpose = o[0] % 4 == 0   ? INV_FOR_RUN
                   : o[0] % 4 == 1 ? INV_FOR_EVAL
                                   : INV_FOR_TRAIN,
        .loss = (inv_loss)(o[0] / 4 % 6),
        .class_axis = o[0] / 32 % 4,
        .memory = (inv_memory)(o[1] % 4),
        .input_grads = o[1] & 4,
        .float64 = o[1] & 8,
        .no_dropout = o[1] & 16,
        .train_bn = o[1] & 32,
        .untie = o[1] & 64,
        .device = devices[o[2] % 4],
        .optimizer = (inv_optimizer)(o[2] / 4 % 5),
        .budget = o[2] & 128 ? (uint64_t)1 << (6 + o[2] / 32 % 4 * 4) : 0,
        .eval_batch = o[3] & 8 ? 1 + o[3] % 3 : 0,
        .tail_batch = o[3] & 16 ? 1 : 0,
        .guard = (inv_guard)(o[3] / 32 % 3),
        .plan_only = true,
    };
    if (shapes_of(model->graph, 1 + o[3] % 8, &s)) so.inputs = s.array, so.ninputs = s.n;
    if (fuzz_ok(f, inv_session_create(model, &so, &session))) {
        char *json = NULL;
        if (fuzz_ok(f, inv_session_report(session, &json))) inv_free(f->ctx, json);
        inv_session_destroy(session);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_context *f = fuzz_open();
    inv_model *model;
    int fd;
    if (size < OPTION_BYTES) return 0;
    if (fuzz_load(f, data + OPTION_BYTES, size - OPTION_BYTES, &fd, &model)) plan(f, model, data);
    inv_model_destroy(model);
    fuzz_close(f);
    (void)close(fd);
    return 0;
}

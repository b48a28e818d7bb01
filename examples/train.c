/* SPDX-License-Identifier: Apache-2.0
 * The C API in one page: trains a classifier in little memory and writes the weights back.
 *
 *     example_train MODEL.onnx INPUT X.npy Y.npy OUT.onnx [EPOCHS]
 *
 * INPUT: name of the model's only input. X.npy: float32, its rows. Y.npy: int64 labels. After
 *     cmake --preset release && cmake --build --preset release && cmake --install build/release
 * it is built by
 *     cc train.c $(pkg-config --cflags --libs --static invonnx) */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "invonnx/invonnx.h"
#include "npy.h"

enum { BATCH = 32 };

static int fail(inv_context *ctx, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, inv_context_message(ctx));
    return 1;
}

static int train(inv_context *ctx, inv_model *model, inv_session *session, const char *name, const rows *x,
                 const rows *y, const char *out, int epochs)
{
    int64_t x_dims[MAX_RANK], y_dims[MAX_RANK];
    int64_t row[BATCH];
    memcpy(x_dims, x->dims, sizeof x_dims);
    memcpy(y_dims, y->dims, sizeof y_dims);
    x_dims[0] = y_dims[0] = BATCH;
    int64_t nbatches = x->dims[0] / BATCH;
    inv_array input = {.name = name, .dtype = INV_F32, .rank = x->rank, .dims = x_dims, .data = x->data, .rows = row};
    inv_array target = {.dtype = INV_I64, .rank = y->rank, .dims = y_dims, .data = y->data, .rows = row};
    for (int epoch = 0; epoch < epochs; epoch++) {
        double sum = 0;
        for (int64_t b = 0; b < nbatches; b++) {
            inv_result result;
            for (int64_t i = 0; i < BATCH; i++) row[i] = b + i * nbatches;
            if (inv_session_step(session, &input, 1, &target, 0.05, &result) != INV_OK) return fail(ctx, "step");
            sum += result.loss;
        }
        printf("epoch %d loss %.4f\n", epoch + 1, sum / (double)nbatches);
    }
    if (inv_model_save(model, session, out) != INV_OK) return fail(ctx, out);
    printf("%s written after %" PRIu64 " steps\n", out, inv_session_steps(session));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: %s MODEL.onnx INPUT X.npy Y.npy OUT.onnx [EPOCHS]\n", argv[0]);
        return 2;
    }
    rows x = {0}, y = {0};
    inv_context *ctx = NULL;
    inv_model *model = NULL;
    inv_session *session = NULL;
    int status = 1;
    if (!read_npy(argv[3], "'<f4'", sizeof(float), &x) || !read_npy(argv[4], "'<i8'", sizeof(int64_t), &y)) goto done;
    if (x.dims[0] < BATCH || x.dims[0] != y.dims[0]) {
        fprintf(stderr, "need as many labels as rows, and at least %d\n", BATCH);
        goto done;
    }
    if (inv_context_create(NULL, &ctx) != INV_OK) goto done;
    if (inv_model_load(ctx, argv[1], &model) != INV_OK) {
        fail(ctx, argv[1]);
        goto done;
    }
    /* Shapes are what a session is planned for; the data comes with each step. */
    int64_t rows_of_data = x.dims[0];
    x.dims[0] = y.dims[0] = BATCH;
    const inv_array input = {.name = argv[2], .dtype = INV_F32, .rank = x.rank, .dims = x.dims};
    const inv_array target = {.dtype = INV_I64, .rank = y.rank, .dims = y.dims};
    const inv_session_options options = {
        .size = sizeof options,
        .purpose = INV_FOR_TRAIN,
        .inputs = &input,
        .ninputs = 1,
        .target = &target,
        .loss = INV_LOSS_CROSS_ENTROPY,
        .memory = INV_MEMORY_INVERT,
        .optimizer = INV_OPT_MOMENTUM,
        .momentum = 0.9,
    };
    inv_status s = inv_session_create(model, &options, &session);
    x.dims[0] = y.dims[0] = rows_of_data;
    if (s != INV_OK) fail(ctx, "compile");
    else status = train(ctx, model, session, argv[2], &x, &y, argv[5], argc > 6 ? atoi(argv[6]) : 1);
done:
    inv_session_destroy(session);
    inv_model_destroy(model);
    inv_context_destroy(ctx);
    free(x.data);
    free(y.data);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 * A training loop of one's own. A step is three calls: gradients of micro-batches, a look at the gradients, in which
 * they are changed, and the update. Around it are warm-up and cosine, a group of parameters with a learning rate of its
 * own, averages of weights, and a state in a file, so that a run that was stopped goes on with the bits of one that was
 * not.
 *
 *     example_loop MODEL.onnx INPUT X.npy Y.npy GLOB OUT.onnx STATE STEPS [STOP]
 *
 * GLOB: parameters that stay as they are in the first tenth of the STEPS. STATE: a file that is written in the end, and
 * gone on from if it is there. STOP: end after that step, as an interrupt (Ctrl-C) does. Everything else, and how to
 * build it, is as in train.c. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "invonnx/invonnx.h"
#include "npy.h"

enum { BATCH = 16, MICRO_BATCHES = 2 };

typedef struct training {
    inv_context *ctx;
    inv_session *session;
    const char *input;
    rows x, y; /* with the extents of a batch */
    int64_t nbatches;
    int64_t row[BATCH]; /* of x and y: what the batch is made of */
} training;

static volatile sig_atomic_t stopped;

static void on_interrupt(int number)
{
    (void)number;
    stopped = 1;
}

static int fail(inv_context *ctx, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, ctx ? inv_context_message(ctx) : "wrong, or no memory");
    return 0;
}

/* Batch `b` of the rows, as what the library is given. A resumed run asks for the rows that follow, so which these are
 * is a function of the number alone. */
static void batch_of(training *t, int64_t b, inv_array *input, inv_array *target)
{
    for (int64_t i = 0; i < BATCH; i++) t->row[i] = b % t->nbatches + i * t->nbatches;
    *input = (inv_array){t->input, INV_F32, t->x.rank, t->x.dims, t->x.data, t->row};
    *target = (inv_array){NULL, INV_I64, t->y.rank, t->y.dims, t->y.data, t->row};
}

/* Gradient centralization (Yong et al., arXiv 2004.01461): the gradient of each filter gets the mean 0. *norm: of all
 * gradients together, before. */
static int change_gradients(training *t, double *norm)
{
    const char *name;
    double squares = 0;
    for (size_t i = 0; (name = inv_session_name(t->session, INV_GET_GRAD, i)); i++) {
        const void *data;
        inv_dtype dtype; /* INV_F32, unless a session computes in float64 */
        int rank;
        int64_t dims[8];
        if (inv_session_get(t->session, INV_GET_GRAD, name, &data, &dtype, &rank, dims) != INV_OK)
            return fail(t->ctx, name);
        const float *g = data;
        size_t n = 1;
        for (int k = 0; k < rank; k++) n *= (size_t)dims[k];
        for (size_t k = 0; k < n; k++) squares += (double)g[k] * (double)g[k];
        if (rank < 2) continue; /* a bias, or of a normalization */
        float *changed = malloc(n * sizeof *changed);
        if (!changed) return fail(NULL, name);
        for (size_t row = n / (size_t)dims[0], at = 0; at < n; at += row) {
            double mean = 0;
            for (size_t k = 0; k < row; k++) mean += (double)g[at + k] / (double)row;
            for (size_t k = 0; k < row; k++) changed[at + k] = (float)((double)g[at + k] - mean);
        }
        const inv_status s = inv_session_set(t->session, INV_GET_GRAD, name, INV_F32, changed, n);
        free(changed);
        if (s != INV_OK) return fail(t->ctx, name);
    }
    *norm = sqrt(squares);
    return 1;
}

static int make_step(training *t, const inv_schedule *schedule)
{
    const uint64_t step = inv_session_steps(t->session);
    const double lr = inv_lr_at(schedule, step);
    inv_array input, target;
    inv_result result;
    double loss = 0, norm = 0;
    for (int k = 0; k < MICRO_BATCHES; k++) {
        batch_of(t, (int64_t)step * MICRO_BATCHES + k, &input, &target);
        if (inv_session_accumulate(t->session, &input, 1, &target, &result) != INV_OK) return fail(t->ctx, "gradients");
        loss += result.loss / MICRO_BATCHES;
    }
    if (!change_gradients(t, &norm)) return 0;
    const double factor = step < schedule->total / 10 ? 0 : 1; /* of lr, for group 0 */
    if (inv_session_set_group_lr(t->session, 0, factor) != INV_OK) return fail(t->ctx, "group");
    if (inv_session_update(t->session, lr, &result) != INV_OK) return fail(t->ctx, "update");
    if (step % 10 == 0 || step + 1 == schedule->total)
        printf("step %" PRIu64 " loss %.4f lr %.5f norm of gradients %.4f\n", step + 1, loss, lr, norm);
    return 1;
}

/* With the averages in the weights' place, over the rows that were trained on. */
static int finish(training *t, inv_model *model, const char *out)
{
    int64_t correct = 0;
    inv_array input, target;
    inv_result result;
    if (inv_session_use_average(t->session, true) != INV_OK) return fail(t->ctx, "averages");
    for (int64_t b = 0; b < t->nbatches; b++, correct += result.correct) {
        batch_of(t, b, &input, &target);
        if (inv_session_eval(t->session, &input, 1, &target, &result) != INV_OK) return fail(t->ctx, "evaluation");
    }
    if (inv_model_save(model, t->session, out) != INV_OK) return fail(t->ctx, out);
    printf("accuracy %.4f, written to %s\n", (double)correct / (double)(BATCH * t->nbatches), out);
    return 1;
}

/* The plan of a state that is there is given to the session, so that it goes on with the same bits. */
static int open_session(training *t, inv_model *model, const char *glob, const char *state)
{
    inv_array input, target;
    batch_of(t, 0, &input, &target);
    char *plan = NULL;
    FILE *there = fopen(state, "rb");
    if (there) fclose(there);
    if (there && inv_state_read(t->ctx, state, NULL, &plan) != INV_OK) return fail(t->ctx, state);
    const inv_param_group group = {.glob = glob, .lr = 1, .weight_decay = -1};
    const inv_session_options options = {.size = sizeof options,
                                         .purpose = INV_FOR_TRAIN,
                                         .inputs = &input,
                                         .ninputs = 1,
                                         .target = &target,
                                         .eval_batch = BATCH,
                                         .loss = INV_LOSS_CROSS_ENTROPY,
                                         .memory = INV_MEMORY_INVERT,
                                         .optimizer = INV_OPT_MOMENTUM,
                                         .momentum = 0.9,
                                         .clip_norm = 1,
                                         .accumulate = true,
                                         .average = true,
                                         .average_decay = 0.9,
                                         .groups = &group,
                                         .ngroups = 1,
                                         .plan = plan && *plan ? plan : NULL};
    const inv_status s = inv_session_create(model, &options, &t->session);
    inv_free(t->ctx, plan);
    if (s != INV_OK) return fail(t->ctx, "compile");
    if (there && inv_session_load_state(t->session, state, NULL) != INV_OK) return fail(t->ctx, state);
    return 1;
}

static int train(training *t, inv_model *model, char **argv, uint64_t stop)
{
    const inv_schedule schedule = {.size = sizeof schedule,
                                   .kind = INV_SCHEDULE_COSINE,
                                   .lr = 0.1,
                                   .total = strtoull(argv[8], NULL, 10),
                                   .warmup = strtoull(argv[8], NULL, 10) / 10};
    if (!open_session(t, model, argv[5], argv[7])) return 0;
    while (!stopped && inv_session_steps(t->session) < schedule.total) {
        if (!make_step(t, &schedule)) return 0;
        if (inv_session_steps(t->session) == stop) stopped = 1;
    }
    if (inv_session_save_state(t->session, argv[7], NULL) != INV_OK) return fail(t->ctx, argv[7]);
    if (inv_session_steps(t->session) == schedule.total) return finish(t, model, argv[6]);
    printf("stopped after step %" PRIu64 "\n", inv_session_steps(t->session));
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 9) {
        fprintf(stderr, "usage: %s MODEL.onnx INPUT X.npy Y.npy GLOB OUT.onnx STATE STEPS [STOP]\n", argv[0]);
        return 2;
    }
    training t = {.input = argv[2]};
    inv_model *model = NULL;
    int ok = read_npy(argv[3], "'<f4'", sizeof(float), &t.x) && read_npy(argv[4], "'<i8'", sizeof(int64_t), &t.y);
    ok = ok && ((t.x.dims[0] >= BATCH && t.x.dims[0] == t.y.dims[0]) || fail(NULL, "the number of rows or labels"));
    t.nbatches = t.x.dims[0] / BATCH;
    t.x.dims[0] = t.y.dims[0] = BATCH;
    signal(SIGINT, on_interrupt);
    ok = ok && (inv_context_create(NULL, &t.ctx) == INV_OK || fail(NULL, "invonnx"));
    ok = ok && (inv_model_load(t.ctx, argv[1], &model) == INV_OK || fail(t.ctx, argv[1]));
    ok = ok && train(&t, model, argv, argc > 9 ? strtoull(argv[9], NULL, 10) : 0);
    inv_session_destroy(t.session);
    inv_model_destroy(model);
    inv_context_destroy(t.ctx);
    free(t.x.data);
    free(t.y.data);
    return ok ? 0 : 1;
}

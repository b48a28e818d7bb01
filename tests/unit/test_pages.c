/* SPDX-License-Identifier: Apache-2.0
 * Pages of a model's file, while a plan is searched for: fails if those that were read before, to find what is trained
 * and what inverses there are, stay in memory beside what the search takes. */
#include "onnx_build.h"

#include "with_context.h"

enum { WIDTH = 512, LAYERS = 8, BATCH = 4 };
static const size_t weights = (size_t)LAYERS * WIDTH * WIDTH * sizeof(float);

/* Of files whose names end so, what is in the process's memory; SIZE_MAX: the system does not say. */
static size_t resident(const char *name)
{
    char line[1024];
    size_t all = 0, n = strlen(name);
    bool counts = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    if (!f) return SIZE_MAX;
    while (fgets(line, sizeof line, f)) {
        unsigned long long from, to, kib;
        const size_t end = strcspn(line, "\n");
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) counts = end > n && !strncmp(line + end - n, name, n);
        else if (counts && sscanf(line, "Rss: %llu", &kib) == 1) all += (size_t)kib << 10;
    }
    (void)fclose(f);
    return all;
}

static const char *write_model(void)
{
    const int64_t io[] = {BATCH, WIDTH}, dims[] = {WIDTH, WIDTH};
    float *w = malloc(weights / LAYERS);
    char name[3][16];
    pb g = {0};
    assert_non_null(w);
    pb_str(&g, 2, "g");
    for (int i = 0; i < LAYERS; i++) {
        char in[40];
        snprintf(name[0], sizeof name[0], "w%d", i);
        snprintf(name[1], sizeof name[1], i ? "h%d" : "x", i);
        snprintf(name[2], sizeof name[2], "h%d", i + 1);
        snprintf(in, sizeof in, "%s %s", name[1], name[0]);
        for (size_t k = 0; k < (size_t)WIDTH * WIDTH; k++) w[k] = (float)((k + (size_t)i) * 7919 % 9973) / 9973 - 0.5f;
        pb_msg(&g, 1, node("", "MatMul", name[2], in, name[2]));
        pb_msg(&g, 5, tensor_raw(name[0], 1, 2, dims, w, weights / LAYERS));
    }
    pb_msg(&g, 11, value_info("x", 1, 2, io));
    pb_msg(&g, 12, value_info(name[2], 1, 2, io));
    free(w);
    return save(model_of(g), "pages.onnx");
}

static size_t at_search;

static bool note_pages(void *opaque, const char *plan, const char *pass, const char *text)
{
    (void)opaque, (void)plan, (void)text;
    if (strcmp(pass, "recover") == 0) at_search = resident("/pages.onnx");
    return true;
}

static void pages_go_back_before_the_search(void **state)
{
    (void)state;
    const int64_t dims[] = {BATCH, WIDTH};
    const inv_array in = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims};
    const inv_session_options o = {.size = sizeof o,
                                   .purpose = INV_FOR_TRAIN,
                                   .inputs = &in,
                                   .ninputs = 1,
                                   .target = &in,
                                   .loss = INV_LOSS_MSE,
                                   .optimizer = INV_OPT_SGD,
                                   .after_pass = note_pages};
    inv_model *model;
    inv_session *s;
    if (resident("") == SIZE_MAX) skip();
    assert_int_equal(inv_model_load(ctx, write_model(), &model), INV_OK);
    at_search = SIZE_MAX;
    assert_int_equal(inv_session_create(model, &o, &s), INV_OK);
    assert_true(at_search < weights / 4);
    inv_session_destroy(s);
    inv_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pages_go_back_before_the_search, dir_setup, dir_teardown)};
    return cmocka_run_group_tests(tests, setup, teardown);
}

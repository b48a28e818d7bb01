/* SPDX-License-Identifier: Apache-2.0
 * Property: any bytes are either refused with a message or import to a model that can be inspected, and that is saved
 * byte for byte as it was; functions behind those that they call, so that their bytes may have changed places. */
#include "fuzz.h"

#include "core/graph/model.h"

static char saved_path[64];

static void remove_saved(void) { (void)unlink(saved_path); }

static bool same_bytes(const uint8_t *a, const uint8_t *b, size_t n, bool ordered)
{
    size_t count[256] = {0};
    if (ordered) return memcmp(a, b, n) == 0;
    for (size_t i = 0; i < n; i++) count[a[i]]++, count[b[i]]--;
    for (int i = 0; i < 256; i++)
        if (count[i]) return false;
    return true;
}

static void save(fuzz_context *f, inv_model *model, const uint8_t *data, size_t size)
{
    if (!*saved_path) {
        (void)snprintf(saved_path, sizeof saved_path, P_tmpdir "/fuzz-import-%d.onnx", (int)getpid());
        (void)atexit(remove_saved);
    }
    if (!fuzz_ok(f, inv_model_save(model, NULL, saved_path))) return;
    FILE *file = fopen(saved_path, "rb");
    uint8_t *back = malloc(size + 2);
    if (!file || !back || fread(back, 1, size + 1, file) != size) abort();
    if (!same_bytes(back, data, size, model->graph->function.n < 2)) abort();
    (void)fclose(file);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_context *f = fuzz_open();
    inv_model *model;
    int fd;
    if (fuzz_load(f, data, size, &fd, &model)) {
        char *json = NULL;
        if (fuzz_ok(f, inv_model_inspect(model, &json))) inv_free(f->ctx, json);
        save(f, model, data, size);
    }
    inv_model_destroy(model);
    fuzz_close(f);
    (void)close(fd);
    return 0;
}

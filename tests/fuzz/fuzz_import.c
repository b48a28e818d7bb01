/* SPDX-License-Identifier: Apache-2.0
 * Property: any bytes are either refused with a message or import to a model that can be inspected, and that is saved
 * byte for byte as it was. */
#include "fuzz.h"

static char saved_path[64];

static void remove_saved(void) { (void)unlink(saved_path); }

static void save(fuzz_context *f, inv_model *model, const uint8_t *data, size_t size)
{
    if (!*saved_path) {
        (void)snprintf(saved_path, sizeof saved_path, P_tmpdir "/fuzz-import-%d.onnx", (int)getpid());
        (void)atexit(remove_saved);
    }
    if (!fuzz_ok(f, inv_model_save(model, NULL, saved_path))) return;
    FILE *file = fopen(saved_path, "rb");
    uint8_t *back = malloc(size + 2);
    if (!file || !back || fread(back, 1, size + 1, file) != size || memcmp(back, data, size) != 0) abort();
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

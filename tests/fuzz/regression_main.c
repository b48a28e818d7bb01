/* SPDX-License-Identifier: Apache-2.0
 * Runs a fuzz target over files, without any fuzzer. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (!f) return perror(argv[i]), 1;
        (void)fseek(f, 0, SEEK_END);
        long size = ftell(f);
        rewind(f);
        uint8_t *data = malloc((size_t)size + 1);
        if (!data || fread(data, 1, (size_t)size, f) != (size_t)size) return 1;
        (void)fclose(f);
        (void)LLVMFuzzerTestOneInput(data, (size_t)size);
        free(data);
        n++;
    }
    printf("%d inputs\n", n);
    return n > 0 ? 0 : 1;
}

/* SPDX-License-Identifier: Apache-2.0
 * Runs a fuzz target over the files of a folder, without any fuzzer. */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return perror(path), 1;
    (void)fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    /* Of exactly that size, so that a read past the end is seen. */
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    if (!data || fread(data, 1, (size_t)size, f) != (size_t)size) return perror(path), 1;
    (void)fclose(f);
    (void)LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    int n = 0;
    DIR *d = argc == 2 ? opendir(argv[1]) : NULL;
    if (!d) return fprintf(stderr, "usage: %s FOLDER\n", argv[0]), 1;
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096];
        (void)snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        if (e->d_name[0] == '.') continue;
        if (run_file(path) != 0) return 1;
        n++;
    }
    (void)closedir(d);
    printf("%d inputs\n", n);
    return n > 0 ? 0 : 1;
}

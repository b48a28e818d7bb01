/* SPDX-License-Identifier: Apache-2.0
 * Runs a fuzz target over the files of a folder, and over inputs of random bytes, without any fuzzer. */
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
    printf("%s\n", path); /* the last one is the one that failed, and so with seeds */
    (void)fflush(stdout);
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

static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* The input of a seed is the same on every machine. */
static void run_seed(uint64_t seed)
{
    enum { LONGEST = 192 };
    uint64_t state = seed;
    const size_t size = 1 + random_bits(&state) % LONGEST;
    uint8_t *data = malloc(size);
    if (!data) abort();
    for (size_t i = 0; i < size; i++) data[i] = (uint8_t)random_bits(&state);
    (void)LLVMFuzzerTestOneInput(data, size);
    free(data);
}

int main(int argc, char **argv)
{
    uint64_t n = 0, seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : 0,
             seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    DIR *d = argc >= 2 && argc <= 4 ? opendir(argv[1]) : NULL;
    if (!d) return fprintf(stderr, "usage: %s FOLDER [INPUTS [SEED]]\n", argv[0]), 1;
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096];
        (void)snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        if (e->d_name[0] == '.') continue;
        if (run_file(path) != 0) return 1;
        n++;
    }
    (void)closedir(d);
    for (; seeds > 0; seeds--, seed++, n++) {
        printf("seed %llu\n", (unsigned long long)seed);
        (void)fflush(stdout);
        run_seed(seed);
    }
    printf("%llu inputs\n", (unsigned long long)n);
    return n > 0 ? 0 : 1;
}

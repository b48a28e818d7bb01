/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of float32 on one thread: those of this library, OpenBLAS and oneDNN take turns on the shapes of
 * training steps, for kernels.py. Linux and others with a clock of processor time.
 *
 *     bench_products [ROUNDS]
 *
 * Prints a line of JSON per product: its extents, which operands are turned, and GFLOP/s of the quickest round by
 * processor time. Operands stay where they are, so what fits a cache is in it. */
#include <cblas.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/linear/gemm.h"
#ifdef INV_HAVE_DNNL
#include <oneapi/dnnl/dnnl.h>
#endif

#define LEAST_WORK 4e8 /* operations of one measurement */

typedef struct product {
    bool ta, tb;
    int64_t m, n, k;
} product;

/* Of x W: rows, columns of W, rows of W. Gradients follow. */
static const struct {
    const char *from;
    int64_t rows, columns, inner;
} shapes[] = {{"W2", 1024, 256, 256},
              {"W3, q k v", 2048, 768, 256},
              {"W3, mlp", 2048, 1024, 256},
              {"W3, mlp", 2048, 256, 1024},
              {"W3, head", 2048, 1024, 512},
              {"W4", 1024, 128, 32},
              {"W4", 1024, 64, 128},
              {"ViT-Ti, q k v", 1576, 576, 192},
              {"ViT-Ti, mlp", 1576, 768, 192},
              {"ViT-Ti, mlp", 1576, 192, 768},
              {"GPT-2, q k v", 256, 2304, 768},
              {"GPT-2, mlp", 256, 3072, 768},
              {"GPT-2, a part of the head", 128, 50257, 768},
              {"Swin-T, q k v", 3136, 288, 96},
              {"attention of 64 by 256", 64, 256, 64},
              {"attention of 197", 197, 197, 64},
              {"a window of Swin", 49, 49, 32},
              {"a point of Winograd", 32, 256, 32}};

static void by_ours(const product *p, const float *a, const float *b, float *c)
{
    inv_gemm_f32(p->ta, p->tb, p->m, p->n, p->k, a, p->ta ? p->m : p->k, b, p->tb ? p->k : p->n, false, c, p->n);
}

static void by_openblas(const product *p, const float *a, const float *b, float *c)
{
    cblas_sgemm(CblasRowMajor, p->ta ? CblasTrans : CblasNoTrans, p->tb ? CblasTrans : CblasNoTrans, (int)p->m,
                (int)p->n, (int)p->k, 1, a, (int)(p->ta ? p->m : p->k), b, (int)(p->tb ? p->k : p->n), 0, c, (int)p->n);
}

#ifdef INV_HAVE_DNNL
static void by_onednn(const product *p, const float *a, const float *b, float *c)
{
    (void)dnnl_sgemm(p->ta ? 'T' : 'N', p->tb ? 'T' : 'N', p->m, p->n, p->k, 1, a, p->ta ? p->m : p->k, b,
                     p->tb ? p->k : p->n, 0, c, p->n);
}
#endif

static const struct {
    const char *name;
    void (*run)(const product *, const float *, const float *, float *);
} contestants[] = {{"ours", by_ours},
                   {"openblas", by_openblas},
#ifdef INV_HAVE_DNNL
                   {"onednn", by_onednn}
#endif
};
enum { CONTESTANTS = sizeof contestants / sizeof *contestants };

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *numbers(int64_t count)
{
    float *x = malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; x && i < count; i++) x[i] = (float)(i % 97) / 97 - 0.5f;
    return x;
}

static bool measure(const char *from, const product *p, int rounds)
{
    float *a = numbers(p->m * p->k), *b = numbers(p->k * p->n), *c = numbers(p->m * p->n);
    const double work = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    const int times = (int)(LEAST_WORK / work) + 1;
    double best[CONTESTANTS];
    if (!a || !b || !c) return false;
    for (int r = 0; r <= rounds; r++) { /* the first one is warm-up */
        for (int i = 0; i < CONTESTANTS; i++) {
            const double began = seconds();
            for (int k = 0; k < times; k++) contestants[i].run(p, a, b, c);
            const double took = (seconds() - began) / times;
            if (r == 1 || (r > 1 && took < best[i])) best[i] = took;
        }
    }
    printf("{\"from\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"turned\": \"%c%c\"", from, (long long)p->m,
           (long long)p->n, (long long)p->k, p->ta ? 'T' : 'N', p->tb ? 'T' : 'N');
    for (int i = 0; i < CONTESTANTS; i++) printf(", \"%s\": %.2f", contestants[i].name, 1e-9 * work / best[i]);
    printf("}\n");
    free(a);
    free(b);
    free(c);
    return fflush(stdout) == 0;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 7;
    omp_set_num_threads(1);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t m = shapes[i].rows, n = shapes[i].columns, k = shapes[i].inner;
        const product of[] = {{false, false, m, n, k}, {false, true, m, k, n}, {true, false, k, n, m}};
        for (int j = 0; j < 3; j++)
            if (!measure(shapes[i].from, &of[j], rounds < 1 ? 1 : rounds)) return 1;
    }
    return 0;
}

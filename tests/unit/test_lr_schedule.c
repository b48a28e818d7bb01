/* SPDX-License-Identifier: Apache-2.0
 * Learning rates beside those of PyTorch 2.15 (torch.optim.lr_scheduler): 100 steps from 0.1, ten of them LinearLR with
 * start_factor 1/11, then LinearLR and CosineAnnealingLR to 0.01, PolynomialLR with power 2, StepLR(20, 0.3),
 * ConstantLR; OneCycleLR by itself, with its defaults. Fails if a rate differs by more than rounding. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "invonnx/invonnx.h"

enum { STEPS = 13 };
static const uint64_t steps[STEPS] = {0, 1, 5, 9, 10, 11, 29, 30, 31, 50, 75, 98, 99};

/* clang-format off */
static const struct {
    inv_schedule_kind kind;
    double rate[STEPS];
} torch[] = {
    {INV_SCHEDULE_LINEAR, {0.009090909090909092, 0.018181818181818184, 0.05454545454545454, 0.09090909090909093,
     0.1, 0.099, 0.08099999999999999, 0.07999999999999999, 0.07899999999999999, 0.05999999999999997,
     0.03499999999999996, 0.011999999999999985, 0.010999999999999985}},
    {INV_SCHEDULE_COSINE, {0.009090909090909092, 0.018181818181818184, 0.05454545454545454, 0.09090909090909093,
     0.1, 0.09997258721585932, 0.09046048391230249, 0.089471999940354, 0.08844151714648273, 0.06281416799501183,
     0.026074557564105698, 0.010109617738307911, 0.010027412784140691}},
    {INV_SCHEDULE_POLYNOMIAL, {0.009090909090909092, 0.018181818181818184, 0.05454545454545454,
     0.09090909090909093, 0.1, 0.09779012345679014, 0.062234567901234605, 0.06049382716049386, 0.058777777777777804,
     0.03086419753086423, 0.007716049382716062, 4.938271604938293e-05, 1.2345679012345609e-05}},
    {INV_SCHEDULE_STEP, {0.009090909090909092, 0.018181818181818184, 0.05454545454545454, 0.09090909090909093, 0.1,
     0.1, 0.1, 0.03, 0.03, 0.009, 0.0026999999999999997, 0.0008099999999999998, 0.0008099999999999998}},
    {INV_SCHEDULE_ONE_CYCLE, {0.0040000000000000036, 0.004281378056590748, 0.010870855543955726,
     0.025063020862605645, 0.029516394846410082, 0.03423336854368411, 0.1, 0.09994965352845243, 0.09979871550490317,
     0.0793893450575732, 0.026306861650082565, 5.07464715475788e-05, 4e-07}},
    {INV_SCHEDULE_CONSTANT, {0.009090909090909092, 0.018181818181818184, 0.05454545454545454, 0.09090909090909093,
     0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}},
};
/* clang-format on */

static void rates_are_those_of_torch(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof torch / sizeof *torch; k++) {
        const bool ends = torch[k].kind == INV_SCHEDULE_LINEAR || torch[k].kind == INV_SCHEDULE_COSINE;
        const inv_schedule s = {.size = sizeof s,
                                .kind = torch[k].kind,
                                .lr = 0.1,
                                .min_lr = ends ? 0.01 : 0,
                                .warmup = torch[k].kind == INV_SCHEDULE_ONE_CYCLE ? 0 : 10,
                                .total = 100,
                                .power = 2,
                                .every = 20,
                                .factor = 0.3};
        for (int i = 0; i < STEPS; i++) {
            const double rate = inv_lr_at(&s, steps[i]);
            if (!(fabs(rate - torch[k].rate[i]) < 1e-12))
                fail_msg("kind %d, step %d: %.17g and %.17g", (int)s.kind, (int)steps[i], rate, torch[k].rate[i]);
        }
    }
}

/* Warm-up, stable, decay: PyTorch has none. Behind the last step every schedule stays where it was. */
static void the_rest(void **state)
{
    (void)state;
    const inv_schedule s = {
        .size = sizeof s, .kind = INV_SCHEDULE_WSD, .lr = 1, .min_lr = 0.2, .warmup = 4, .total = 20, .decay = 8};
    assert_true(inv_lr_at(&s, 3) == 0.8 && inv_lr_at(&s, 4) == 1 && inv_lr_at(&s, 12) == 1);
    assert_true(fabs(inv_lr_at(&s, 16) - 0.6) < 1e-12 && fabs(inv_lr_at(&s, 20) - 0.2) < 1e-12);
    for (inv_schedule_kind k = INV_SCHEDULE_CONSTANT; k <= INV_SCHEDULE_WSD; k++) {
        inv_schedule t = s;
        t.kind = k;
        t.power = 1;
        t.every = 30;
        t.factor = 0.5;
        assert_true(isfinite(inv_lr_at(&t, 1000)));
        if (k != INV_SCHEDULE_STEP) assert_true(inv_lr_at(&t, 1000) == inv_lr_at(&t, 2000));
    }
    inv_schedule decays = s; /* from the warm-up's end at the earliest, without a jump */
    decays.decay = 18;
    assert_true(inv_lr_at(&decays, 4) == 1 && fabs(inv_lr_at(&decays, 12) - 0.6) < 1e-12);
    inv_schedule none = s;
    none.kind = (inv_schedule_kind)99;
    assert_true(isnan(inv_lr_at(&none, 10)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rates_are_those_of_torch), cmocka_unit_test(the_rest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

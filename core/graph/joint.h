/* SPDX-License-Identifier: Apache-2.0
 * Several element-wise nodes as one: what its row has read of attribute `steps` (ops/elementwise/fused.c). Read by C
 * and by device code. */
#ifndef INV_CORE_JOINT_H
#define INV_CORE_JOINT_H

#include <stdbool.h>
#include <stdint.h>

/* Places: values that a device's thread has room for at once, inputs and results (ops/elementwise/fused.cu). */
enum { INV_FUSED_STEPS = 16, INV_FUSED_IN = 16, INV_FUSED_PLACES = 16, INV_FUSED_ROOM = UINT8_MAX };
typedef struct inv_fused_step {
    const struct inv_op_def *op;
    double real[4];
    uint32_t nin;
    uint8_t in[3]; /* inputs of the node; INV_FUSED_IN + i: the result of step i */
    uint8_t out;   /* output of the node; INV_FUSED_ROOM: the result is nobody else's */
    uint8_t room;  /* then, where it is meanwhile: pieces of several results, one after the other */
} inv_fused_step;
typedef struct inv_fused {
    uint32_t nstep, nroom;
    inv_fused_step step[INV_FUSED_STEPS];
} inv_fused;

/* Where values are while a device works through the steps: inputs in the first places, the result of step i in
 * place[i]. Gives how many places that takes. */
static inline uint32_t inv_fused_places(const inv_fused *f, uint32_t nin, uint8_t place[INV_FUSED_STEPS])
{
    enum { VALUES = INV_FUSED_IN + INV_FUSED_STEPS };
    uint32_t last[VALUES] = {0}, most = nin; /* step behind which a value is read no more, and is forgotten */
    bool taken[VALUES] = {false};
    for (uint32_t i = 0; i < f->nstep; i++)
        for (uint32_t k = 0; k < f->step[i].nin; k++) last[f->step[i].in[k]] = i + 1;
    for (uint32_t k = 0; k < nin; k++) taken[k] = last[k] > 0;
    for (uint32_t i = 0; i < f->nstep; i++) {
        const inv_fused_step *s = &f->step[i];
        for (uint32_t k = 0; k < s->nin; k++)
            if (last[s->in[k]] == i + 1)
                taken[s->in[k] < INV_FUSED_IN ? s->in[k] : place[s->in[k] - INV_FUSED_IN]] = false;
        for (place[i] = 0; taken[place[i]];) place[i]++;
        taken[place[i]] = last[INV_FUSED_IN + i] > 0;
        if (place[i] >= most) most = place[i] + 1u;
    }
    return most;
}

#endif

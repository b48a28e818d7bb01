/* SPDX-License-Identifier: Apache-2.0
 * What tests can ask of device `sim`. */
#ifndef INV_EXECUTOR_SIM_H
#define INV_EXECUTOR_SIM_H

#include <stddef.h>
#include <stdint.h>

/* Read when a session opens the device. */
typedef struct inv_sim_faults {
    size_t memory;     /* bytes that there are; 0: no limit */
    size_t fail_run;   /* the n-th kernel fails; 0: none */
    uint64_t seed;     /* of the order in which queues take turns */
    size_t drop_event; /* waits for the event before this one do nothing; 0: all do */
    bool drop_waits;   /* `wait` does nothing: what depends on one must then go wrong */
} inv_sim_faults;
extern inv_sim_faults inv_sim_faults_next;

#endif

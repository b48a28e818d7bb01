/* SPDX-License-Identifier: Apache-2.0
 * The devices of this build, by name. */
#include <string.h>

#include "core/program/options.h"
#include "executor/executor.h"

inv_status inv_device_find(inv_context *ctx, const char *name, const inv_device **out, int *index)
{
    static const inv_device *const all[] = {&inv_device_cpu, &inv_device_checked, &inv_device_sim,
#ifdef INV_HAVE_CUDA
                                            &inv_device_cuda
#endif
    };
    *out = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (inv_device_is(name, all[i]->name, index) && (*index == 0 || strcmp(all[i]->name, "cuda") == 0))
            *out = all[i];
    if (*out) return INV_OK;
    if (inv_device_is(name, "cuda", index))
        return inv_fail(ctx, INV_E_DEVICE,
                        "this build of invonnx has no CUDA. Build it with the preset cuda (cmake --preset cuda), or "
                        "use device cpu");
    return inv_fail(ctx, INV_E_DEVICE, "there is no device '%s'; there are: cpu, cuda, cuda:N, checked, sim", name);
}

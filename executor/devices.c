/* SPDX-License-Identifier: Apache-2.0
 * The devices of this build, by name. */
#include <string.h>

#include "executor/executor.h"

inv_status inv_device_find(inv_context *ctx, const char *name, const inv_device **out)
{
    static const inv_device *const all[] = {&inv_device_cpu, &inv_device_checked, &inv_device_sim,
#ifdef INV_HAVE_CUDA
                                            &inv_device_cuda
#endif
    };
    *out = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i]->name, name) == 0) *out = all[i];
    if (*out) return INV_OK;
    if (strcmp(name, "cuda") == 0)
        return inv__fail(ctx, INV_E_DEVICE,
                         "this build of invonnx has no CUDA: build it with the preset cuda (cmake --preset cuda), or "
                         "use device cpu");
    return inv__fail(ctx, INV_E_DEVICE, "there is no device '%s'; there are: cpu, cuda, checked, sim", name);
}

/* SPDX-License-Identifier: Apache-2.0
 * What every part of a session needs: whether it is whole, and tensors of the device in host memory. */
#include "core/base/mem.h"
#include "executor/executor.h"

inv_status inv_session_whole(const inv_session *s)
{
    INV_CHECK(!s->lost, s->ctx, INV_E_ARG, "this session has ended: %s", s->lost);
    return INV_OK;
}

inv_status inv_session_room(inv_session *s, size_t nbytes)
{
    if (nbytes <= s->host_nbytes && s->host) return INV_OK;
    void *fresh = inv_alloc(s->ctx, nbytes ? nbytes : 1);
    if (!fresh) return INV_E_NOMEM;
    inv_dealloc(s->ctx, s->host);
    s->host = fresh;
    s->host_nbytes = nbytes;
    return INV_OK;
}

inv_status inv_session_fetch(inv_session *s, const void *address, inv_dtype dtype, const inv_shape *shape,
                             const void **data)
{
    size_t nbytes = 0;
    (void)inv_shape_nbytes(shape, dtype, &nbytes);
    INV_TRY(inv_session_room(s, nbytes));
    INV_TRY(s->device->download(s->self, s->host, address, nbytes));
    *data = s->host;
    return INV_OK;
}

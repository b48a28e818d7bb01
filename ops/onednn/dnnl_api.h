/* SPDX-License-Identifier: Apache-2.0
 * What dnnl.c and conv_dnnl.c share: the differences between oneDNN 2 and 3, and primitives kept by shape. A primitive
 * is made at the first call for its shapes and kept, so a step allocates nothing. */
#ifndef INV_OPS_ONEDNN_DNNL_API_H
#define INV_OPS_ONEDNN_DNNL_API_H

#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* Descriptors are structs in 2, objects in 3. Those of memory begin as zero and are dropped when they are no longer
 * needed. */
typedef dnnl_memory_desc_t inv_dnnl_desc;
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t inv_dnnl_ref;
#define INV_DNNL_REF(d) (d)
#define INV_DNNL_DROP(d) (void)dnnl_memory_desc_destroy(d)
#else
typedef const dnnl_memory_desc_t *inv_dnnl_ref;
#define INV_DNNL_REF(d) (&(d))
#define INV_DNNL_DROP(d) (void)(d)
#endif
dnnl_status_t inv_dnnl_describe(inv_dnnl_desc *d, int rank, const dnnl_dims_t dims, dnnl_data_type_t t,
                                dnnl_format_tag_t tag);

enum { INV_DNNL_KEY = 320, INV_DNNL_MEMORIES = 10 };

typedef struct inv_dnnl_entry {
    struct inv_dnnl_entry *next;
    bool served;
    dnnl_primitive_t run[2];
    dnnl_memory_t mem[INV_DNNL_MEMORIES];
    size_t nbytes[INV_DNNL_MEMORIES]; /* of those that lie in the workspace, rounded up; else 0 */
    pthread_mutex_t busy;             /* the memory objects are given their bytes by each call */
    dnnl_status_t (*fill)(struct inv_dnnl_entry *, const void *key, dnnl_primitive_attr_t);
    size_t key_nbytes;
    unsigned char key[INV_DNNL_KEY];
} inv_dnnl_entry;

/* `key` is compared byte by byte: clear it before it is set, and note the number of threads in it. `fill` makes
 * primitives and memory objects and sets `served`; what it leaves is freed with the entry. NULL: no memory for it. */
inv_dnnl_entry *inv_dnnl_entry_of(const void *key, size_t nbytes,
                                  dnnl_status_t (*fill)(inv_dnnl_entry *, const void *, dnnl_primitive_attr_t));

/* While an entry is made or `busy` is held. */
dnnl_engine_t inv_dnnl_engine(void);
dnnl_stream_t inv_dnnl_stream(void);
dnnl_status_t inv_dnnl_memory(inv_dnnl_entry *e, int slot, inv_dnnl_ref d, bool in_workspace);
size_t inv_dnnl_place(const inv_dnnl_entry *e); /* bytes of its workspace */
/* Gives the memory objects of the workspace their bytes. */
dnnl_status_t inv_dnnl_take(inv_dnnl_entry *e, void *ws);
bool inv_dnnl_name(const_dnnl_primitive_desc_t d, const char **name); /* of the code that the library has chosen */

#endif

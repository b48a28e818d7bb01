/* SPDX-License-Identifier: Apache-2.0
 * The picture of a plan, from reports as text. */
#define _GNU_SOURCE /* open_memstream */
#include "draw_plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "pictures/picture.h"

char *invonnx_draw_plan(const char *heading, const char *stored, const char *planned, const char *curve,
                        const char *explanation, bool page)
{
    const char *const texts[] = {stored, planned, curve, explanation};
    json_t *object[4] = {NULL};
    char *drawn = NULL;
    size_t n = 0;
    bool ok = true;
    for (int i = 0; i < 4 && ok; i++) ok = !texts[i] || (object[i] = json_loads(texts[i], JSON_ALLOW_NUL, NULL));
    FILE *f = ok ? open_memstream(&drawn, &n) : NULL;
    if (f) {
        const pic_memory what = {heading,  {object[0], object[1]}, {"all values stored", "as planned"}, 2, object[2],
                                 object[3]};
        ok = pic_put_memory(f, &what, page);
        ok = fclose(f) == 0 && ok;
    }
    for (int i = 0; i < 4; i++) json_decref(object[i]);
    if (f && ok) return drawn;
    free(drawn);
    return NULL;
}

/* SPDX-License-Identifier: Apache-2.0
 * Globs: what fits one, and the edit distance of a name from what one fits (Wagner, Fischer 1974; a `*` takes any run
 * for nothing). */
#include "core/base/glob.h"

#include <fnmatch.h>
#include <string.h>

bool inv_glob_fits(const char *glob, const char *name)
{
    return strcmp(glob, name) == 0 || fnmatch(glob, name, 0) == 0;
}

bool inv_glob_fits_any(const char *const *globs, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (inv_glob_fits(globs[i], name)) return true;
    return false;
}

enum { LONGEST = 255 }; /* of names that are looked at */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

size_t inv_name_distance(const char *glob, const char *name)
{
    if (!glob || !name) return SIZE_MAX;
    size_t rows[3][LONGEST + 1], *before = rows[0], *last = rows[1], *now = rows[2];
    const size_t n = strlen(name), m = strlen(glob);
    if (n > LONGEST || m > LONGEST) return SIZE_MAX;
    for (size_t k = 0; k <= n; k++) last[k] = k;
    for (size_t i = 0; i < m; i++) {
        const bool run = glob[i] == '*';
        now[0] = last[0] + !run;
        for (size_t k = 1; k <= n; k++) {
            const bool same = glob[i] == '?' || glob[i] == name[k - 1];
            now[k] = run ? least(last[k], now[k - 1]) : least(least(last[k], now[k - 1]) + 1, last[k - 1] + !same);
            if (!run && i && k > 1 && glob[i] == name[k - 2] && glob[i - 1] == name[k - 1])
                now[k] = least(now[k], before[k - 2] + 1);
        }
        size_t *old = before;
        before = last;
        last = now;
        now = old;
    }
    return last[n];
}

inv_near inv_near_to(const char *glob)
{
    size_t meant = 0;
    for (const char *c = glob; *c; c++) meant += *c != '*';
    /* what shares less than two thirds is another name */
    return (inv_near){glob, NULL, meant / 3 + (meant > 1 && meant < 6)};
}

void inv_near_look(inv_near *n, const char *name)
{
    const size_t off = inv_name_distance(n->glob, name);
    if (off > n->off || (n->name && off == n->off)) return;
    n->off = off;
    n->name = off > 0 ? name : NULL; /* what is called so is not what else was meant */
}

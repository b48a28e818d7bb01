/* SPDX-License-Identifier: Apache-2.0
 * Measured rates between programs: a JSON file per key, whose name is the key's hash.
 *
 *     {"format": 2, "key": "...", "cache": bytes, "bandwidth": x, "work": {"stream": {"rate": x, "fixed": x}, ...},
 *      "seen": {"0123456789abcdef": x, ...}}
 *
 * "seen" are the corrections (core/program/cost.h). Programs that write at the same time may each lose what another
 * adds, which is seen again in a later run. */
#include <ctype.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/output_file.h"
#include "executor/rates/costs.h"
#include "ops/linear/gemm.h"
#include "ops/onednn/dnnl.h"

#define FORMAT 2
#define TOO_SLOW 0.5 /* of all nodes, over what the rates say */

/* --- the key --- */

/* What Linux says of the first processor. */
static void processor(char *out, size_t nbytes)
{
    static const char *const about[] = {"vendor_id", "cpu family",      "model",    "model name",
                                        "stepping",  "CPU implementer", "CPU part", "CPU variant"};
    char line[512];
    size_t n = 0;
    FILE *f = fopen("/proc/cpuinfo", "r");
    out[0] = 0;
    while (f && fgets(line, sizeof line, f) && line[0] != '\n') {
        char *colon = strchr(line, ':');
        size_t name = colon ? (size_t)(colon - line) : 0;
        while (name && isspace((unsigned char)line[name - 1])) name--;
        for (size_t i = 0; name && i < sizeof about / sizeof *about; i++) {
            if (strlen(about[i]) != name || strncmp(line, about[i], name) != 0) continue;
            const int wrote = snprintf(out + n, nbytes - n, "%.*s;", (int)strcspn(colon + 1, "\n"), colon + 1);
            if (wrote > 0 && (size_t)wrote < nbytes - n) n += (size_t)wrote;
        }
    }
    if (f) (void)fclose(f);
    out[n] = 0;
}

void inv_costs_key(int threads, inv_dtype real, char key[INV_COST_KEY])
{
    char cpu[INV_COST_KEY / 2];
    processor(cpu, sizeof cpu);
    key[0] = 0;
    if (cpu[0])
        (void)snprintf(key, INV_COST_KEY, "%s invonnx %s; %s; %s; %d threads; %s", cpu, inv_version(), inv_blas_name(),
                       inv_dnnl_version(), threads, inv_dtype_name(real));
}

const char *inv_costs_path(inv_arena *a, const char *folder, const char *key)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (!key[0] || (folder && !*folder)) return NULL;
    if (!folder && xdg && *xdg == '/') folder = inv_arena_printf(a, "%s/invonnx", xdg);
    else if (!folder && home && *home) folder = inv_arena_printf(a, "%s/.cache/invonnx", home);
    if (!folder) return NULL;
    return inv_arena_printf(a, "%s/costs-%016llx.json", folder, (unsigned long long)inv_hash(key, strlen(key), 0));
}

/* --- the file --- */

static double json_number(const json_t *o, const char *name)
{
    const json_t *x = json_object_get(o, name);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

/* Only of a plain file: what else has that name may never end, or never begin. */
static json_t *load_cache(const char *path)
{
    struct stat is;
    const int from = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    json_t *root = NULL;
    if (from < 0) return NULL;
    if (fstat(from, &is) == 0 && S_ISREG(is.st_mode)) root = json_loadfd(from, JSON_REJECT_DUPLICATES, NULL);
    (void)close(from);
    return root;
}

/* At most so many, in the order of the file, which is theirs. */
static void read_seen(inv_arena *a, json_t *all, inv_cost_table *out)
{
    const char *what;
    json_t *by;
    const size_t n = json_object_size(all);
    inv_correction *seen = n && n <= INV_MOST_CORRECTIONS ? INV_ARENA_NEW(a, inv_correction, n) : NULL;
    if (!seen) return;
    json_object_foreach(all, what, by)
    {
        const inv_correction c = {strtoull(what, NULL, 16), json_is_number(by) ? json_number_value(by) : NAN};
        seen[out->nseen++] = c;
    }
    out->seen = seen;
}

bool inv_costs_read(inv_arena *a, const char *path, const char *key, inv_cost_table *out)
{
    json_t *root = load_cache(path);
    const char *of = json_string_value(json_object_get(root, "key"));
    const char *real = json_string_value(json_object_get(root, "real"));
    bool fine = of && strcmp(of, key) == 0 && real && json_number(root, "format") == FORMAT;
    *out = (inv_cost_table){.real = fine && strcmp(real, inv_dtype_name(INV_F64)) == 0 ? INV_F64 : INV_F32,
                            .cache = json_number(root, "cache"),
                            .bandwidth = json_number(root, "bandwidth")};
    const json_t *work = json_object_get(root, "work");
    for (int w = 0; w < INV_WORKS; w++) {
        const json_t *row = json_object_get(work, inv_work_name((inv_work)w));
        out->rate[w] = json_number(row, "rate");
        out->fixed[w] = json_number(row, "fixed");
    }
    if (fine) read_seen(a, json_object_get(root, "seen"), out);
    json_decref(root);
    return fine && inv_cost_table_sound(out);
}

/* The folder and those around it that are not there. */
static void make_folders(char *path)
{
    for (char *p = path + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        (void)mkdir(path, 0700);
        *p = '/';
    }
}

static char *text_of(const char *key, const inv_cost_table *t)
{
    json_t *work = json_object(), *seen = json_object();
    for (int w = 0; w < INV_WORKS; w++)
        (void)json_object_set_new(work, inv_work_name((inv_work)w),
                                  json_pack("{s:f, s:f}", "rate", t->rate[w], "fixed", t->fixed[w]));
    for (size_t i = 0; i < t->nseen; i++) {
        char what[24];
        (void)snprintf(what, sizeof what, "%016llx", (unsigned long long)t->seen[i].what);
        (void)json_object_set_new(seen, what, json_real(t->seen[i].by));
    }
    json_t *root =
        json_pack("{s:i, s:s, s:s, s:f, s:f, s:o, s:o}", "format", FORMAT, "key", key, "real", inv_dtype_name(t->real),
                  "cache", t->cache, "bandwidth", t->bandwidth, "work", work, "seen", seen);
    char *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    return text;
}

void inv_costs_write(inv_arena *a, const char *path, const char *key, const inv_cost_table *t)
{
    inv_out o;
    char *text = text_of(key, t), *folders = text ? inv_arena_strdup(a, path) : NULL;
    if (folders) {
        make_folders(folders);
        inv_status s = inv_out_open(a->ctx, path, &o);
        if (s == INV_OK) s = inv_out_write(&o, text, strlen(text));
        if (s == INV_OK) s = inv_out_sync(&o);
        if (s == INV_OK) (void)inv_out_publish(&o);
        inv_out_close(&o);
    }
    free(text);
}

/* --- corrections --- */

static bool equal(double x, double y) { return !(x < y || x > y); }

static bool same_rates(const inv_cost_table *a, const inv_cost_table *b)
{
    bool same = a->real == b->real && equal(a->bandwidth, b->bandwidth) && equal(a->cache, b->cache);
    for (int w = 0; w < INV_WORKS; w++) same = same && equal(a->rate[w], b->rate[w]) && equal(a->fixed[w], b->fixed[w]);
    return same;
}

void inv_costs_keep(inv_arena *a, const char *path, const char *key, const inv_cost_table *t,
                    const inv_correction *fresh, size_t n)
{
    inv_cost_table kept;
    if (!inv_costs_read(a, path, key, &kept) || !same_rates(&kept, t)) return;
    for (size_t i = 0; i < n; i++)
        if (fresh[i].what == INV_ALL_NODES && fresh[i].by < TOO_SLOW) {
            (void)unlink(path);
            return;
        }
    inv_correction *all = INV_ARENA_NEW(a, inv_correction, n + kept.nseen + 1);
    if (!all) return;
    if (n) memcpy(all, fresh, n * sizeof *all);
    if (kept.nseen) memcpy(all + n, kept.seen, kept.nseen * sizeof *all);
    kept.nseen = inv_corrections_sort(all, n + kept.nseen);
    kept.seen = all;
    inv_costs_write(a, path, key, &kept);
}

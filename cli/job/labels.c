/* SPDX-License-Identifier: Apache-2.0
 * Labels and the classes that the model's output has, as far as its declaration tells; targets that a loss does not
 * take, and such as are missing. */
#include "cli/job/labels.h"

#include <math.h>
#include <string.h>

#include "cli/say/progress_bar.h"

const cli_port *cli_loss_port(const cli_job *job)
{
    const cli_port *found = NULL;
    for (size_t i = 0; i < job->noutputs; i++) {
        const cli_port *port = &job->outputs[i];
        if (job->o->loss_output.n) {
            if (strcmp(port->name, job->o->loss_output.item[0]) == 0) return port;
        } else if (port->dtype == INV_F32 || port->dtype == INV_F64 || port->dtype == INV_F16 ||
                   port->dtype == INV_BF16) {
            if (found) return NULL;
            found = port;
        }
    }
    return found;
}

int64_t cli_classes(const cli_job *job, const npy_array *labels)
{
    const cli_port *port = cli_loss_port(job);
    int64_t axis = job->o->class_axis, found = -1;
    if (!port || port->rank < 2) return -1;
    if (axis != INT64_MIN) {
        if (axis < 0) axis += port->rank;
        return axis >= 0 && axis < port->rank ? port->dims[axis] : -1;
    }
    if (labels->rank != port->rank - 1) return -1;
    for (int k = 1; k < port->rank; k++) {
        bool fits = true;
        for (int d = 1; d < labels->rank && fits; d++) {
            int64_t is = port->dims[d + (d >= k)];
            fits = is < 0 || is == labels->dims[d];
        }
        if (fits && found >= 0) return -1; /* the library decides, or refuses */
        if (fits) found = k;
    }
    return found < 0 ? -1 : port->dims[found];
}

static bool is_float(inv_dtype t) { return t == INV_F32 || t == INV_F64 || t == INV_F16; }

bool cli_is_missing(const cli_options *o, double target)
{
    if (o->loss == INV_LOSS_CROSS_ENTROPY) return target == (double)o->ignore_index;
    return isnan(target) || (o->ignore_index != INT64_MIN && target == (double)o->ignore_index);
}

static bool bad_label(const cli_job *job, const npy_array *labels, int64_t classes, size_t *at, FILE *why)
{
    const size_t n = labels->nbytes / npy_itemsize(labels->dtype);
    for (size_t i = 0; i < n; i++) {
        const double v = npy_element(labels->data, labels->dtype, i);
        if (cli_is_missing(job->o, v) || (v >= 0 && (classes < 0 || v < (double)classes))) continue;
        *at = i;
        if (v < 0) fprintf(why, "label %.0f; labels count from 0, and --ignore-index %.0f leaves such rows out", v, v);
        else
            fprintf(why, "label %.0f, but output '%s' has %lld classes (labels 0 to %lld)", v,
                    cli_loss_port(job)->label, (long long)classes, (long long)classes - 1);
        return true;
    }
    return false;
}

/* Shares of classes, which are along an axis of the target as of the output; of several axes the library decides. What
 * is not finite the loss tells. */
static bool bad_share(const cli_job *job, const npy_array *t, size_t *at, FILE *why)
{
    const int64_t given = job->o->class_axis;
    const int axis = (int)(given == INT64_MIN ? 1 : given < 0 ? given + t->rank : given);
    if (axis < 1 || axis >= t->rank || (given == INT64_MIN && t->rank != 2)) return false;
    const int64_t classes = t->dims[axis];
    const cli_port *port = cli_loss_port(job);
    if (port && (port->rank != t->rank || (port->dims[axis] >= 0 && port->dims[axis] != classes))) return false;
    int64_t inner = 1;
    for (int d = axis + 1; d < t->rank; d++) inner *= t->dims[d];
    const int64_t rows = (int64_t)(t->nbytes / npy_itemsize(t->dtype)) / (classes ? classes : 1);
    for (int64_t r = 0; r < rows && classes; r++) {
        const int64_t first = r / inner * classes * inner + r % inner;
        double sum = 0;
        for (int64_t c = 0; c < classes; c++) {
            *at = (size_t)(first + c * inner);
            const double v = npy_element(t->data, t->dtype, *at);
            if (v < 0) return fprintf(why, "%.6g for class %lld; soft targets are from 0 to 1", v, (long long)c), true;
            sum += v;
        }
        if (!(fabs(sum - 1) > 1e-3 + 1e-4 * sqrt((double)classes))) continue; /* as rounding to 16 bits comes to */
        fprintf(why,
                "shares that sum to %.6g; soft targets sum to 1 over the classes. Divide them by their sum, or use "
                "--loss bce if rows may have several classes",
                sum);
        return true;
    }
    return false;
}

static bool bad_probability(const cli_job *job, const npy_array *t, size_t *at, FILE *why)
{
    const size_t n = t->nbytes / npy_itemsize(t->dtype);
    for (size_t i = 0; i < n; i++) {
        const double v = npy_element(t->data, t->dtype, i);
        if (cli_is_missing(job->o, v) || (v >= 0 && v <= 1)) continue;
        *at = i;
        fprintf(why, "%.6g; targets of --loss bce are from 0 to 1", v);
        if (v < 0 && v == trunc(v)) fprintf(why, ", and --ignore-index %.0f leaves such entries out", v);
        return true;
    }
    return false;
}

bool cli_bad_target(const cli_job *job, const npy_array *t, int64_t classes, size_t *at, FILE *why)
{
    if (job->o->loss == INV_LOSS_BCE) return bad_probability(job, t, at, why);
    if (job->o->loss != INV_LOSS_CROSS_ENTROPY) return false;
    return is_float(t->dtype) ? bad_share(job, t, at, why) : bad_label(job, t, classes, at, why);
}

int64_t cli_count_missing(const cli_job *job, const npy_array *t)
{
    int64_t n = 0;
    if (job->o->loss == INV_LOSS_CROSS_ENTROPY || (!is_float(t->dtype) && job->o->ignore_index == INT64_MIN)) return 0;
    for (size_t i = 0; i < t->nbytes / npy_itemsize(t->dtype); i++)
        n += cli_is_missing(job->o, npy_element(t->data, t->dtype, i));
    return n;
}

/* Where it is, by the file's own counts. */
static int fail_at(const npy_array *t, const char *path, size_t at, const char *why)
{
    size_t per_row = 1;
    for (int d = 1; d < t->rank; d++) per_row *= (size_t)t->dims[d];
    const bool label = strncmp(why, "label ", 6) == 0;
    const int digits = label ? (int)strcspn(why + 6, ",;") : 0;
    if (label) return cli_fail("%s: %.*s at element %zu%s", path, 6 + digits, why, at, why + 6 + digits);
    return cli_fail("%s: row %zu has %s", path, at / per_row, why);
}

int cli_check_target(cli_job *job, const npy_array *t, const char *path, const data_source *from)
{
    const int64_t classes = cli_classes(job, t);
    const size_t size = npy_itemsize(t->dtype), n = t->nbytes / size,
                 rows = t->rank && t->dims[0] ? (size_t)t->dims[0] : 1;
    const size_t each = n / rows ? n / rows : 1, part_rows = each < (1 << 20) ? (1 << 20) / each : 1;
    char why[512] = "";
    FILE *f = fmemopen(why, sizeof why, "w");
    if (!f) return cli_fail("out of memory");
    bool bad = false;
    size_t at = 0, first = 0;
    int64_t missing = 0;
    for (; first < n; first += part_rows * each) {
        cli_busy("checking the target", (double)first / (double)n);
        npy_array part = *t;
        part.data = (const char *)t->data + first * size;
        part.nbytes = (n - first < part_rows * each ? n - first : part_rows * each) * size;
        bad = cli_bad_target(job, &part, classes, &at, f);
        if (!bad) missing += cli_count_missing(job, &part);
        if (!from) npy_give_back(t);
        else if (from->calls->give_back) from->calls->give_back(from);
        if (bad) break;
    }
    fclose(f);
    if (bad) return fail_at(t, path, at + first, why);
    if (missing) job->missing = true;
    if (missing)
        cli_say("%s: %lld of %zu entries are missing (NaN%s), and do not count", path, (long long)missing, n,
                job->o->ignore_index == INT64_MIN ? "" : " or --ignore-index");
    return CLI_OK;
}

/* Whether all labels that count are the numbers of this input at the same places, and there are several. */
static bool equals(const cli_job *job, const npy_array *labels, const npy_array *tokens)
{
    enum { FEW = 2 };
    bool same = labels->rank == tokens->rank && labels->rank > 1 && labels->data && tokens->data;
    for (int d = 0; d < labels->rank && same; d++) same = labels->dims[d] == tokens->dims[d];
    int64_t counted = 0;
    for (size_t i = 0; same && i < labels->nbytes / npy_itemsize(labels->dtype); i++) {
        const double label = npy_element(labels->data, labels->dtype, i);
        if (cli_is_missing(job->o, label)) continue;
        same = label == npy_element(tokens->data, tokens->dtype, i);
        counted++;
    }
    return same && counted >= FEW;
}

void cli_tell_copied(const cli_data *data)
{
    const cli_job *job = data->job;
    const npy_array labels = cli_source_shape(&data->input[data->target_from].source, DATA_TARGET);
    if (job->o->loss != INV_LOSS_CROSS_ENTROPY || is_float(labels.dtype)) return;
    for (size_t i = 0; i < data->ninputs; i++) {
        const npy_array tokens = cli_source_shape(&data->input[i].source, DATA_INPUT);
        if (data->input[i].whole || is_float(tokens.dtype) || !equals(job, &labels, &tokens)) continue;
        const char *name = job->inputs[i].label;
        cli_note(
            "all labels that count equal input '%s' at the same position: the model would learn to copy. To predict "
            "the next token, shift the labels: y[:, :-1] = %s[:, 1:], y[:, -1] = K, with --ignore-index K",
            name, name);
    }
}

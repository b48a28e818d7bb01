/* SPDX-License-Identifier: Apache-2.0
 * Labels and the classes that the model's output has, as far as its declaration tells. */
#include "cli.h"

#include <string.h>

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

bool cli_bad_label(const cli_job *job, const npy_array *labels, int64_t classes, size_t *at, FILE *why)
{
    if (job->o->loss != INV_LOSS_CROSS_ENTROPY || labels->dtype == INV_F32 || labels->dtype == INV_F64 ||
        labels->dtype == INV_F16)
        return false;
    const size_t n = labels->nbytes / npy_itemsize(labels->dtype);
    for (size_t i = 0; i < n; i++) {
        const double v = npy_element(labels->data, labels->dtype, i);
        if (v == (double)job->o->ignore_index || (v >= 0 && (classes < 0 || v < (double)classes))) continue;
        *at = i;
        if (v < 0) fprintf(why, "labels count from 0, and --ignore-index %.0f leaves such rows out", v);
        else
            fprintf(why, "output '%s' has %lld classes (labels 0 to %lld)", cli_loss_port(job)->label,
                    (long long)classes, (long long)classes - 1);
        return true;
    }
    return false;
}

int cli_check_labels(const cli_job *job, const npy_array *labels, const char *path, const data_source *from)
{
    enum { PART = 1 << 20 };
    const int64_t classes = cli_classes(job, labels);
    const size_t size = npy_itemsize(labels->dtype), n = labels->nbytes / size;
    char why[512] = "";
    FILE *f = fmemopen(why, sizeof why, "w");
    if (!f) return cli_fail("out of memory");
    bool bad = false;
    size_t at = 0, first = 0;
    for (; first < n && !bad; first += PART) {
        cli_busy("checking the labels", (double)first / (double)n);
        npy_array part = *labels;
        part.data = (const char *)labels->data + first * size;
        part.nbytes = (n - first < PART ? n - first : PART) * size;
        bad = cli_bad_label(job, &part, classes, &at, f);
        if (!from) npy_give_back(labels);
        else if (from->calls->give_back) from->calls->give_back(from);
        if (bad) break;
    }
    fclose(f);
    if (!bad) return CLI_OK;
    at += first;
    const double v = npy_element(labels->data, labels->dtype, at);
    return cli_fail("%s: label %.0f at element %zu%s %s", path, v, at, v < 0 ? ";" : ", but", why);
}

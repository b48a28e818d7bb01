/* SPDX-License-Identifier: Apache-2.0
 * One node test of ONNX: a folder with model.onnx and test_data_set_K/{input,output}_J.pb. Run as a user would run it:
 * a session of purpose run, inputs that decide shapes as constants of the session, float64 where the model says so.
 * Results are compared in the type that the test states: numbers with rtol 1e-3 and atol 1e-5, NaN equal to NaN,
 * integers and bools exactly. */
#ifndef INV_CONFORM_NODE_CASE_H
#define INV_CONFORM_NODE_CASE_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/shape.h"
#include "invonnx/invonnx.h"
#include "onnx.pb-c.h"

enum { MAX_PORTS = 64, WHY = 1000, MAX_PATH = 1024 };
#define RTOL 1e-3
#define ATOL 1e-5

typedef struct tensor {
    char name[256];
    inv_dtype dtype;
    int rank;
    int64_t dims[INV_MAX_RANK];
    size_t n;
    void *data;
} tensor;

typedef struct node_case {
    const char *folder;
    Onnx__ModelProto *model;
    inv_context *ctx;
    inv_model *loaded;
    bool random; /* outputs are compared by the statistics of the mask */
    char why[WHY];
} node_case;

static bool no(node_case *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool no(node_case *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(c->why, sizeof c->why, fmt, ap);
    va_end(ap);
    return false;
}

/* --- files --- */

static uint8_t *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    uint8_t *p = NULL;
    *n = 0;
    if (!f) return NULL;
    if (fseek(f, 0, SEEK_END) == 0) {
        long size = ftell(f);
        rewind(f);
        p = size < 0 ? NULL : malloc((size_t)size + 1);
        if (p) *n = fread(p, 1, (size_t)size, f);
    }
    fclose(f);
    return p;
}

/* Elements in typed fields, narrowed to their own width. */
static bool read_fields(const Onnx__TensorProto *p, tensor *t, size_t width)
{
    unsigned char *to = t->data;
    for (size_t i = 0; i < t->n; i++, to += width) {
        if (p->n_float_data == t->n) memcpy(to, &p->float_data[i], width);
        else if (p->n_double_data == t->n) memcpy(to, &p->double_data[i], width);
        else if (p->n_int32_data == t->n) memcpy(to, &p->int32_data[i], width);
        else if (p->n_int64_data == t->n) memcpy(to, &p->int64_data[i], width);
        else if (p->n_uint64_data == t->n) memcpy(to, &p->uint64_data[i], width);
        else return false;
    }
    return true;
}

/* A small type (core/base/shape.h), in one that carries it. */
static bool read_small(node_case *c, const Onnx__TensorProto *p, tensor *t, const inv_shape *s)
{
    const inv_dtype small = t->dtype;
    t->n = (size_t)inv_shape_nelem(s);
    const size_t packed = (t->n * inv_dtype_bits(small) + 7) / 8;
    uint8_t *bytes = malloc(packed + 1);
    t->dtype = inv_dtype_carrier(small, INV_F32);
    t->data = malloc(t->n * sizeof(float) + 1);
    for (size_t i = 0; bytes && i < packed && i < p->n_int32_data; i++) bytes[i] = (uint8_t)p->int32_data[i];
    if (bytes && packed && p->raw_data.len == packed) memcpy(bytes, p->raw_data.data, packed);
    bool ok = bytes && t->data && (p->raw_data.len == packed || p->n_int32_data == packed) &&
              inv_convert(t->data, t->dtype, bytes, small, t->n);
    free(bytes);
    return ok ? true : no(c, "the test's data cannot be read");
}

static bool read_tensor(node_case *c, const char *path, tensor *t)
{
    size_t nbytes, have;
    uint8_t *bytes = read_file(path, &have);
    Onnx__TensorProto *p = bytes ? onnx__tensor_proto__unpack(NULL, have, bytes) : NULL;
    free(bytes);
    if (!p) return no(c, "the test's data cannot be read");
    t->dtype = (inv_dtype)p->data_type;
    t->rank = (int)p->n_dims;
    bool ok = p->n_dims <= INV_MAX_RANK;
    if (ok && t->rank) memcpy(t->dims, p->dims, p->n_dims * sizeof *p->dims);
    inv_shape s = ok ? inv_shape_of(t->rank, t->dims) : inv_shape_unknown();
    if (!ok) no(c, "more than %d dimensions", INV_MAX_RANK);
    else if (inv_dtype_bits(t->dtype)) ok = read_small(c, p, t, &s);
    else if (!inv_dtype_size(t->dtype)) ok = no(c, "tensors of %s", inv_dtype_name(t->dtype));
    if (ok && !t->data) {
        t->n = (size_t)inv_shape_nelem(&s);
        ok = inv_shape_nbytes(&s, t->dtype, &nbytes) && (t->data = malloc(nbytes + 1)) != NULL;
        if (ok && p->has_raw_data) {
            ok = p->raw_data.len == nbytes;
            if (ok && nbytes) memcpy(t->data, p->raw_data.data, nbytes);
        } else if (ok) {
            ok = read_fields(p, t, inv_dtype_size(t->dtype));
        }
        if (!ok) no(c, "the test's data cannot be read");
    }
    onnx__tensor_proto__free_unpacked(p, NULL);
    return ok;
}

static bool is_tensor(node_case *c, const Onnx__ValueInfoProto *v)
{
    switch (v->type ? v->type->value_case : ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE) {
    case ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE: return no(c, "a sequence goes in or comes out");
    case ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE: return no(c, "an optional value goes in or comes out");
    case ONNX__TYPE_PROTO__VALUE_MAP_TYPE: return no(c, "a map goes in or comes out");
    default: return true;
    }
}

/* All tensors of one side of a data set, named as in the model. */
static bool read_side(node_case *c, int set, const char *side, size_t n, Onnx__ValueInfoProto *const *port, tensor *t)
{
    if (n > MAX_PORTS) return no(c, "too many inputs for this test");
    for (size_t i = 0; i < n; i++) {
        char path[MAX_PATH];
        (void)snprintf(path, sizeof path, "%s/test_data_set_%d/%s_%zu.pb", c->folder, set, side, i);
        (void)snprintf(t[i].name, sizeof t[i].name, "%s", port[i]->name);
        if (!is_tensor(c, port[i]) || !read_tensor(c, path, &t[i])) return false;
        const Onnx__TypeProto *type = port[i]->type;
        if (type && type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE && t[i].dtype == INV_U16 &&
            type->tensor_type->elem_type == INV_BF16)
            t[i].dtype = INV_BF16; /* ONNX 1.12 had no other way to write them */
    }
    return true;
}

/* --- why a model is refused, without what differs from test to test --- */

static void put_reason(node_case *c, const char *text)
{
    char *to = c->why + strlen(c->why), *end = c->why + sizeof c->why - 1;
    bool quoted = false;
    for (; *text && *text != '\n' && to < end; text++) {
        if (*text == '\'') quoted = !quoted;
        if (quoted && *text != '\'') continue;
        *to++ = *text;
    }
    *to = 0;
}

static bool refused(node_case *c, inv_status s)
{
    const char *text = inv_context_message(c->ctx), *open, *close, *rest;
    if (s == INV_OK) return true;
    c->why[0] = 0;
    if ((rest = strstr(text, "operators that this version does not have: "))) {
        char op[128] = "";
        (void)sscanf(rest + strlen("operators that this version does not have: "), "%127s", op);
        return no(c, "no operator %s", op);
    }
    if (strncmp(text, "node '", 6) == 0 && (open = strstr(text, "' (")) && (close = strstr(open, ")")) &&
        (rest = strstr(close, ": "))) {
        (void)snprintf(c->why, sizeof c->why, "%.*s: ", (int)(close - open - 3), open + 3);
        text = rest + 2;
    }
    if (*text == '\'' && (rest = strstr(text, "': "))) text = rest + 3; /* the file */
    if ((rest = strstr(text, " defects:"))) text = rest + strlen(" defects:"), text += strspn(text, " \n");
    put_reason(c, *text ? text : inv_status_text(s));
    return false;
}

/* --- results --- */

static bool close_to(double got, double want)
{
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got)) return want == got;
    return fabs(got - want) <= ATOL + RTOL * fabs(want);
}

/* The result in the type that the test states. */
static bool fetch(node_case *c, inv_session *s, const tensor *want, tensor *got)
{
    const void *data;
    int64_t dims[INV_MAX_RANK];
    if (!refused(c, inv_session_get(s, INV_GET_OUTPUT, want->name, &data, &got->dtype, &got->rank, dims))) return false;
    if (got->rank != want->rank || memcmp(dims, want->dims, (size_t)got->rank * sizeof *dims) != 0)
        return no(c, "an output has another shape");
    if (inv_dtype_is_float(got->dtype) != inv_dtype_is_float(want->dtype) ||
        (!inv_dtype_is_float(want->dtype) && got->dtype != want->dtype))
        return no(c, "an output is %s, not %s", inv_dtype_name(got->dtype), inv_dtype_name(want->dtype));
    got->n = want->n;
    got->data = malloc(want->n * 16 + 1);
    if (!got->data || !inv_convert(got->data, want->dtype, data, got->dtype, want->n))
        return no(c, "an output of %s cannot be made of %s", inv_dtype_name(want->dtype), inv_dtype_name(got->dtype));
    got->dtype = want->dtype;
    return true;
}

static bool same_values(node_case *c, const tensor *got, const tensor *want)
{
    if (!inv_dtype_is_float(want->dtype))
        return memcmp(got->data, want->data, want->n * inv_dtype_size(want->dtype)) == 0 ? true
                                                                                         : no(c, "values differ");
    for (size_t i = 0; i < want->n; i++)
        if (!close_to(inv_elem_double(got->data, want->dtype, i), inv_elem_double(want->data, want->dtype, i)))
            return no(c, "values differ");
    return true;
}

/* Dropout in training: every element is 0 or scaled by 1 / (1 - ratio), the mask says which, and the share of zeros is
 * the ratio, within five standard deviations. */
static bool same_statistics(node_case *c, const tensor *in, size_t nin, const tensor *out, size_t nout)
{
    const double ratio = nin > 1 ? inv_elem_double(in[1].data, in[1].dtype, 0) : 0.5;
    double zeros = 0, n = (double)in[0].n;
    for (size_t i = 0; i < in[0].n; i++) {
        const double x = inv_elem_double(in[0].data, in[0].dtype, i), y = inv_elem_double(out[0].data, out[0].dtype, i);
        const bool kept = y != 0 || x == 0;
        if (kept && !close_to(y, x / (1 - ratio))) return no(c, "an element is neither dropped nor scaled");
        if (nout > 1 && x != 0 && (((const uint8_t *)out[1].data)[i] != 0) != kept) return no(c, "the mask is another");
        zeros += kept ? 0 : 1;
    }
    if (fabs(zeros - ratio * n) <= 5 * sqrt(n * ratio * (1 - ratio))) return true;
    return no(c, "too many or too few are dropped");
}

static bool compare(node_case *c, inv_session *s, const tensor *in, size_t nin, const tensor *want, size_t nout)
{
    tensor got[MAX_PORTS] = {0};
    bool same = true;
    for (size_t i = 0; i < nout && same; i++)
        same = fetch(c, s, &want[i], &got[i]) && (c->random || same_values(c, &got[i], &want[i]));
    if (same && c->random) same = same_statistics(c, in, nin, got, nout);
    for (size_t i = 0; i < nout; i++) free(got[i].data);
    return same;
}

/* --- the case --- */

static bool in_doubles(const tensor *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (t[i].dtype == INV_F64) return true;
    return false;
}

static bool run_set(node_case *c, const tensor *in, size_t nin, const tensor *out, size_t nout)
{
    inv_array array[MAX_PORTS] = {0};
    inv_session *s = NULL;
    inv_result result;
    for (size_t i = 0; i < nin; i++)
        array[i] = (inv_array){
            .name = in[i].name, .dtype = in[i].dtype, .rank = in[i].rank, .dims = in[i].dims, .data = in[i].data};
    const inv_session_options o = {.size = sizeof o,
                                   .inputs = array,
                                   .ninputs = nin,
                                   .threads = 1,
                                   .constants_as_needed = true,
                                   .float64 = in_doubles(in, nin) || in_doubles(out, nout)};
    bool ok = refused(c, inv_session_create(c->loaded, &o, &s)) &&
              refused(c, inv_session_eval(s, array, nin, NULL, &result)) && compare(c, s, in, nin, out, nout);
    inv_session_destroy(s);
    return ok;
}

static bool run_sets(node_case *c)
{
    const Onnx__GraphProto *g = c->model->graph;
    bool ok = true;
    for (int set = 0; ok; set++) {
        char path[MAX_PATH];
        (void)snprintf(path, sizeof path, "%s/test_data_set_%d/output_0.pb", c->folder, set);
        FILE *there = fopen(path, "rb");
        if (!there) return set > 0 ? true : no(c, "the test has no data");
        fclose(there);
        tensor in[MAX_PORTS] = {0}, out[MAX_PORTS] = {0};
        ok = read_side(c, set, "input", g->n_input, g->input, in) &&
             read_side(c, set, "output", g->n_output, g->output, out) && run_set(c, in, g->n_input, out, g->n_output);
        for (size_t i = 0; i < MAX_PORTS; i++) {
            free(in[i].data);
            free(out[i].data);
        }
    }
    return ok;
}

/* Whether it passes; else c->why says in words why not. */
static bool run_case(node_case *c)
{
    char path[MAX_PATH];
    size_t n;
    (void)snprintf(path, sizeof path, "%s/model.onnx", c->folder);
    uint8_t *bytes = read_file(path, &n);
    c->model = bytes ? onnx__model_proto__unpack(NULL, n, bytes) : NULL;
    free(bytes);
    if (!c->model || !c->model->graph) return no(c, "the test's model cannot be read");
    bool ok = inv_context_create(NULL, &c->ctx) == INV_OK && refused(c, inv_model_load(c->ctx, path, &c->loaded)) &&
              run_sets(c);
    inv_model_destroy(c->loaded);
    inv_context_destroy(c->ctx);
    onnx__model_proto__free_unpacked(c->model, NULL);
    return ok;
}

#endif

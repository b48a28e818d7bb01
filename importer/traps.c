/* SPDX-License-Identifier: Apache-2.0
 * What exporters do to a model that stands in the way of training it, each with the remedy (docs/exporting.md). Most is
 * read off the graph; what an exporter has taken out leaves marks only in names and metadata, which are read from the
 * file, because older schemas do not know the fields. */
#include <string.h>

#include "core/graph/op.h"
#include "core/weights/copies.h"
#include "core/weights/held.h"
#include "core/weights/shared_weights.h"
#include "core/weights/trained.h"
#include "importer/view.h"

enum { MAX_USES = 64 };

static const struct {
    const char *kind, *text;
    bool tensors; /* of initializers, not of nodes */
} texts[] = {
    {"batch_norm_eval",
     "in evaluation mode, as exported or as `train` writes them: training uses the stored statistics and does not "
     "change them. {train_bn} normalizes by the batch and updates them",
     false},
    {"batch_norm_folded",
     "batch normalization was folded into these nodes. Its scale, shift and statistics are gone, and training "
     "continues without it. To train it, export without folding",
     false},
    {"computed_initializer",
     "computed by the exporter, usually from parameters (tables of positions, exponents). They are trained as they "
     "are. Freeze those that must not change ({freeze})",
     true},
    {"named_alone",
     "parameters or buffers: PyTorch's older exporter, and files without metadata, do not say which. They are "
     "trained as parameters. Freeze the buffers ({freeze})",
     true},
    {"numbers_alone",
     "named single numbers in a file without metadata. Learned gates or temperatures may be among them, but none is "
     "trained. Name them with {train_only}, or train the file as exported",
     true},
    {"repeated_rows",
     "a bias, state or token that the exporter repeated for each row. The rows are trained separately and drift "
     "apart. Export with an open batch, or freeze it ({freeze})",
     true},
    {"sparse_weight", "many zeros, as from pruning or masks, and all are trained. {hold_zeros} keeps them zero", true},
    {"dropout_off",
     "these drop nothing in training: they are in evaluation mode, as exported or as `train` writes them. For "
     "dropout, export in training mode, or use {keep_training_mode}",
     false},
    {"training_info",
     "the file has its own training algorithm for these. It is not run and is written back unchanged. These are "
     "trained like others; freeze what must not change ({freeze})",
     true},
    {"quantized_weight",
     "integer weights and scales of quantization are constants. Train adapters (LoRA), or the model before "
     "quantization",
     false},
    {"straight_through",
     "these round, so nothing before them is trained. {through_quantization} passes gradients through as if they did "
     "not round, and 0 outside the range of the integers",
     false},
    {"held_elements",
     "zeros from a mask that the exporter multiplied into the weight, or the padding row of a table. They get no "
     "gradient; {no_hold} trains them",
     true},
    {"lost_detach",
     "x + (q - x), where the exporter lost the detach of q - x. Gradients through x cancel, so values meant to be "
     "trained through q are not. ONNX cannot express detach",
     false},
};

static void note(inv_model_view *w, const char *kind, const char *name)
{
    json_t *list = json_object_get(w->trap_nodes, kind);
    if (!list) inv_view_set(w, w->trap_nodes, kind, list = json_array());
    inv_view_append(w, list, inv_view_text(w, name));
}

/* --- signs in the graph --- */

static const inv_data *constant_of(const inv_graph *g, inv_id v)
{
    const inv_value *x = inv_val(g, v);
    if (x->data.bytes) return &x->data;
    const inv_attr *a = x->def == INV_NONE || !inv_node_is(inv_nod(g, x->def), "Constant")
                            ? NULL
                            : inv_attr_find(inv_nod(g, x->def), "value");
    return a && a->kind == INV_ATTR_TENSOR ? &a->tensor : NULL;
}

static bool never_drops(const inv_graph *g, const inv_node *n)
{
    if (!n->op || n->op->since < 12) return false; /* in those forms the caller's mode decides */
    if (n->nin < 3 || n->in[2] == INV_NONE) return true;
    const inv_data *on = constant_of(g, n->in[2]);
    return on && on->dtype == INV_BOOL && on->nbytes && !*(const uint8_t *)on->bytes;
}

static bool is_eval(const inv_node *n)
{
    if (n->op && n->op->since >= 14) return !inv_attr_int(n, "training_mode", 0);
    return n->nout < 2;
}

/* PyTorch's older exporter calls tensors that it has computed after the node that reads them: "onnx::Conv_123". */
static bool is_computed(const inv_graph *g, const inv_node *n, uint32_t slot)
{
    static const char prefix[] = "onnx::Conv_";
    if (slot >= n->nin || n->in[slot] == INV_NONE) return false;
    const char *name = inv_val(g, n->in[slot])->name, *digits = name + sizeof prefix - 1;
    return !strncmp(name, prefix, sizeof prefix - 1) && *digits && strspn(digits, "0123456789") == strlen(digits);
}

/* The file holds integers that the node makes floating point: of DequantizeLinear, or matrices of onnxruntime's own. */
static bool has_quantized_weight(const inv_graph *g, const inv_node *n)
{
    const bool own = !strcmp(n->domain, "com.microsoft"), plain = inv_node_is(n, "DequantizeLinear");
    for (uint32_t k = 0; k < n->nin && k < 4 && (own || plain); k++) {
        const inv_value *v = n->in[k] == INV_NONE ? NULL : inv_val(g, n->in[k]);
        if (!v || v->role != INV_ROLE_PARAM || (plain && k)) continue;
        if (plain || ((v->dtype == INV_U8 || v->dtype == INV_I8) && v->shape.rank >= 2)) return true;
    }
    return false;
}

/* TensorFlow calls a kernel that it has multiplied by a scale "merged_input". */
static bool is_folded(const inv_graph *g, const inv_node *n)
{
    if (is_computed(g, n, 1) && is_computed(g, n, 2)) return true;
    return n->nin > 1 && n->in[1] != INV_NONE && strstr(inv_val(g, n->in[1])->name, "/merged_input");
}

/* The value behind nodes that hand it on as it is. */
static inv_id behind(const inv_graph *g, inv_id v)
{
    for (;;) {
        const inv_id def = v == INV_NONE ? INV_NONE : inv_val(g, v)->def;
        const inv_node *n = def == INV_NONE ? NULL : inv_nod(g, def);
        if (!n || !inv_node_is(n, "Identity") || n->nin != 1) return v;
        v = n->in[0];
    }
}

/* Whether a value is of floating point, by what its type is handed on from: the first input, as a rule. Indices are
 * computed with in the same ways as data. */
static bool is_real(const inv_graph *g, inv_id v)
{
    static const char *const whole[] = {"Shape", "Size", "ArgMax", "ArgMin", "NonZero", NULL};
    for (size_t far = 0; v != INV_NONE && far <= g->value.n; far++) {
        const inv_value *x = inv_val(g, v);
        const inv_node *n = x->def == INV_NONE ? NULL : inv_nod(g, x->def);
        const inv_data *d = n ? constant_of(g, v) : NULL;
        if (x->dtype != INV_DT_NONE) return inv_dtype_is_float(x->dtype);
        if (d) return inv_dtype_is_float(d->dtype);
        if (!n || inv_node_is_any(n, whole)) return !n;
        if (inv_node_is(n, "Cast")) return inv_dtype_is_float((inv_dtype)inv_attr_int(n, "to", INV_DT_NONE));
        const uint32_t of = inv_node_is(n, "Where") ? 1 : 0;
        if (of >= n->nin) return true;
        v = n->in[of];
    }
    return true;
}

/* x + (q - x), which nobody writes but for another gradient: that of q as if it were x. */
static bool is_straight_through(const inv_graph *g, const inv_node *n)
{
    for (uint32_t k = 0; n->nin == 2 && k < 2; k++) {
        const inv_id v = behind(g, n->in[k]), x = behind(g, n->in[1 - k]);
        const inv_node *d = v == INV_NONE || inv_val(g, v)->def == INV_NONE ? NULL : inv_nod(g, inv_val(g, v)->def);
        if (!d || !inv_node_is(d, "Sub") || d->nin != 2 || x == INV_NONE || behind(g, d->in[1]) != x) continue;
        return is_real(g, x); /* integers are places */
    }
    return false;
}

void inv_traps_look(inv_model_view *w, const inv_graph *g, const inv_node *n, const char *name)
{
    if (inv_node_is(n, "BatchNormalization") && is_eval(n)) note(w, "batch_norm_eval", name);
    if (inv_node_is(n, "Dropout") && never_drops(g, n)) note(w, "dropout_off", name);
    if (inv_node_is(n, "Conv") && is_folded(g, n)) note(w, "batch_norm_folded", name);
    const bool rounds = !strcmp(n->domain, "com.microsoft") && n->op && n->op->flags & INV_OP_STRAIGHT;
    if (rounds || inv_node_is(n, "QuantizeLinear") || inv_node_is(n, "DynamicQuantizeLinear"))
        note(w, "straight_through", name);
    if (has_quantized_weight(g, n)) note(w, "quantized_weight", name);
    if (inv_node_is(n, "Add") && is_straight_through(g, n)) note(w, "lost_detach", name);
}

static bool same_row(const inv_data *d, size_t row, size_t width)
{
    const size_t nbytes = width * inv_dtype_size(d->dtype);
    return !memcmp(d->bytes, (const char *)d->bytes + row * nbytes, nbytes);
}

/* Added to a product with a weight, or computed of a parameter, in several rows that are all the same: what was one. */
static bool has_repeated_rows(const inv_value *x, uint32_t roles)
{
    const size_t rows = x->shape.rank >= 2 ? (size_t)x->shape.dim[0] : 0, n = inv_data_count(&x->data);
    if ((!(roles & 1u << INV_USE_ADDED) && !x->composed) || rows < 2 || n <= rows || !x->data.bytes) return false;
    for (size_t r = 1; r < rows; r++)
        if (!same_row(&x->data, r, n / rows)) return false;
    bool varies = false;
    for (size_t i = 1; i < n / rows && !varies; i++)
        varies = inv_elem_double(x->data.bytes, x->data.dtype, i) != inv_elem_double(x->data.bytes, x->data.dtype, 0);
    return varies;
}

/* A tenth of the elements is zero, and not in rows as of a weight that is to grow: of the identity more are. */
static bool is_sparse(const inv_value *x, uint32_t roles)
{
    enum { FEWEST = 32, SHARE = 10 };
    const size_t n = inv_data_count(&x->data);
    size_t zeros = 0;
    if (!(roles & 1u << INV_USE_WEIGHT) || x->shape.rank < 2 || n < FEWEST || !x->data.bytes) return false;
    for (size_t i = 0; i < n; i++) zeros += inv_elem_double(x->data.bytes, x->data.dtype, i) == 0;
    return zeros < n && zeros > n / SHARE;
}

/* Whether modules of PyTorch call parameters so, and no buffers: "fc.weight", "lstm.bias_ih_l0", "attn.in_proj_bias".
 */
static bool is_usual(const char *name)
{
    static const char *const first[] = {"weight_", "bias_", "original"}, *const whole[] = {"weight", "bias"};
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name, *proj = strstr(last, "proj_");
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (!strcmp(last, whole[i]) || (proj && !strcmp(proj + strlen("proj_"), whole[i]))) return true;
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if (!strncmp(last, first[i], strlen(first[i]))) return true;
    return false;
}

/* Of PyTorch's files that do not say which are parameters: a name that neither an exporter nor a simplifier has made,
 * and that is none of a layer's parameters. */
static bool is_untold(const inv_model_view *w, const inv_value *x)
{
    const bool made = inv_name_is_made(x->name) || !strncmp(x->name, "val_", 4) ||
                      inv_name_meaning(w->g, x->name) == INV_NAME_CONSTANT;
    return w->g->exported->torch && !w->g->says && !made && !is_usual(x->name);
}

/* What decided: nothing but a name or shape, or an operand that buffers are as well. */
static bool is_guessed(const char *evidence)
{
    static const char *const rows[] = {"named", "shape", "weight", "bias"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(evidence, rows[i])) return true;
    return false;
}

static inv_status note_tensors(inv_model_view *w)
{
    const inv_held **held;
    INV_TRY(inv_held_find(w->g, NULL, w->untrained, &w->scratch, &held));
    for (size_t i = 0; i < w->g->inits.n; i++) {
        const inv_id v = w->g->inits.at[i];
        const inv_value *x = inv_val(w->g, v);
        const char *evidence = inv_evidence_key(w->evidence[v]);
        const bool number = !strcmp(evidence, "scalar") && w->g->exported->stripped;
        if (number && is_untold(w, x)) note(w, "numbers_alone", x->name);
        if (w->untrained[v] != INV_TRAINED) continue;
        if (is_guessed(evidence) && is_untold(w, x)) note(w, "named_alone", x->name);
        if (has_repeated_rows(x, w->roles[v])) note(w, "repeated_rows", x->name);
        if (held[v]) note(w, "held_elements", x->name);
        else if (is_sparse(x, w->roles[v])) note(w, "sparse_weight", x->name);
    }
    return INV_OK;
}

static inv_status report_merges(inv_model_view *w)
{
    const inv_merge_options o = {.train_bn = true};
    inv_merges merges = {0};
    INV_TRY(inv_merges_find(w->g, &o, &w->scratch, &merges));
    for (size_t i = 0; i < merges.n; i++) {
        const inv_merge *m = &merges.at[i];
        const inv_untrained why = (inv_untrained)w->untrained[m->param];
        const bool hides = why == INV_UNTRAINED_CONSTANT && inv_merge_hides(m);
        if (why != INV_TRAINED && why != INV_UNTRAINED_STATISTIC && !hides) continue; /* nothing would tie it */
        json_t *trap = json_object(), *uses = json_array();
        uint32_t group = 0;
        for (uint32_t k = 0; k < m->nuse && group < MAX_USES; k++) {
            if (m->use[k].group != group) continue;
            group++;
            const char *use = inv_arena_printf(&w->scratch, "%s of '%s' (%s)", inv_use_role_name(m->use[k].role),
                                               m->use[k].label, m->use[k].op_type);
            if (!use) return INV_E_NOMEM;
            inv_view_append(w, uses, inv_view_text(w, use));
        }
        inv_view_set(w, trap, "kind", json_string("merged_initializer"));
        inv_view_set(w, trap, "initializer", inv_view_text(w, inv_val(w->g, m->param)->name));
        inv_view_set(w, trap, "count", json_integer(m->ngroup));
        inv_view_set(w, trap, "uses", uses);
        inv_view_set(w, trap, "text",
                     inv_view_words(w, "equal tensors that the exporter merged. Training would tie them and is "
                                       "refused: {untie} separates their uses, {tied} keeps them together"));
        inv_view_append(w, w->traps, trap);
    }
    if (merges.cut) {
        json_t *trap = json_object();
        inv_view_set(w, trap, "kind", json_string("merges_unknown"));
        inv_view_set(w, trap, "text",
                     json_string("too many or too deep function calls to find all merged initializers in them. "
                                 "Inline the model's functions first (onnx.inliner)"));
        inv_view_append(w, w->traps, trap);
    }
    return INV_OK;
}

static void report_ties(inv_model_view *w)
{
    for (size_t i = 0; i < w->ties.n; i++) {
        json_t *trap = json_object();
        inv_view_set(w, trap, "kind", json_string("transposed_copy"));
        inv_view_set(w, trap, "initializer", inv_view_text(w, inv_val(w->g, w->ties.at[i].copy)->name));
        inv_view_set(w, trap, "of", inv_view_text(w, inv_val(w->g, w->ties.at[i].master)->name));
        inv_view_set(w, trap, "text",
                     inv_view_words(w, "one weight that the exporter stored twice. It is trained as one and both "
                                       "are written back; {untie} trains them separately"));
        inv_view_append(w, w->traps, trap);
    }
}

/* Trained apart, though they may be one weight that the file holds twice. */
static inv_status report_copies(inv_model_view *w)
{
    inv_copies all = {0};
    INV_TRY(inv_copies_find(w->g, &w->scratch, &all));
    for (size_t i = 0; i < all.n; i++) {
        const inv_id v = all.at[i].param, of = all.at[all.at[i].of].param;
        const inv_value *x = inv_val(w->g, v), *first = inv_val(w->g, of);
        if (v == of || all.at[i].plain || inv_copies_are_told(w->g, first, x)) continue;
        if (w->untrained[v] != INV_TRAINED || w->untrained[of] != INV_TRAINED) continue;
        json_t *trap = json_object();
        inv_view_set(w, trap, "kind", json_string("equal_copy"));
        inv_view_set(w, trap, "initializer", inv_view_text(w, x->name));
        inv_view_set(w, trap, "of", inv_view_text(w, first->name));
        inv_view_set(w, trap, "text",
                     inv_view_words(w, "equal to another, bit for bit, but trained separately. If the file holds "
                                       "one weight twice, {tied} with OF=INITIALIZER trains it as one"));
        inv_view_append(w, w->traps, trap);
    }
    return INV_OK;
}

/* --- signs in the file --- */

/* Nodes of the main graph, in the file's order, which is that of their `source`. */
static inv_status read_nodes(inv_model_view *w, const inv_field *graph, const char **label)
{
    const inv_impl *impl = w->m->impl;
    inv_field f;
    uint32_t source = 0;
    for (size_t pos = graph->body; pos < graph->end && !inv_wire_field(impl->file.base, pos, graph->end, &f);
         pos = f.end) {
        if (f.id != INV_PB_GRAPH_NODE) continue;
        inv_byte_span rules = inv_entry(impl, &f, INV_PB_NODE_METADATA, "pkg.onnxscript.rewriter.rule_name");
        w->optimized = w->optimized || rules.n;
        if (source < w->g->node.n && inv_span_find(rules, "FuseBatchNorm") && label[source])
            note(w, "batch_norm_folded", label[source]);
        source++;
    }
    return INV_OK;
}

/* Trained though no module has it as it is: what the exporter has computed from parameters, or from constants. */
static void note_computed(inv_model_view *w)
{
    const inv_impl *impl = w->m->impl;
    const inv_ids *list = &impl->computed;
    for (size_t i = 0; i < list->n; i++)
        if (w->untrained[list->at[i]] == INV_TRAINED) note(w, "computed_initializer", inv_val(w->g, list->at[i])->name);
    for (size_t i = 0; i < w->g->inits.n && !w->g->says; i++) {
        inv_id v = w->g->inits.at[i];
        const inv_value *x = inv_val(w->g, v);
        bool computed = !strncmp(x->name, "onnx::", 6) || strstr(x->name, "const_fold_opt__");
        if (computed && w->untrained[v] == INV_TRAINED && (w->roles[v] & INV_USE_ROLES) == 1u << INV_USE_OPERAND)
            note(w, "computed_initializer", x->name);
    }
}

/* Whether the exporter's optimizer ran: it names the rules it applied, and numbers what it computed. */
static bool is_optimized(const inv_model_view *w)
{
    bool any = w->optimized;
    for (size_t i = 0; i < w->g->inits.n && !any; i++) {
        const inv_value *v = inv_val(w->g, w->g->inits.at[i]);
        any = v->said == INV_SAID_OF_PARAMETERS || v->said == INV_SAID_OF_CONSTANTS || inv_name_is_generated(v->name);
    }
    return any;
}

/* Initializers that nothing is said of and that are taken for parameters which the file does not have by name. */
static json_t *standing_in(inv_model_view *w)
{
    json_t *list = json_array();
    for (size_t i = 0; i < w->g->inits.n; i++) {
        const inv_id v = w->g->inits.at[i];
        const bool stands = w->untrained[v] == INV_TRAINED && !strcmp(inv_evidence_key(w->evidence[v]), "stands_in");
        if (stands) inv_view_append(w, list, inv_view_text(w, inv_val(w->g, v)->name));
    }
    return list;
}

static const char *text_of_gone(const inv_model_view *w, bool stands)
{
    return is_optimized(w) ? "parameters of the PyTorch model that the file lacks under these names: transposed, "
                             "merged, folded, tied, unused, or zero biases left out ({untie} restores them). Export "
                             "with optimize=False to keep them"
           : stands
               ? "parameters of the PyTorch model that the file lacks under these names: tied, unused or unnamed. "
                 "The listed weights and biases, which have no metadata, stand for them and are trained"
               : "parameters of the PyTorch model that the file lacks under these names: tied to others, or unused "
                 "by the export. No trainable value is lost";
}

/* Parameters that the signature of the exported program lists and that the file does not have by that name. */
static void report_signature(inv_model_view *w)
{
    const inv_exported *e = w->g->exported;
    json_t *gone = json_array();
    for (uint32_t i = 0; i < e->nparam; i++)
        if (e->kept[i] != INV_KEPT_NAMED) inv_view_append(w, gone, inv_view_text(w, e->param[i]));
    if (json_array_size(gone)) {
        json_t *trap = json_object();
        inv_view_set(w, trap, "kind", json_string("parameters_changed"));
        inv_view_set(w, trap, "of", json_integer((json_int_t)e->nparam));
        inv_view_set(w, trap, "parameters", json_incref(gone));
        json_t *instead = standing_in(w);
        const bool stands = json_array_size(instead) > 0;
        if (stands) inv_view_set(w, trap, "initializers", json_incref(instead));
        json_decref(instead);
        inv_view_set(w, trap, "text", inv_view_words(w, text_of_gone(w, stands)));
        inv_view_append(w, w->traps, trap);
    }
    json_decref(gone);
}

/* Initializers that a training algorithm in the file gives new values: here another one does. */
static inv_status read_training(inv_model_view *w, const inv_field *info, json_t *bound)
{
    const inv_impl *impl = w->m->impl;
    const uint8_t *base = impl->file.base;
    inv_field f, e;
    for (size_t pos = info->body; pos < info->end && !inv_wire_field(base, pos, info->end, &f); pos = f.end) {
        if (f.id != INV_PB_TRAINING_UPDATE_BINDING || f.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        for (size_t at = f.body; at < f.end && !inv_wire_field(base, at, f.end, &e); at = e.end) {
            if (e.id != INV_PB_ENTRY_KEY || e.wire != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
            const char *name = inv_arena_strndup(&w->scratch, (const char *)base + e.body, e.end - e.body);
            if (!name) return INV_E_NOMEM;
            inv_id v = inv_graph_find(w->g, name);
            if (v != INV_NONE && inv_val(w->g, v)->role == INV_ROLE_PARAM)
                inv_view_append(w, bound, inv_view_text(w, name));
        }
    }
    return INV_OK;
}

static inv_status read_file(inv_model_view *w)
{
    const inv_impl *impl = w->m->impl;
    size_t n = w->g->node.n;
    const char **label = INV_ARENA_NEW(&w->scratch, const char *, n + 1);
    json_t *list = NULL; /* initializers that training_info binds */
    inv_field f;
    if (!label) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const inv_node *x = inv_nod(w->g, (inv_id)i);
        if (x->source < n) label[x->source] = inv_node_called(w->g, x);
    }
    for (size_t pos = 0; pos < impl->file.nbytes && !inv_wire_field(impl->file.base, pos, impl->file.nbytes, &f);
         pos = f.end) {
        if (f.id == INV_PB_MODEL_TRAINING_INFO && !list)
            inv_view_set(w, w->trap_nodes, "training_info", list = json_array());
        if (f.id == INV_PB_MODEL_TRAINING_INFO) INV_TRY(read_training(w, &f, list));
        if (f.id != INV_PB_MODEL_GRAPH) continue;
        INV_TRY(read_nodes(w, &f, label));
    }
    return INV_OK;
}

/* --- all of them --- */

inv_status inv_traps_report(inv_model_view *w)
{
    INV_TRY(report_merges(w));
    report_ties(w);
    INV_TRY(report_copies(w));
    note_computed(w);
    INV_TRY(note_tensors(w));
    INV_TRY(read_file(w));
    report_signature(w);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *nodes = json_object_get(w->trap_nodes, texts[i].kind);
        if (!nodes) continue;
        json_t *o = json_object();
        inv_view_set(w, o, "kind", json_string(texts[i].kind));
        bool tensors = texts[i].tensors;
        inv_view_set(w, o, tensors ? "initializers" : "nodes", json_incref(nodes));
        inv_view_set(w, o, "text", inv_view_words(w, texts[i].text));
        inv_view_append(w, w->traps, o);
    }
    return INV_OK;
}

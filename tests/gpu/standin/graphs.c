/* SPDX-License-Identifier: Apache-2.0
 * The stand-in's captures, and the graphs that come of them. */
#include "queues.h"

void standin_add_end(ends *e, int i)
{
    for (size_t k = 0; k < e->n; k++)
        if (e->at[k] == i) return;
    e->at = standin_grown(e->at, (e->n + 1) * sizeof *e->at);
    e->at[e->n++] = i;
}

cudaError_t standin_add_node(cudaStream_t s, work w, cudaEvent_t event)
{
    struct CUgraph_st *g = s->capture->graph;
    g->at = standin_grown(g->at, (g->n + 1) * sizeof *g->at);
    g->at[g->n] = (node){w, event, s->ends.n, s->ends.at};
    s->ends = (ends){NULL, 0};
    standin_add_end(&s->ends, (int)g->n++);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    ENTER;
    standin_check_stream(s);
    if (s->capture || standin_capture || mode != cudaStreamCaptureModeThreadLocal)
        return standin_noted(cudaErrorIllegalState);
    standin_capture = standin_grown(NULL, sizeof *standin_capture);
    *standin_capture = (capture){standin_grown(NULL, sizeof *standin_capture->graph), s, pthread_self(), false};
    *standin_capture->graph = (struct CUgraph_st){.users = 1};
    s->capture = standin_capture;
    standin_captures++;
    standin_leaks += 2;
    return cudaSuccess;
}

static void drop_graph(struct CUgraph_st *g)
{
    if (--g->users > 0) return;
    for (size_t i = 0; i < g->n; i++) free(g->at[i].work.arg), free(g->at[i].dep);
    free(g->at);
    free(g);
    standin_leaks--;
}

/* Whether all of a capture comes before the ends of the stream where it began. */
static bool joined(const capture *c)
{
    const struct CUgraph_st *g = c->graph;
    bool *seen = memset(standin_grown(NULL, g->n), 0, g->n), all = true;
    for (size_t k = 0; k < c->origin->ends.n; k++) seen[c->origin->ends.at[k]] = true;
    for (size_t i = g->n; i-- > 0;) {
        all = all && seen[i];
        for (size_t d = 0; d < g->at[i].ndep && seen[i]; d++) seen[g->at[i].dep[d]] = true;
    }
    free(seen);
    return all;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    const bool fails = standin_enter(__func__);
    capture *c = s->capture;
    *out = NULL;
    standin_check_stream(s);
    if (!c) return standin_noted(fails ? standin_sticky : cudaErrorIllegalState);
    cudaError_t e = c->origin != s ? cudaErrorStreamCaptureUnmatched
                    : c->broken    ? cudaErrorStreamCaptureInvalidated
                    : !joined(c)   ? cudaErrorStreamCaptureUnjoined
                                   : cudaSuccess;
    if (fails && !e) e = standin_sticky ? standin_sticky : cudaErrorUnknown;
    for (int i = 0; i < MOST_STREAMS; i++) {
        if (!standin_streams[i] || standin_streams[i]->capture != c) continue;
        standin_streams[i]->capture = NULL;
        free(standin_streams[i]->ends.at);
        standin_streams[i]->ends = (ends){NULL, 0};
    }
    if (e) drop_graph(c->graph);
    else *out = c->graph;
    free(c);
    standin_capture = NULL;
    standin_leaks--;
    return standin_noted(e);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n)
{
    ENTER;
    if (nodes) standin_undefined("nodes of a graph are asked for, which there are none of here");
    *n = g->n;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
    ENTER;
    if (flags) return standin_noted(cudaErrorInvalidValue);
    *out = standin_grown(NULL, sizeof **out);
    **out = (struct CUgraphExec_st){g, 0};
    g->users++;
    standin_leaks++;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    (void)standin_enter(__func__);
    drop_graph(g);
    return standin_sticky;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e)
{
    (void)standin_enter(__func__);
    if (e->queued && !standin_sticky) standin_undefined("a graph is destroyed that has not run yet");
    drop_graph(e->graph);
    free(e);
    standin_leaks--;
    return standin_sticky;
}

/* --- running them --- */

/* Whether an event that a graph records counts as recorded from when the graph is launched, which is how NVIDIA's
 * manual reads, or from when its node is come by: that depends on the seed, so that nobody relies on it. */
static bool counts_late(void) { return standin_hash("late", 4) % 2; }

static void record_in_graph(cudaEvent_t e)
{
    if (!counts_late()) e->done++; /* else nobody was told to wait for it */
}

bool standin_do_node(cudaStream_t s, const struct CUgraph_st *g)
{
    const size_t before = s->ndone;
    if (!s->done) s->done = memset(standin_grown(NULL, g->n * sizeof *s->done), 0, g->n * sizeof *s->done);
    const size_t first = g->n ? standin_random(g->n) : 0;
    for (size_t k = 0; k < g->n; k++) {
        const size_t i = (first + k) % g->n;
        bool ready = !s->done[i];
        for (size_t d = 0; d < g->at[i].ndep && ready; d++) ready = s->done[g->at[i].dep[d]];
        if (!ready || !standin_may_begin(&g->at[i].work)) continue;
        if (g->at[i].event) record_in_graph(g->at[i].event);
        else standin_do(&g->at[i].work, true);
        s->done[i] = true;
        s->ndone++;
        break;
    }
    if (s->ndone < g->n) return s->ndone > before;
    free(s->done);
    s->done = NULL;
    s->ndone = 0;
    return true;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s)
{
    ENTER;
    standin_check_stream(s);
    if (s->capture || s->device != standin_device()) return standin_noted(cudaErrorInvalidResourceHandle);
    e->queued++;
    for (size_t i = 0; i < e->graph->n; i++)
        if (e->graph->at[i].event && !counts_late()) e->graph->at[i].event->queued++;
    standin_push(s, (task){.kind = GRAPH, .exec = e});
    return cudaSuccess;
}

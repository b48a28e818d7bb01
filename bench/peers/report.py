# SPDX-License-Identifier: Apache-2.0
"""The tables of bench/compare.py, as Markdown."""
import statistics

from peers.contestant import OWN

MIB = 1 << 20
median = statistics.median
INVERTING = ("memcnn", "invtorch", "revtorch")
MAIN = OWN + "auto"  # the mode that is held against the peers
# What is aimed at: MiB, the floor of a trainer that inverts half a block at a time, and CPU time over plain.
GOAL = {("W1", 64): (58, 1.0), ("W2", 128): (8.6, 0.9), ("W3", 16): (40, 0.9), ("W4", 32): (2.4, 0.9)}


def memory(row, what="bytes"):
    """The larger of before and after the timed rounds: a plan only grows when a guard refuses."""
    before = median(m[what] for m in row["mem"])
    return max(before, row["mem_after"][what]) if "mem_after" in row else before


def in_all(row):
    return memory(row, "in_all")


def memory_text(row):
    seen = [m["bytes"] / MIB for m in row["mem"] + ([row["mem_after"]] if "mem_after" in row else [])]
    return f"{memory(row) / MIB:.1f} ({min(seen):.1f}-{max(seen):.1f})"


def over(row, plain, key):
    """Median over rounds of the ratio to plain in the same round."""
    ratios = [a[key] / b[key] for a, b in zip(row["time"], plain["time"])]
    return median(ratios), min(ratios), max(ratios)


def whole(row):
    return "failed" not in row and row.get("mem") and row.get("time")


def spread(values, form):
    return f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def case_table(case):
    lines = [f"### {case['workload']}, N = {case['depth']}", "",
             "| contestant | memory MiB | in all MiB | CPU ms a step | CPU / plain | wall / plain | gradient error, all "
             "| first layer | predicted ms (over wall) |", "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    plain = case["rows"].get("plain", {})
    for name, row in case["rows"].items():
        if not whole(row):
            lines.append(f"| {name} | failed: {row.get('failed', 'not finished').replace('|', ' ')} | | | | | | | |")
            continue
        ratios = ["-", "-"]
        if whole(plain):
            ratios = [f"{m:.2f} ({a:.2f}-{b:.2f})" for m, a, b in (over(row, plain, k) for k in ("cpu", "s"))]
        error, predicted = row["info"]["error"], row["info"].get("predicted")
        wall = median(t["s"] for t in row["time"])
        lines.append(f"| {name} | {memory_text(row)} | {in_all(row) / MIB:.1f} "
                     f"| {spread([1e3 * t['cpu'] for t in row['time']], '.0f')} | {ratios[0]} | {ratios[1]} "
                     f"| {error['all']:.1e} | {error['first']:.1e} "
                     f"| {f'{1e3 * predicted:.0f} ({predicted / wall:.2f})' if predicted else '-'} |")
    disturbed = [n for n, r in case["rows"].items() if whole(r) and median(t["others"] for t in r["time"]) >= 0.1]
    if disturbed:
        lines += ["", "More than a tenth of a core went to other programs, in the median: " + ", ".join(disturbed)]
    refused = {n: [t.get("refused", 0) for t in r["time"]] for n, r in case["rows"].items() if whole(r)}
    again = [f"{n} ({r[-1] - r[0]})" for n, r in refused.items() if r[-1] > r[0]]
    if again:
        lines += ["", "Reconstructions were refused between timed steps, so that time of planning again is in them: "
                  + ", ".join(again)]
    return lines + [""]


def best(case, names, key):
    rows = {n: r for n, r in case["rows"].items() if n in names and whole(r)}
    name = min(rows, key=lambda n: key(rows[n]), default=None)
    return name, key(rows[name]) if name else None


def summary(cases):
    """Lines, and the workloads where a peer that inverts takes less in all, or less time."""
    lines = ["| workload | best peer, MiB | invonnx auto, MiB | goal | best inverting peer, MiB in all | invonnx auto "
             "| fastest inverting peer, CPU / plain | invonnx auto | invonnx store | goal |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    behind = []
    for case in cases:
        rows, where = case["rows"], f"{case['workload']}, N = {case['depth']}"
        plain, own = rows.get("plain", {}), rows.get(MAIN, {})
        if not whole(plain) or not whole(own):
            lines.append(f"| {where} | not finished | | | | | | | | |")
            behind.append(where)
            continue
        cpu = lambda row: over(row, plain, "cpu")[0]
        name, least = best(case, [n for n in rows if not n.startswith(OWN)], memory)
        small, total = best(case, INVERTING, in_all)
        fast, ratio = best(case, INVERTING, cpu)
        store = rows.get(OWN + "store", {})
        goal = GOAL.get((case["workload"], case["depth"]), ("-", "-"))
        lines.append(f"| {where} | {least / MIB:.1f} ({name}) | {memory(own) / MIB:.1f} | {goal[0]} "
                     f"| {f'{total / MIB:.1f} ({small})' if small else '-'} | {in_all(own) / MIB:.1f} "
                     f"| {f'{ratio:.2f} ({fast})' if fast else '-'} | {cpu(own):.2f} "
                     f"| {f'{cpu(store):.2f}' if whole(store) else '-'} | {goal[1]} |")
        if small and (in_all(own) > total or cpu(own) > ratio):
            behind.append(where)
    return lines + [""], behind


def grouped(alive):
    """'4 x 8.0 MiB', largest first, of the values that make up nine tenths."""
    sizes = sorted(alive, reverse=True)
    counts, rest = {}, 0.1 * sum(sizes)
    while sizes and sum(sizes) > rest:
        size = sizes.pop(0)
        counts[size] = counts.get(size, 0) + 1
    return ", ".join(f"{n} x {size / MIB:.2g}" for size, n in counts.items()) + " MiB"


def limits(cases):
    """What the plans say of their own peaks."""
    lines = ["| workload | mode | planned MiB, gradients apart | seen beyond the plan | constants made | peak at "
             "| alive then, nine tenths | stored, recomputed, inverted | refused by guards | arithmetic / store |",
             "|---|---|---:|---:|---:|---|---|---|---:|---:|"]
    for case in cases:
        for name, row in case["rows"].items():
            plan = row.get("info", {}).get("plan")
            if not plan or not whole(row):
                continue
            at, n, mem = plan["peak"], plan["values"], row["mem"][0]
            seen = median(m["growth"] - m["load_bytes"] for m in row["mem"])
            lines.append(f"| {case['workload']}, N = {case['depth']} | {name.removeprefix(OWN)} "
                         f"| {mem['planned_bytes'] / MIB:.1f} | {seen / MIB:+.2f} | {mem['made_bytes'] / MIB:.2f} "
                         f"| {at['op']} of `{at['node']}`, {at['phase']} | {grouped(plan['alive'])} "
                         f"| {n['stored']}, {n['recomputed']}, {n['inverted']} | {plan['refused']} "
                         f"| {plan['arithmetic']:.2f} |")
    return lines + [""]

# SPDX-License-Identifier: Apache-2.0
"""The picture of bench/curve.py: for each model time of a step over memory, both as shares of eager PyTorch's."""
import html
import math

NAMES = {"plain": "PyTorch eager", "invonnx": "invonnx, budgets", "ckpt": "checkpoint",
         "compile": "compile, activation_memory_budget", "revtorch": "RevTorch", "invtorch": "InvTorch",
         "memcnn": "MemCNN"}
STYLE = """
.c{color:#1d2126;background:#fff;font:12px system-ui,sans-serif}
.c text{fill:currentColor}.c .h{font-weight:600}.c .s{opacity:.72}.c .g{stroke:currentColor;opacity:.15}
.c polyline{fill:none;stroke-width:1.6}.c .invonnx{color:#d9741a}.c .ckpt{color:#3f83b5}.c .compile{color:#5f9440}
.c .revtorch{color:#8e5ba6}.c .invtorch{color:#b5475f}.c .memcnn{color:#7d828c}.c .m{fill:currentColor;stroke:none}
.c polyline.invonnx{stroke-width:2.6}.c polyline{stroke:currentColor}
@media (prefers-color-scheme:dark){.c{color:#e3e6ea;background:#14171b}.c .invonnx{color:#e88a36}.c .ckpt{color:#5ba0d0}
.c .compile{color:#7db45c}.c .revtorch{color:#b285c8}.c .invtorch{color:#d4667e}.c .memcnn{color:#9da2ab}}
"""
# Of a mark, by its centre; each kind has a shape of its own, for eyes to which colours are alike.
SHAPES = {"plain": "M-5 0H5M0-5V5", "invonnx": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0", "ckpt": "M-4-4H4V4H-4z",
          "compile": "M0-5.5L5.5 4H-5.5z", "revtorch": "M0-6L6 0L0 6L-6 0z",
          "invtorch": "M-4.5-4.5L4.5 4.5M-4.5 4.5L4.5-4.5", "memcnn": "M0 5.5L5.5-4H-5.5z"}
STROKED = ("plain", "invtorch")
LINED = ("invonnx", "compile")  # these have a budget to turn
WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 300, 60, 76, 24
TICKS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1)


def mark(kind, x, y, said):
    how = 'fill="none" stroke="currentColor" stroke-width="2"' if kind in STROKED else 'fill="currentColor"'
    return (f'<path class="{kind}" d="{SHAPES[kind]}" transform="translate({x:.1f} {y:.1f})" {how}>'
            f"<title>{html.escape(said)}</title></path>")


def text(style, x, y, words, anchor="start", more=""):
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{html.escape(words)}</text>'


class Panel:
    def __init__(self, left, title, series, limits):
        self.left, self.title, self.series = left, title, series
        (self.x0, self.x1), (self.y0, self.y1) = limits

    def x(self, share):
        return self.left + WIDTH * math.log(share / self.x0) / math.log(self.x1 / self.x0)

    def y(self, over):
        return TOP + HEIGHT * (self.y1 - over) / (self.y1 - self.y0)

    def frame(self, first):
        lines = [text("h", self.left, TOP - 12, self.title)]
        for t in (t for t in TICKS if self.x0 <= t <= self.x1):
            lines += [f'<path class="g" d="M{self.x(t):.1f} {TOP}V{TOP + HEIGHT}"/>',
                      text("s", self.x(t), TOP + HEIGHT + 18, f"{100 * t:g} %", "middle")]
        for i in range(math.ceil(4 * self.y0), math.floor(4 * self.y1) + 1):
            lines.append(f'<path class="g" d="M{self.left} {self.y(i / 4):.1f}H{self.left + WIDTH}"/>')
            if first:
                lines.append(text("s", self.left - 8, self.y(i / 4) + 4, f"{i / 4:g}", "end"))
        return lines

    def draw(self, first):
        lines = self.frame(first)
        for kind, points in self.series.items():
            points = sorted(points)
            if kind in LINED and len(points) > 1:
                joined = " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in points)
                lines.append(f'<polyline class="{kind}" points="{joined}"/>')
            lines += [mark(kind, self.x(a), self.y(b), f"{NAMES[kind]}: {100 * a:.1f} % of the memory, {b:.2f} of the "
                           "time") for a, b in points]
        return lines


def legend(kinds):
    lines, x = [], LEFT + 4
    for kind in (k for k in NAMES if k in kinds):
        lines += [mark(kind, x, 30, NAMES[kind]), text("n", x + 12, 34, NAMES[kind])]
        x += 34 + round(6.6 * len(NAMES[kind]))
    return lines


def draw(panels):
    """Of [(title, {kind: [(memory, time)]})], all on the same scales."""
    every = [p for _, series in panels for points in series.values() for p in points]
    limits = ((0.85 * min(m for m, _ in every), 1.12 * max(m for m, _ in every)),
              (math.floor(4 * min(t for _, t in every) - 0.2) / 4, math.ceil(4 * max(t for _, t in every) + 0.2) / 4))
    width, height = LEFT + len(panels) * (WIDTH + GAP), TOP + HEIGHT + 48
    title = "Time of a training step against its memory, both as shares of PyTorch eager's"
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" class="c" viewBox="0 0 {width} {height}" width="{width}" '
             f'height="{height}" role="img">', f"<style>{STYLE}</style>", f"<title>{title}</title>",
             f'<rect width="{width}" height="{height}" fill="none"/>']
    lines += legend({k for _, series in panels for k in series})
    for i, (name, series) in enumerate(panels):
        lines += Panel(LEFT + i * (WIDTH + GAP), name, series, limits).draw(not i)
    turned = f' transform="rotate(-90 14 {TOP + HEIGHT / 2:.1f})"'
    lines += [text("s", LEFT, height - 8, "memory of a step, of PyTorch eager's (logarithmic)"),
              text("s", 14, TOP + HEIGHT / 2, "CPU time of a step, of PyTorch eager's", "middle", turned), "</svg>"]
    return "\n".join(lines)

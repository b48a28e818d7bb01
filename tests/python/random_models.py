# SPDX-License-Identifier: Apache-2.0
"""Random models of invertible blocks, by seed: couplings whose parts are cut and joined in several ways, masks, momentum,
leapfrog, linear maps, slopes, rearrangements; nested in parts and in branches, in functions, If, Loop and Scan of the file.

Model(seed) has the ONNX model as `model`, and `feeds(rows, rng)` makes inputs for it."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

LONG = 2**63 - 1  # the end of a slice
SQUASH = ("Tanh", "Sigmoid", "Atan", "Softsign", "Asinh", "Sinh", "Softplus", "logit", "log of exp")
KINKS = ("LeakyRelu", "Elu", "Selu", "Celu", "PRelu", "Neg")
FLATTENS = ("Elu", "Selu", "Celu")  # of these, what is hardly told from its bound far to the left
IN_DOUBLE = ("Tanh", "Sigmoid", "logit", "log of exp", "Neg")  # onnxruntime has these in float64


class Shape:
    """Of a value: extents behind the batch, None if open; the axis of its features."""

    def __init__(self, dims, axis):
        self.dims, self.axis, self.rank = list(dims), axis, len(dims) + 1

    @property
    def n(self):
        return self.dims[self.axis - 1]

    def of(self, n):
        return Shape([n if i == self.axis - 1 else d for i, d in enumerate(self.dims)], self.axis)

    @property
    def closed(self):
        return None not in self.dims

    def along(self, array):
        """An array of features, to be broadcast over the value."""
        return np.reshape(array, [-1] + [1] * (self.rank - 1 - self.axis))


class Model:
    def __init__(self, seed):
        self.seed, self.rng, self.used = seed, np.random.default_rng(seed), []
        self.per_row = set()
        self.opset = int(self.rng.integers(13, 24))
        self.double = self.chance(.2)
        self.kind = np.float64 if self.double else np.float32
        self.told = self.chance(.3)      # has an output with its log-determinant
        self.constants = self.one(0, 0, .3, 1)  # share of weights in Constant nodes
        self.nodes, self.tensors, self.functions, self.pool, self.n = [], {}, [], {}, 0
        self.open_batch, self.condition, self.squashed, self.depth = self.chance(.75), None, False, 0
        self.inside = False                   # of a function or a body
        self.build()

    # --- drawing ---

    def chance(self, p):
        return bool(self.rng.random() < p)

    def one(self, *of):
        return of[int(self.rng.integers(len(of)))]

    def whole(self, low, high):
        """From low to high, both of them included."""
        return int(self.rng.integers(low, high + 1))

    # --- parts of a graph ---

    def name(self, stem="v"):
        self.n += 1
        return f"{stem}{self.n}"

    def op(self, kind, *inputs, outputs=1, **attributes):
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"{kind}_{self.n}", **attributes))
        return names[0] if outputs == 1 else names

    def param(self, value, weight=False):
        """A tensor: in the graph, or in a Constant node. Weights may be those of another place."""
        value = np.asarray(value)
        if value.dtype.kind == "f":
            value = (value if self.double else value.astype(np.float32)).astype(self.kind)
        if weight and value.shape in self.pool and self.chance(.15):
            self.used.append("shared weight")
            return self.one(*self.pool[value.shape])
        name = self.name("w" if weight else "c")
        if self.chance(self.constants):
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name)))
        else:
            self.tensors[name] = (value, weight)
            if weight:
                self.pool.setdefault(value.shape, []).append(name)
        return name

    def ints(self, *values):
        return self.param(np.array(values, np.int64))

    def real(self, value):
        return self.param(np.float64(value))

    def weight(self, *shape, scale=1.0):
        return self.param(self.rng.normal(size=shape) * scale, True)

    def square(self, n):
        return np.linalg.qr(self.rng.normal(size=(n, n)))[0] * np.exp(self.rng.normal(size=n) / 5)

    # --- branches ---

    def linear(self, x, s, n):
        """To n features."""
        if s.rank == 4:
            k = self.one(1, 3)
            return self.op("Conv", x, self.weight(n, s.n, k, k, scale=(s.n * k * k) ** -.5), self.weight(n, scale=.1),
                           kernel_shape=[k, k], pads=[k // 2] * 4)
        how = self.one("Gemm", "Gemm turned", "MatMul", "MatMul alone") if s.rank == 2 else self.one("MatMul", "MatMul alone")
        scale = s.n ** -.5
        if how == "Gemm turned":
            return self.op("Gemm", x, self.weight(n, s.n, scale=scale), self.weight(n, scale=.1), transB=1)
        w = self.weight(s.n, n, scale=scale)
        if how == "Gemm":
            return self.op("Gemm", x, w, self.weight(n, scale=.1))
        y = self.op("MatMul", x, w)
        return y if how == "MatMul alone" else self.op("Add", *self.either(y, self.weight(n, scale=.1)))

    def either(self, a, b):
        return (a, b) if self.chance(.5) else (b, a)

    def bend(self, x):
        if self.double:
            kind = self.one("Tanh", "Sigmoid", "Relu", "Sin")
        else:
            kind = self.one("Tanh", "Sigmoid", "Relu", "Elu", "LeakyRelu", "Softplus", "gelu", "silu")
        if kind == "silu":
            return self.op("Mul", x, self.op("Sigmoid", x))
        if kind == "gelu":
            half = self.op("Mul", x, self.real(.5))
            return self.op("Mul", half, self.op("Add", self.op("Erf", self.op("Mul", x, self.real(.5 ** .5))), self.real(1)))
        return self.op(kind, x)

    def network(self, x, s, n):
        """A function of x with n features."""
        if self.condition and s.rank == 2 and self.chance(.7):
            x, s = self.op("Concat", x, self.condition, axis=1), s.of(s.n + 2)
        how = self.one("layers", "layers", "residual", "couplings", "gate", "bent")
        if how == "bent" and s.n >= n:
            x = self.op("Gather", x, self.ints(*(int(i) for i in self.rng.integers(0, s.n, n))), axis=s.axis)
            return self.op("Tanh", x)
        width = 2 * self.whole(1, 2)
        h, inner = self.linear(x, s, width), s.of(width)
        if how == "gate":
            h = self.op("Mul", self.bend(h), self.op("Sigmoid", self.linear(x, s, width)))
        elif how == "residual":
            for _ in range(self.whole(1, 2)):
                h = self.op("Add", *self.either(h, self.bend(self.linear(h, inner, width))))
        elif how == "couplings" and self.depth < 2:
            self.used.append("couplings in a branch")
            self.depth += 1
            for _ in range(self.whole(1, 2)):
                h = self.coupling(h, inner)[0]
            self.depth -= 1
        else:
            h = self.bend(h)
        return self.linear(h, inner, n)

    # --- parts ---

    def cut(self, x, s):
        """Two parts of x, their widths, and what joins them again."""
        n, axis = s.n, s.axis
        how = self.one("Split", "Split", "Slice", "Slice", "steps", "Gather", "three")
        k = self.whole(1, n - 1) if self.chance(.5) else n // 2
        order = np.arange(n)
        if how == "three" and n >= 3:
            i, j = sorted(int(v) for v in self.rng.choice(np.arange(1, n), 2, replace=False))
            a, b, c = self.op("Split", x, self.ints(i, j - i, n - j), outputs=3, axis=axis)
            first, second = np.concatenate([order[:i], order[j:]]), order[i:j]
            a = self.op("Concat", *((a, c) if self.chance(.5) else (c, a)), axis=axis)
            if self.nodes[-1].input[0] == c:
                first = np.concatenate([order[j:], order[:i]])
        elif how == "steps" and n > 1:
            first, second = order[::2], order[1::2]
            a, b = (self.op("Slice", x, self.ints(at), self.ints(LONG), self.ints(axis), self.ints(2)) for at in (0, 1))
        elif how == "Gather":
            order = self.rng.permutation(n)
            first, second = order[:k], order[k:]
            b_at = second - n if self.chance(.2) else second
            a, b = self.op("Gather", x, self.ints(*first), axis=axis), self.op("Gather", x, self.ints(*b_at), axis=axis)
        else:
            first, second = order[:k], order[k:]
            if how == "Slice":
                at = self.one(k, k - n)
                a = self.op("Slice", x, self.ints(0), self.ints(at), self.ints(axis))
                b = self.op("Slice", x, self.ints(at), self.ints(self.one(n, LONG)), self.ints(self.one(axis, axis - s.rank)))
            elif n == 2 * k and self.chance(.5):
                a, b = self.op("Split", x, outputs=2, axis=axis, **({"num_outputs": 2} if self.opset >= 18 else {}))
            else:
                a, b = self.op("Split", x, self.ints(k, n - k), outputs=2, axis=axis)
        self.used.append(f"cut by {how}")

        def join(a, b):
            if how == "Gather" and s.rank == 2 and self.chance(.2):
                self.used.append("joined by ScatterND")
                at = self.op("Transpose", self.op("Mul", x, self.real(0)), perm=[1, 0])
                for part, of in ((first, a), (second, b)):
                    at = self.op("ScatterND", at, self.param(np.array(part, np.int64)[:, None]), self.op("Transpose", of, perm=[1, 0]))
                return self.op("Transpose", at, perm=[1, 0])
            if len(first) == len(second) and s.rank == 2 and self.chance(.15):
                self.used.append("joined by turns")
                one = self.ints(2)
                both = self.op("Concat", self.op("Unsqueeze", a, one), self.op("Unsqueeze", b, one), axis=2)
                return self.op("Reshape", both, self.ints(-1, n))
            swapped = self.chance(.4)
            y = self.op("Concat", *((b, a) if swapped else (a, b)), axis=axis)
            at = np.argsort(np.concatenate([second, first] if swapped else [first, second]))
            if self.chance(.4):
                y = self.op("Gather", y, self.ints(*at), axis=axis)
            return y
        if self.chance(.5):
            return b, a, s.of(len(second)), s.of(len(first)), lambda b, a: join(a, b)
        return a, b, s.of(len(first)), s.of(len(second)), join

    def volume(self, logarithm, s):
        """The sum over all but the batch."""
        return self.rows(self.op("ReduceSum", logarithm, self.ints(*range(1, s.rank)), keepdims=0))

    def rows(self, name):
        """It has a number per row; other log-determinants are one for all."""
        self.per_row.add(name)
        return name

    def changed(self, a, s, t, raw):
        """a by a shift t() and a scale of raw(), both of that shape; and its log-determinant."""
        how = self.one("add", "add", "sub", "from", "exp", "exp", "divide", "sigmoid", "inside", "times", "part", "where",
                       *([] if self.double else ["softplus"]))
        self.used.append(f"coupling: {how}")
        if how in ("add", "sub", "from"):
            y = self.op("Add", *self.either(a, t())) if how == "add" else self.op("Sub", *((a, t()) if how == "sub" else (t(), a)))
            return y, None
        r = raw()
        if how in ("sigmoid", "softplus", "part", "where"):
            if how == "softplus":
                r = self.op("Tanh", r)
            if how == "sigmoid":
                scale = self.op("Sigmoid", self.op("Add", r, self.real(2)))
            elif how == "softplus":
                scale = self.op("Add", self.op("Softplus", r), self.real(.3))
            elif how == "where":
                scale = self.op("Where", self.op("Greater", r, self.real(.6)), self.op("Tanh", r), self.real(.5))
            else:
                g = self.op("Mul", self.op("Tanh", r), self.real(.7))
                y = self.op("Add", *self.either(a, self.op("Mul", *self.either(a, g))))
                return y, self.volume(self.op("Log", self.op("Add", g, self.real(1))), s) if self.told else None
            y = self.op("Mul", *self.either(self.op("Add", a, t()) if self.chance(.7) else a, scale))
            return y, self.volume(self.op("Log", scale), s) if self.told else None
        k = self.op("Mul", self.op("Tanh", r), self.real(.5)) if self.chance(.6) else self.op("Tanh", r)
        e = self.op("Exp", k)
        if how == "exp":
            y = self.op("Add", *self.either(self.op("Mul", *self.either(a, e)), t()))
        elif how == "divide":
            y = self.op("Div", self.op("Sub", a, t()), e)
        elif how == "inside":
            y = self.op("Mul", self.op("Add", a, t()), e)
        else:
            y = self.op("Mul", *self.either(a, e))
        told = self.volume(self.op("Neg", k) if how == "divide" else k, s) if self.told else None
        return y, told

    def shift_and_scale(self, x, s, n):
        """What gives shift and raw scale of n features as functions of x: two networks, or one that is cut."""
        if self.chance(.5):
            both, inner = self.network(x, s, 2 * n), s.of(2 * n)
            t, r = self.op("Split", both, self.ints(n, n), outputs=2, axis=inner.axis)
            return lambda: t, lambda: r
        return lambda: self.network(x, s, n), lambda: self.network(x, s, n)

    # --- blocks: (value, its log-determinant or None) ---

    def coupling(self, x, s):
        if s.n < 2:
            return self.scaled(x, s)
        a, b, sa, sb, join = self.cut(x, s)
        told = None
        if self.chance(.25) and sb.n > 1 and self.depth < 2:
            self.used.append("nested part")
            self.depth += 1
            b, told = self.coupling(b, sb)
            self.depth -= 1
        y, more = self.changed(a, sa, *self.shift_and_scale(b, sb, sa.n))
        told = self.sum(told, more)
        if self.chance(.3):  # the other half by the new one
            b, more = self.changed(b, sb, *self.shift_and_scale(y, sa, sb.n))
            told = self.sum(told, more)
        return join(y, b), told

    def masked(self, x, s):
        if s.rank == 4 and s.closed and np.prod(s.dims[1:]) > 1 and self.chance(.5):
            mask = np.indices(s.dims[1:]).sum(0)[None] % 2
        else:
            mask = s.along(np.arange(s.n) % 2 if self.chance(.5) else self.rng.permutation(np.arange(s.n) < (s.n + 1) // 2))
        mask = mask.astype(np.float64)
        how = self.one("b x + c (x e^k + t)", "x e^(c k) + c t", "Where(b, x, x e^k + t)", "x + c t", "b x + c (x - t) / e^k")
        self.used.append(f"masked: {how}")
        o, b, c = self.op, self.param(mask), self.param(1 - mask)
        if self.chance(.3):
            c = o("Sub", self.real(1), b)
        kept = o("Mul", *self.either(x, b))
        t, r = self.shift_and_scale(kept, s, s.n)
        if how == "x + c t":
            return o("Add", *self.either(x, o("Mul", *self.either(c, t())))), None
        k = o("Tanh", r())
        told = self.volume(o("Mul", k, c), s) if self.told else None
        if how == "x e^(c k) + c t":
            return o("Add", o("Mul", x, o("Exp", o("Mul", k, c))), o("Mul", c, t())), told
        e = o("Exp", k)
        if how == "b x + c (x - t) / e^k":
            y = o("Add", kept, o("Mul", c, o("Div", o("Sub", x, t()), e)))
            return y, self.rows(o("Neg", told)) if told else None
        y = o("Add", o("Mul", x, e), t())
        if how.startswith("Where"):
            return o("Where", self.param(mask > 0), x, y), told
        return o("Add", kept, o("Mul", y, c)), told

    def momentum(self, x, s):
        if s.n % 2:
            return self.scaled(x, s)
        self.used.append("momentum")
        h = s.of(s.n // 2)
        q, v = self.op("Split", x, self.ints(h.n, h.n), outputs=2, axis=s.axis)
        g = self.rng.uniform(.5, .9)
        f = self.op("Mul", self.network(q, h, h.n), self.real(1 - g))
        v = self.op("Add", self.op("Mul", v, self.real(g)), f)
        q = self.op("Add", q, v)
        told = None
        if self.told:
            told = self.real(np.log(g) * np.prod(h.dims))
        return self.op("Concat", q, v, axis=s.axis), told

    def leapfrog(self, x, s):
        if s.n % 2:
            return self.scaled(x, s)
        self.used.append("leapfrog")
        h = s.of(s.n // 2)
        old, now = self.op("Split", x, self.ints(h.n, h.n), outputs=2, axis=s.axis)
        for _ in range(self.whole(1, 3)):
            f = self.op("Mul", self.network(now, h, h.n), self.real(.04))
            if self.chance(.5):
                new = self.op("Add", self.op("Sub", self.op("Mul", now, self.real(2)), old), f)
            else:
                new = self.op("Add", self.op("Sub", self.op("Add", now, now), old), f)
            old, now = now, new
        return self.op("Concat", old, now, axis=s.axis), None

    def rotated(self, x, s):
        """Symplectic steps: q by p, p by q."""
        if s.n % 2:
            return self.scaled(x, s)
        self.used.append("symplectic")
        h = s.of(s.n // 2)
        p, q = self.op("Split", x, self.ints(h.n, h.n), outputs=2, axis=s.axis)
        step = self.real(.3)
        for _ in range(self.whole(1, 2)):
            p = self.op("Sub", p, self.op("Mul", step, self.network(q, h, h.n)))
            q = self.op("Add", q, self.op("Mul", step, self.network(p, h, h.n)))
        return self.op("Concat", p, q, axis=s.axis), None

    def matrix(self, x, s):
        w = self.square(s.n)
        places = np.prod([d for i, d in enumerate(s.dims) if i != s.axis - 1]) if s.closed else 0
        told = self.real(np.linalg.slogdet(w)[1] * places) if self.told else None
        if s.rank == 4:
            self.used.append("1x1 convolution")
            return self.op("Conv", x, self.param(w[:, :, None, None]), *([self.weight(s.n, scale=.1)] if self.chance(.5) else [])), told
        how = self.one("MatMul", "Gemm", "Einsum", "sum", "reflection") if s.rank == 2 else self.one("MatMul", "Einsum")
        self.used.append(f"linear: {how}")
        if how == "reflection":
            u = self.rng.normal(size=(s.n, 1))
            u /= np.linalg.norm(u)
            if not self.double:
                u = u.astype(np.float32)
            y = self.op("MatMul", self.op("Mul", self.op("MatMul", x, self.param(u)), self.real(2)), self.param(u.T))
            return self.op("Sub", x, y), None
        if how == "sum":
            w = self.rng.normal(size=(s.n, s.n)) * .5 / s.n
            told = self.real(np.linalg.slogdet(np.eye(s.n) + w)[1]) if self.told else None
            return self.op("Add", x, self.op("MatMul", x, self.param(w))), told
        if how == "Gemm":
            return self.op("Gemm", x, self.param(w), self.weight(s.n, scale=.1), transB=self.whole(0, 1)), told
        if how == "Einsum":
            return self.op("Einsum", x, self.param(w), equation="ni,ij->nj" if s.rank == 2 else "nti,ij->ntj"), told
        return self.op("MatMul", x, self.param(w)), told

    def scaled(self, x, s):
        self.used.append("ActNorm")
        k, b = self.rng.normal(size=s.n) * .3, self.rng.normal(size=s.n) * .3
        places = np.prod([d for i, d in enumerate(s.dims) if i != s.axis - 1]) if s.closed else 0
        if self.chance(.5):
            told = self.real(k.sum() * places) if self.told else None
            e = self.op("Exp", self.param(s.along(k))) if self.chance(.5) else self.param(s.along(np.exp(k)))
            return self.op("Mul", self.op("Add", x, self.param(s.along(b))), e), told
        told = self.real(-k.sum() * places) if self.told else None
        return self.op("Div", self.op("Sub", x, self.param(s.along(b))), self.param(s.along(np.exp(k)))), told

    def normalized(self, x, s):
        if s.axis != 1 or s.rank == 4 and self.double:
            return self.scaled(x, s)
        self.used.append("batch normalization")
        r = self.rng
        gain, var, eps = r.uniform(.5, 2, s.n), r.uniform(.5, 2, s.n), .01
        still = {"momentum": 1.0} if self.opset < 14 else {}  # else ONNX's evaluator takes statistics of the batch
        told = None
        if self.told:
            told = self.real(np.log(gain / np.sqrt(var + eps)).sum() * np.prod(s.dims[1:]))
        return self.op("BatchNormalization", x, *(self.param(v) for v in (gain, r.normal(size=s.n) * .3, r.normal(size=s.n) * .3, var)),
                       epsilon=eps, **still), told

    def bent(self, x, s):
        """A monotone function of each element; one that squashes at most, so that digits are left."""
        kinds = KINKS if self.squashed or self.depth else (*KINKS, *SQUASH)
        kind = self.one(*[k for k in kinds if k in IN_DOUBLE] if self.double else kinds)
        self.used.append(f"function: {kind}")
        o, told = self.op, None
        if kind not in KINKS or kind in FLATTENS:
            self.squashed = self.squashed or kind not in KINKS
            x = o("Mul", x, self.real(.1 if kind in FLATTENS else .4))
        if kind == "logit":
            p = o("Add", o("Mul", o("Sigmoid", x), self.real(.9)), self.real(.05))
            return o("Sub", o("Log", p), o("Log", o("Sub", self.real(1), p))), told
        if kind == "log of exp":
            return o("Log", o("Add", o("Exp", x), self.real(1))), told
        if kind == "PRelu":
            return o("PRelu", x, self.param(s.along(self.rng.uniform(.3, 1.5, s.n)))), told
        return o(kind, x, **({"alpha": float(self.rng.uniform(.3, .9))} if kind in ("LeakyRelu", "Elu", "Celu") else {})), told

    def permuted(self, x, s):
        how = self.one("Gather", "Slice", "Split", "roll")
        self.used.append(f"permuted: {how}")
        n = s.n
        if how == "Gather":
            return self.op("Gather", x, self.ints(*self.rng.permutation(n)), axis=s.axis), None
        if how == "Slice":
            return self.op("Slice", x, self.ints(-1), self.ints(-LONG), self.ints(s.axis), self.ints(-1)), None
        if how == "roll" or n < 3:
            k = self.whole(1, n - 1)
            b = self.op("Slice", x, self.ints(k), self.ints(LONG), self.ints(s.axis))
            return self.op("Concat", b, self.op("Slice", x, self.ints(0), self.ints(k), self.ints(s.axis)), axis=s.axis), None
        a, b, c = self.op("Split", x, self.ints(1, n - 2, 1), outputs=3, axis=s.axis)
        return self.op("Concat", *self.one((c, a, b), (b, c, a), (c, b, a)), axis=s.axis), None

    def sum(self, a, b):
        if not (a and b):
            return a or b
        total = self.op("Add", a, b)
        return self.rows(total) if {a, b} & self.per_row else total

    # --- what holds blocks ---

    def block(self, x, s):
        kinds = [self.coupling] * 5 + [self.masked] * 2 + [self.momentum, self.leapfrog, self.rotated, self.matrix, self.scaled,
                                                           self.normalized, self.permuted]
        if not self.told:
            kinds += [self.bent] * 2
        return self.one(*kinds)(x, s)

    def drawn(self, x, s, make):
        """The nodes of a block by themselves: (nodes, value, log-determinant, names from outside)."""
        outer, self.nodes, self.inside = self.nodes, [], True
        pool, self.pool = self.pool, {}
        y, told = make(x, s)
        nodes, self.nodes, self.inside, self.pool = self.nodes, outer, False, pool
        made = {v for n in nodes for v in n.output}
        free = list(dict.fromkeys(v for n in nodes for v in n.input if v not in made and v))
        return nodes, y, told, free

    def again(self, free):
        """The names with other weights."""
        names = {}
        for v in free:
            if v in self.tensors and self.tensors[v][1]:
                old = self.tensors[v][0]
                names[v] = self.name("w")
                self.tensors[names[v]] = ((self.rng.permutation(old.ravel()).reshape(old.shape)), True)
        return names

    def in_function(self, x, s):
        self.used.append("function of the file")
        start, total = x, None
        nodes, y, told, free = self.drawn(x, s, self.coupling if self.chance(.7) else self.block)
        name, outside = self.name("Block"), None
        if told and not any(told in n.output for n in nodes):  # a number
            told, outside = None, told
        self.functions.append(helper.make_function("random", name, free, [y, *([told] if told else [])], nodes, self.opsets()[:1]))
        for i in range(self.whole(1, 2)):
            new = {**(self.again(free) if i else {}), start: x}
            outs = [self.name() for _ in range(1 + bool(told))]
            self.nodes.append(helper.make_node(name, [new.get(v, v) for v in free], outs, domain="random", name=f"call_{self.n}"))
            x = outs[0]
            if told in self.per_row:
                self.rows(outs[1])
            total = self.sum(total, outs[1] if told else outside)
        return x, total

    def value(self, name, dims=None, kind=None):
        real = TensorProto.DOUBLE if self.kind is np.float64 else TensorProto.FLOAT
        return helper.make_tensor_value_info(name, kind or real, dims)

    def in_if(self, x, s):
        self.used.append("If")
        nodes, y, _, _ = self.drawn(x, s, self.block)
        other = self.name()
        branches = [helper.make_graph(nodes, "taken", [], [self.value(y)]),
                    helper.make_graph([helper.make_node("Neg", [x], [other])], "not_taken", [], [self.value(other)])]
        if self.chance(.5):
            branches.reverse()
        condition = self.param(np.array(branches[0].name == "taken"))
        return self.op("If", condition, then_branch=branches[0], else_branch=branches[1]), None

    def in_loop(self, x, s):
        self.used.append("Loop")
        i, go, state, stay = (self.name() for _ in range(4))
        nodes, y, _, _ = self.drawn(state, s, self.block)
        nodes.append(helper.make_node("Identity", [go], [stay]))
        body = helper.make_graph(nodes, "body", [self.value(i, [], TensorProto.INT64), self.value(go, [], TensorProto.BOOL), self.value(state)],
                                 [self.value(stay, [], TensorProto.BOOL), self.value(y)])
        return self.op("Loop", self.param(np.array(self.whole(1, 3), np.int64)), self.param(np.array(True)), x, body=body), None

    def in_scan(self, x, s):
        self.used.append("Scan")
        state = self.name()
        nodes, y, _, free = self.drawn(state, s, self.coupling)
        slices = [v for v in free if v in self.tensors and self.tensors[v][1]]
        if not slices:
            return x, None
        times, stacks = self.whole(1, 3), []
        for v in slices:
            stack = self.name("w")
            old = self.tensors.pop(v)[0]
            self.tensors[stack] = np.stack([self.rng.permutation(old.ravel()).reshape(old.shape) for _ in range(times)]), False
            stacks.append(stack)
        body = helper.make_graph(nodes, "body", [self.value(state), *(self.value(v) for v in slices)],
                                 [self.value(y, [None] * s.rank)])  # without a rank onnxruntime does not run it
        return self.op("Scan", x, *stacks, body=body, num_scan_inputs=len(slices)), None

    def folded(self, x, s):
        """As an image or as tokens, and back."""
        if s.rank != 2 or s.n % 4:
            return self.permuted(x, s)
        inner = Shape(*self.one(((s.n // 4, 2, 2), 1), ((2, s.n // 2), 2)))
        if self.double and inner.rank == 4:
            inner = Shape((2, s.n // 2), 2)
        self.used.append(f"folded to rank {inner.rank}")
        x, told = self.op("Reshape", x, self.ints(self.one(-1, 0), *inner.dims)), None
        for _ in range(self.whole(1, 2)):
            x, more = self.block(x, inner) if inner.n > 1 else self.scaled(x, inner)
            told = self.sum(told, more)
        return (self.op("Flatten", x) if self.chance(.5) else self.op("Reshape", x, self.ints(-1, s.n))), told

    def turned(self, x, s):
        if s.rank != 3 or not s.closed:
            return self.permuted(x, s)
        self.used.append("transposed")
        x = self.op("Transpose", x, perm=[0, 2, 1])
        x, told = self.block(x, Shape(s.dims[::-1], 2))
        return self.op("Transpose", x, perm=[0, 2, 1]), told

    def squeezed(self, x, s):
        """Pixels to channels, and back."""
        if s.rank != 4 or not s.closed or s.dims[1] % 2:
            return self.permuted(x, s)
        self.used.append("squeezed")
        c, h, w = s.dims
        x = self.op("SpaceToDepth", x, blocksize=2)
        x, told = self.block(x, Shape((4 * c, h // 2, w // 2), 1))
        return self.op("DepthToSpace", x, blocksize=2), told

    # --- the whole ---

    def opsets(self):
        return [helper.make_opsetid("", self.opset), helper.make_opsetid("random", 1)]

    def shape(self):
        layout = self.one("row", "row", "row", "tokens", "image")
        if layout == "row" or layout == "image" and self.double:
            return Shape([self.whole(4, 8)], 1)
        opened = not self.told and self.chance(.4)
        if layout == "tokens":
            return Shape([None if opened else self.whole(2, 3), self.whole(4, 6)], 2)
        return Shape([self.one(2, 4), *((None, None) if opened else (2, 2))], 1)

    def build(self):
        s = self.dims = self.shape()
        n, total = s.n, None
        self.widths = [n]
        if self.chance(.15):
            k = self.whole(1, n - 1)
            self.widths = [k, n - k]
        if s.rank == 2 and self.chance(.1):
            self.condition = "c"
        self.inputs = {f"x{i}": s.of(k) for i, k in enumerate(self.widths)}
        x = self.op("Concat", *self.inputs, axis=s.axis) if len(self.widths) == 2 else "x0"
        wrapped = [self.in_function] * 2 + [self.folded, self.turned, self.squeezed]
        if not self.told:
            wrapped += [self.in_if, self.in_loop, self.in_scan]
        for _ in range(self.whole(1, 4)):
            x, told = self.one(*wrapped)(x, s) if self.chance(.3) else self.block(x, s)
            total = self.sum(total, told)
        if x in self.inputs:
            x, told = self.coupling(x, s)
            total = self.sum(total, told)
        if len(self.widths) == 2 and self.chance(.7):
            self.outputs = dict(zip(self.op("Split", x, self.ints(*self.widths), outputs=2, axis=s.axis), self.inputs.values()))
        else:
            self.outputs = {x: s}
        self.logdet = total if self.told else None
        self.finish()

    def finish(self):
        batch = "N" if self.open_batch else 3
        dims = lambda s: [batch, *(d or f"D{i}" for i, d in enumerate(s.dims))]  # noqa: E731
        graph = helper.make_graph(
            self.nodes, f"random_{self.seed}",
            [*(self.value(k, dims(s)) for k, s in self.inputs.items()), *([self.value("c", [batch, 2])] if self.condition else [])],
            [*(self.value(k, dims(s)) for k, s in self.outputs.items()),
             *([self.value(self.logdet, [batch] if self.logdet in self.per_row else [])] if self.logdet else [])],
            [numpy_helper.from_array(a, k) for k, (a, _) in self.tensors.items()])
        self.model = helper.make_model(graph, opset_imports=self.opsets(), functions=self.functions, ir_version=10 if self.opset > 18 else 8)

    def feeds(self, rows, rng):
        """Inputs of that many rows, and other extents where they are open."""
        if not self.open_batch:
            rows = 3
        sizes = [int(rng.integers(2, 5)) for _ in range(4)]
        made = {k: rng.normal(size=(rows, *(d or sizes[i] for i, d in enumerate(s.dims)))) * .8 for k, s in self.inputs.items()}
        if self.condition:
            made["c"] = rng.normal(size=(rows, 2))
        return {k: v.astype(np.float32).astype(self.kind) for k, v in made.items()}

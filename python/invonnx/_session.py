# SPDX-License-Identifier: Apache-2.0
"""An `inv_session` and what is read out of it."""
from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Mapping, MutableMapping, NamedTuple, Optional, Tuple

import numpy as np

from ._arrays import Array, Frame, Lent, as_array, copied, dtype_code
from ._core import Context, ShapeError
from ._native import ffi, lib
from ._options import ON_HOST, make_options


def shown_bytes(n: int) -> str:
    """``"1.5 MiB"`` and the like."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = min(max(n.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{n} bytes" if power == 0 else f"{n / 1024**power:.1f} {units[power]}"


#: Where nobody says how many. The library's own default is what the newest session of the thread was made with.
THREADS = int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0] or len(os.sched_getaffinity(0)))


class Result(NamedTuple):
    """What a step, or an evaluation, came to (`inv_result`)."""

    #: Loss of the batch.
    loss: float
    #: Rows of logits that `correct` is of.
    rows: int
    #: Evaluation with cross entropy and labels: rows whose largest logit is the label.
    correct: int
    #: Largest relative error of what the step reconstructed.
    drift: float
    #: Values that a guard refused in this step, and that are kept from now on.
    fallbacks: int
    #: By what the batch counts in a mean over batches.
    weight: float
    #: Norm of all gradients together, before clipping; NaN: not measured.
    grad_norm: float


class Session:
    """One `inv_session`, destroyed when it and the views of its memory are gone."""

    def __init__(self, context: Context, model: Any, frame: Frame, target: Optional[Frame],
                 options: Mapping[str, Any]) -> None:
        self.context = context
        self.lent = 0  # views of what does not persist
        self._result: Any = ffi.new("inv_result *")
        values = dict(options)
        purpose, cost = values.pop("purpose"), values.pop("cost", None)
        c, keep = make_options(values)
        costs = context.costs({**values, "cost": cost})
        self.host: bool = values.get("device") in (None, *ON_HOST)
        c.purpose = purpose
        c.threads = c.threads or THREADS
        c.inputs, c.ninputs = frame.arrays, frame.n
        c.target = target.arrays if target else ffi.NULL
        c.costs = costs
        out = ffi.new("inv_session **")
        context.call(lib.inv_session_create, model, c, out)
        del keep
        self.pointer: Any = context.own(out[0], lib.inv_session_destroy)
        if not (options.get("constant_inputs") or options.get("constants_as_needed")):
            frame.release()

    def resize(self, sizes: Mapping[str, int], frame: Optional[Frame] = None, target: Optional[Frame] = None,
               plan: Optional[str] = None) -> None:
        """Plans for batches of other sizes; whatever the training has become stays (`inv_session_resize`)."""
        c = ffi.new("inv_session_sizes *", dict(sizes))
        c.size = ffi.sizeof("inv_session_sizes")
        if frame:
            c.inputs, c.ninputs = frame.arrays, frame.n
            c.target = target.arrays if target else ffi.NULL
        text = ffi.new("char []", plan.encode()) if plan else ffi.NULL
        c.plan = text
        self.context.call(lib.inv_session_resize, self.pointer, c)

    def run(self, function: Any, frame: Optional[Frame], *more: Any) -> Result:
        """A call that computes: its inputs, what else it takes, and its result.

        Raises
        ------
        Error
            The call failed, by its status; of inputs those that `Trainer.step` tells.
        """
        r = self._result
        if not self.lent:
            lib.inv_session_end_views(self.pointer)
        if frame is None:
            self.context.call(function, self.pointer, *more, r)
        else:
            self.context.call(function, self.pointer, frame.arrays, frame.n, *more, r)
        return Result(r.loss, r.rows, r.correct, r.drift, r.fallbacks, r.weight, r.grad_norm)

    def names(self, what: int) -> List[str]:
        """Names of what there is to read (`inv_session_name`)."""
        found: List[str] = []
        while True:
            name = lib.inv_session_name(self.pointer, what, len(found))
            if not name:
                return found
            found.append(ffi.string(name).decode())

    def get(self, what: int, name: str) -> Array:
        """A copy.

        Raises
        ------
        ArgumentError
            There is no such tensor, or nothing has been run yet.
        """
        data, dtype, rank = ffi.new("const void **"), ffi.new("inv_dtype *"), ffi.new("int *")
        dims = ffi.new("int64_t[8]")
        self.context.call(lib.inv_session_get, self.pointer, what, name.encode(), data, dtype, rank, dims)
        return copied(data[0], dtype[0], dims[0:rank[0]])

    def view(self, what: int, name: str) -> Array:
        """The session's own memory. What does not persist is valid until the next call.

        Raises
        ------
        ArgumentError
            There is no such tensor in memory of the host.
        """
        view = ffi.new("inv_view *")
        self.context.call(lib.inv_session_view, self.pointer, what, name.encode(), view)
        return np.asarray(Lent(self, view))

    def set(self, what: int, name: str, value: Any) -> None:
        """Overwrites a tensor with an array of its shape.

        Raises
        ------
        ArgumentError
            There is no such tensor, or it does not persist.
        ShapeError
            It has another number of elements.
        """
        a = as_array(value)
        if a.dtype not in (np.float32, np.float64):
            a = a.astype(np.float32 if a.dtype.itemsize < 4 else np.float64)
        self.context.call(lib.inv_session_set, self.pointer, what, name.encode(), dtype_code(a), ffi.from_buffer(a),
                          a.size)

    def __repr__(self) -> str:
        report = self.report()
        seconds = report["predicted_seconds"]
        return (f"<invonnx.Session: memory {report['memory']}, peak {shown_bytes(report['planned_peak_bytes'])}, "
                f"{report['trained_elements']} numbers are trained" + (f", {1e3 * seconds:.3g} ms a step>" if seconds else ">"))

    def report(self) -> Dict[str, Any]:
        """Plan, memory, blocks, drift (`inv_session_report`)."""
        return self.context.json(lib.inv_session_report, self.pointer)

    def explain(self) -> Dict[str, Any]:
        """Why it is so (`inv_session_explain`)."""
        return self.context.json(lib.inv_session_explain, self.pointer)

    def plan(self) -> str:
        """The plan by names, as JSON (`inv_session_plan`)."""
        return self.context.text(lib.inv_session_plan, self.pointer)


class Views(Mapping[str, Array]):
    """Tensors of a session by name: read-only views of its memory, valid until the next call that computes."""

    def __init__(self, session: Session, what: int) -> None:
        self._session, self._what, self._names = session, what, dict.fromkeys(session.names(what))

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        a = self._session.view(self._what, name) if self._session.host else self._session.get(self._what, name)
        a.flags.writeable = False
        return a

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: {_shown(a)}" for name, a in self.items()) + "}"


class Parameters(MutableMapping[str, Array]):
    """The parameters and running statistics of a session by name, as arrays over its own memory: what is written into
    them is what the next step computes with. They are views of the session as it is; look them up anew after modes have
    changed, or a batch of another size has made it plan again. What no step changes is a read-only view of the model's
    file, or a copy; so is all of a device with memory of its own, where ``parameters[name] = value`` writes."""

    def __init__(self, session: Session, what: int) -> None:
        self._session, self._what, self._names = session, what, dict.fromkeys(session.names(what))
        held = session.names(lib.INV_GET_HELD if what == lib.INV_GET_PARAM else what)
        self._held = frozenset(held) if session.host else frozenset()

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        if name in self._held:
            return self._session.view(self._what, name)
        a = self._session.get(self._what, name)
        a.flags.writeable = False
        return a

    def __setitem__(self, name: str, value: Any) -> None:
        shape, a = self[name].shape, as_array(value)
        try:
            a = np.broadcast_to(a, shape)
        except ValueError:
            raise ShapeError(f"'{name}' is of shape {list(shape)}: an array of shape {list(a.shape)} cannot take its place",
                             "E_SHAPE") from None
        self._session.set(self._what, name, np.ascontiguousarray(a))

    def __delitem__(self, name: str) -> None:
        raise TypeError("a session's parameters stay")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: {_shown(self[name])}" for name in self) + "}"


def _shown(a: Array) -> str:
    shape: Tuple[int, ...] = a.shape
    return f"{a.dtype}{list(shape)}"

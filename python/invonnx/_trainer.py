# SPDX-License-Identifier: Apache-2.0
"""Training: steps, evaluation, checkpoints, modes that change."""
from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from ._arrays import Array, ArrayLike, Frame, Inputs, as_array, named, optional_frame
from ._core import COSTS, ArgumentError, Error, text
from ._native import ffi, lib
from ._options import Memory, Schedule, make_options, micro_batches, mode_rules, session_mode
from ._session import Parameters, Result, Session, Views
from ._values import flag, real, whole, word, wrong_type, wrong_value

if TYPE_CHECKING:
    from ._model import Model, Path

Rate = Union[float, Schedule, Callable[[int], float]]
#: Batches (x, y), or x alone for losses without a target.
Data = Iterable[Any]

#: What the library says in a session.
_AVERAGED = "the averages are in the place of the weights. Switch back first (the end of `with Trainer.averages()`)"
_LOGGED = ("step", "loss", "lr", "grad_norm", "drift", "fallbacks")


def _pair(batch: Any) -> Tuple[Inputs, Any]:
    """x and y of a batch; of a loss without a target x alone."""
    x, y = batch if isinstance(batch, (tuple, list)) and len(batch) == 2 else (batch, None)
    return x, y


def _change_of(memory: Optional[str], rules: Any, replace: bool, device: Any) -> Tuple[Any, List[Any]]:
    """An `inv_modes`, and what it points to."""
    keep: List[Any] = []
    c = ffi.new("inv_modes *")
    c.size, c.replace = ffi.sizeof("inv_modes"), flag("replace", replace)
    c.rules = mode_rules(rules, keep, device)
    c.nrules = keep[-1]
    if memory is not None:
        keep.append(ffi.new("inv_memory *", session_mode(memory)))
        c.memory = keep[-1]
    return c, keep


def _set_modes(session: Any, change: Tuple[Any, List[Any]]) -> int:
    return int(lib.inv_session_set_modes(session, change[0]))


def _push_modes(session: Any, change: Tuple[Any, List[Any]]) -> int:
    return int(lib.inv_session_push_modes(session, change[0]))


def _warn_of_ranks() -> None:
    ranks = ffi.new("int[2]")
    by = text(lib.inv_world_apart(ranks, ranks + 1))
    if by or lib.inv_world_launched(ranks, ranks + 1):
        warnings.warn(f"{ranks[1]} processes were started{f' by {by}' if by else ''}, but from Python each trains its own model. "
                      f"Only `mpirun -n {ranks[1]} invonnx train` trains one model with all (docs/scaling.md)", stacklevel=4)


def _mean_from(options: Any) -> int:
    """The step after which averages are of several weights; 0: none are kept."""
    if not options.average:
        return 0
    return int(options.average_from) + (1 if options.average_decay else max(int(options.average_every), 1))


def _iterator(data: Any, name: str) -> Iterator[Any]:
    """The batches of an epoch."""
    try:
        if not isinstance(data, (str, bytes)):
            return iter(data)
    except TypeError:
        pass
    raise wrong_type(name, data, "batches: a list, a DataLoader or a generator of (x, y)")


def _whole_inputs(model: Model) -> Dict[str, int]:
    """First extents that the file fixes, beside one that it leaves open: such an input goes whole into every step."""
    firsts = {name: shape[0] for name, (_, shape) in model.inputs.items() if shape}
    fixed = {name: n for name, n in firsts.items() if isinstance(n, int) and n >= 0}
    return fixed if len(fixed) < len(firsts) else {}


class _Said(NamedTuple):
    """A setting of the session, which may be said before there is one."""

    function: Any
    arguments: Tuple[Any, ...]
    step: Optional[int] = None  #: the number that the next step gets by it
    plan: Optional[str] = None  #: of a state that it loads


class _Planned:
    """What a session is planned for beside its sizes: rows of a step, and by name shapes with -1 for the rows."""

    def __init__(self, main: int, extents: Mapping[str, Tuple[int, ...]]) -> None:
        self.main, self.extents = main, extents

    def takes(self, frame: Frame, target: Optional[Frame], rows: int) -> bool:
        """Whether it is for such extents, whatever the rows; what is missing in a call, the library tells."""
        if frame.planned is self and (target is None or target.planned is self):
            return True
        given = {**frame.extents(rows, self.extents), **(target.extents(rows, self.extents) if target else {})}
        if any(self.extents.get(name, extents) != extents for name, extents in given.items()):
            return False
        frame.planned = self
        if target:
            target.planned = self
        return True


class Trainer:
    """Trains a model; made by `Model.trainer`.

    Attributes
    ----------
    model : Model
    lr : float, Schedule or callable
        May be changed between steps.
    callbacks : list
        Called after each update with this object and the `Result`.
    """

    def __init__(self, model: Model, options: Mapping[str, Any], sizes: Mapping[str, int], lr: Rate,
                 callbacks: Sequence[Callable[..., Optional[bool]]]) -> None:
        self.model = model
        self._lock = model.context.lock
        self.lr: Rate = lr if callable(lr) else real("lr", lr, "a number, a Schedule, or a function of the step's number")
        if not isinstance(callbacks, (list, tuple)) or not all(map(callable, callbacks)):
            raise wrong_type("callbacks", callbacks, "a list of functions of a trainer and a Result")
        self.callbacks: List[Callable[..., Optional[bool]]] = list(callbacks)
        # says at once what is wrong
        c, _ = make_options({**{name: value for name, value in options.items() if name != "cost"}, **sizes})
        self._mean_from = _mean_from(c)
        if isinstance(lr, Schedule) and 0 < lr.total < self._mean_from:
            raise ValueError(f"average: the mean begins at step {self._mean_from} (average_from + average_every), but lr is a "
                             f"Schedule of {lr.total} steps. Begin earlier, or train longer")
        if options.get("cost") is not None:
            word("cost", options["cost"], COSTS)
        self._micro_batches = 1 if options.get("accumulate") is None else micro_batches(options["accumulate"])
        self._options = {**options, "purpose": lib.INV_FOR_TRAIN}
        _warn_of_ranks()
        self._changes = model.changes
        self._sizes: Dict[str, int] = {"batch": 0, **sizes}
        self._session: Optional[Session] = None
        self._frames: Dict[Tuple[str, ...], Frame] = {}
        self._gradient_frames: Dict[Tuple[str, ...], Frame] = {}
        self._halfway: Optional[Frame] = None
        self._names = tuple(model.inputs)
        self._whole = _whole_inputs(model)
        self._target = Frame(("target",))
        self._ahead: Tuple[Any, ...] = ()  # named by `next`; one may have been sent, so no others may be where it is
        self._planned: Optional[_Planned] = None  # of the session; None: it is not known, so that it is planned again
        self._later: List[_Said] = []  # before there is a session, in their order
        self._averages = False  # averages are to be read in place of weights
        self._settled = True  # the session has been told so
        self._log: Tuple[List[float], ...] = tuple([] for _ in _LOGGED)
        self._stopped = False

    def __repr__(self) -> str:
        o = self._options
        session = self._session
        plan = "no plan yet: the first step makes it" if session is None else repr(session)
        return (f"<invonnx.Trainer: {self.model!r}, loss {o['loss']}, optimizer {o.get('optimizer')}, memory {o.get('memory')}, "
                f"{self.steps} steps; {plan}>")

    # --- steps ---

    def step(self, x: Inputs, y: Optional[ArrayLike] = None, *, lr: Optional[float] = None) -> Result:
        """One training step: forward, backward, update.

        Parameters
        ----------
        x
            An array per input of the model: one alone, several in the model's order, or by name. Axis 0 is the batch, of
            shape [rows, ...] as `Model.inputs` has it.
            NumPy arrays and whatever speaks DLPack are read where they are; only what is not contiguous is copied.
        y
            The target, of shape [rows, ...]: labels, or what the output is to be, in its shape; None for losses without
            one.
        lr
            Learning rate of this step; None: as the trainer has it.

        Returns
        -------
        Result

        Raises
        ------
        NumericError
            The loss or a gradient is not finite. Nothing has changed.
        ShapeError
            An array has not the shape that the model wants, or the batch has no rows.
        ArgumentError, OutOfMemory, UnsupportedError
            The model cannot be trained so, as the first step finds out.
        """
        with self._lock:
            rate = self._rate() if lr is None else real("lr", lr)
            result = self._compute(lib.inv_session_step, x, y, "batch", rate)
            self._note(result, rate)
        return result

    def next(self, x: Inputs, y: Optional[ArrayLike] = None) -> None:
        """Names the batch behind the next step's, in a trainer with ``send_ahead=True``: it is sent to the device while
        the next step computes (`inv_session_next`). It is used if the step behind that is given the same arrays, which
        must not change meanwhile; what is wrong with it, that step says. `fit` does this by itself.

        Raises
        ------
        TypeError, ValueError
            There is no such input, or its type is none that the library takes.
        """
        with self._lock:
            if self._session is None:
                return  # nothing is known of its place yet
            names, values = named(x, self._names)
            frame, target = Frame(names), optional_frame(y)
            for i, value in enumerate(values):
                frame.put(i, value)
            self._ahead = (*self._ahead, (frame, target))
            lib.inv_session_next(self._session.pointer, frame.arrays, frame.n, target.arrays if target else ffi.NULL)

    def grad(self, x: Inputs, y: Optional[ArrayLike] = None) -> Result:
        """Loss and gradients without an update, in a trainer without an optimizer; `gradients` reads them.

        Raises
        ------
        ShapeError, ArgumentError, NumericError
            As of `step`.
        """
        return self._compute(lib.inv_session_grad, x, y, "batch")

    def accumulate(self, x: Inputs, y: Optional[ArrayLike] = None) -> Result:
        """A micro-batch of a step, in a trainer with ``accumulate=True``; `update` ends the step.

        Raises
        ------
        ArgumentError
            The trainer was made without `accumulate`.
        ShapeError, NumericError
            As of `step`.
        """
        return self._compute(lib.inv_session_accumulate, x, y, "batch")

    def update(self, *, lr: Optional[float] = None) -> Result:
        """The update from what has been accumulated. The result is of all micro-batches together: the mean loss, by their
        weights, and the largest drift.

        Raises
        ------
        ArgumentError
            Nothing has been accumulated.
        NumericError
            A gradient is not finite, or no label counts. Nothing has changed.
        """
        rate = self._rate() if lr is None else real("lr", lr)
        result = self._opened().run(lib.inv_session_update, None, rate)
        self._note(result, rate)
        return result

    def fit(self, data: Data, *, epochs: int = 1) -> Dict[str, Array]:
        """A step for each batch of `data`, `epochs` times over, until a callback returns True. With ``accumulate=K`` a step
        is made of K batches, the last one of an epoch of what is left; of a step that an exception ends in its middle nothing
        is updated, and the next one begins anew. With ``send_ahead=True`` a batch is taken from
        `data` before the step with the one in front of it, and its arrays must stay as they are until its own step, or
        the end of `fit`.

        Parameters
        ----------
        data
            Batches (x, y) as `step` takes them, or x alone for losses without a target: a list, a DataLoader, a generator.
        epochs
            How often they are gone through. A generator can be gone through once.

        Returns
        -------
        dict
            The log.

        Raises
        ------
        TypeError, ValueError
            There are no batches, or `epochs` is more than 1 and `data` is a generator.
        NumericError, ShapeError
            As of `step`.
        """
        whole("epochs", epochs, 1)
        if epochs > 1 and _iterator(data, "data") is data:
            raise ValueError(f"data is an iterator, which one epoch uses up, but epochs is {epochs}. Give a list or a DataLoader, "
                             "or call fit once per epoch with a new iterator")
        if not self._micro_batches:
            raise ValueError("accumulate is True. Call accumulate and update yourself, or give accumulate=K, the number of batches "
                             "in a step of fit")
        self._stopped = False
        batches = self._epochs(data, epochs)
        begun = False
        try:
            for x, y, last in self._behind_each(batches) if self._options.get("send_ahead") else batches:
                if self._micro_batches == 1:
                    self.step(x, y)
                else:
                    begun = True
                    self.accumulate(x, y)
                    if last:
                        self.update()
                if self._stopped:
                    break
        finally:
            self._end_fit(begun)
        self._warn_of_average(3)
        return self.log

    def _end_fit(self, begun: bool) -> None:
        """Of a batch that has been named and has no step, the arrays are the caller's again. A step that `fit` has begun, and
        that an exception ends in its middle, is not gone on with: what has been accumulated for it is dropped."""
        with self._lock:
            if self._session is not None:
                if self._ahead:
                    lib.inv_session_next(self._session.pointer, ffi.NULL, 0, ffi.NULL)
                if begun:
                    lib.inv_session_set_step(self._session.pointer, self.steps, 0)
            self._ahead = ()

    def _epochs(self, data: Data, epochs: int) -> Iterator[Tuple[Inputs, Any, bool]]:
        """x and y of each batch, and whether it is the last one of its step."""
        k = self._micro_batches
        for epoch in range(epochs):
            n, held = 0, None
            for batch in _iterator(data, "data"):
                if held is not None:
                    n += 1
                    yield (*held, n % k == 0)
                held = _pair(batch)
                if k == 1:
                    n += 1
                    yield (*held, True)
                    held = None
            if held is not None:
                n += 1
                yield (*held, True)
            if n == 0:
                raise ValueError(f"data has no batches in epoch {epoch + 1} of {epochs}")

    def _behind_each(self, batches: "Iterable[Tuple[Inputs, Any, bool]]") -> "Iterator[Tuple[Inputs, Any, bool]]":
        """The batches, each when the one behind it has been named."""
        held = None
        for x, y, last in batches:
            values = named(x, self._names)
            batch = dict(zip(values[0], map(as_array, values[1]))), None if y is None else as_array(y)
            if held is not None:
                self.next(*batch)
                yield held
            held = (*batch, last)
        if held is not None:
            yield held

    def forward(self, x: Inputs) -> Mapping[str, Array]:
        """The forward part of a step, in a trainer with ``loss="outside"`` and no optimizer. The arrays of x are read
        again by `backward`, and must not change until then.

        Returns
        -------
        mapping
            Outputs by name: read-only views, valid until the next call.

        Raises
        ------
        ShapeError, ArgumentError
            As of `step`.
        """
        frame, _, session = self._bind(x, None, "batch")
        session.run(lib.inv_session_forward, frame)
        self._halfway = frame
        return Views(session, lib.INV_GET_OUTPUT)

    def backward(self, gradients: Mapping[str, ArrayLike]) -> Result:
        """The backward part of it, from the gradients of your loss in the outputs by their names; `gradients` and
        `input_gradients` read what it gives.

        Raises
        ------
        ArgumentError
            No `forward` came before, or the gradient of an output is missing.
        ShapeError
            A gradient has not the shape of its output.
        """
        names = tuple(gradients)
        frame = self._gradient_frames.get(names)
        if frame is None:
            frame = self._gradient_frames[names] = Frame(names)
        for i, value in enumerate(gradients.values()):
            frame.put(i, value)
        try:
            return self._opened().run(lib.inv_session_backward, frame)
        finally:
            frame.release()
            if self._halfway is not None:
                self._halfway.release()

    # --- evaluation ---

    def evaluate(self, x: Inputs, y: Optional[ArrayLike] = None) -> Result:
        """Loss of a batch with dropout off and running statistics; `outputs` reads what the model gave.

        Raises
        ------
        ShapeError, ArgumentError
            As of `step`.
        """
        return self._compute(lib.inv_session_eval, x, y, "eval_batch")

    def evaluate_all(self, data: Data) -> Result:
        """The means over batches: `loss` by the weights of the batches, `rows` and `correct` summed.

        Parameters
        ----------
        data
            Batches (x, y), as `fit` takes them.

        Returns
        -------
        Result

        Raises
        ------
        ValueError
            There are no batches.
        """
        loss = weight = 0.0
        rows = correct = n = 0
        for x, y in map(_pair, _iterator(data, "data")):
            n += 1
            r = self.evaluate(x, y)
            if r.weight > 0:
                loss, weight = loss + r.loss * r.weight, weight + r.weight
            rows, correct = rows + r.rows, correct + r.correct
        if n == 0:
            raise ValueError("data has no batches")
        return Result(loss / weight if weight else float("nan"), rows, correct, 0.0, 0, weight, float("nan"))

    # --- what there is to read, and to write ---

    def outputs(self) -> Mapping[str, Array]:
        """Outputs of the newest call by name: read-only views, valid until the next call.

        Raises
        ------
        RuntimeError
            No batch has been seen yet.
        """
        return Views(self._opened(), lib.INV_GET_OUTPUT)

    def gradients(self) -> Mapping[str, Array]:
        """Gradients of parameters by name: read-only views, valid until the next call. Of `grad`, and with
        ``accumulate=True``; an optimizer alone lets them go when they have been used.

        Raises
        ------
        RuntimeError
            No batch has been seen yet, or the trainer keeps no gradients.
        """
        return self._gradients(lib.INV_GET_GRAD, "optimizer=None or accumulate=True")

    def input_gradients(self) -> Mapping[str, Array]:
        """The same of inputs, in a trainer with ``input_grads=True``.

        Raises
        ------
        RuntimeError
            No batch has been seen yet, or the trainer keeps none.
        """
        return self._gradients(lib.INV_GET_INPUT_GRAD, "input_grads=True")

    @property
    def parameters(self) -> Parameters:
        """Parameters and running statistics by name; ``parameters["fc.weight"][:] = 0`` writes."""
        return Parameters(self._opened(), lib.INV_GET_PARAM)

    @property
    def optimizer_state(self) -> Parameters:
        """State of the optimizer, ``"fc.weight/moment1"`` and the like, and averages, ``"fc.weight/average"``."""
        return Parameters(self._opened(), lib.INV_GET_OPTIM)

    @property
    def steps(self) -> int:
        """Number of the next step; random numbers (dropout) are a function of the seed and this."""
        if self._session is not None:
            return int(lib.inv_session_steps(self._session.pointer))
        return next((said.step for said in reversed(self._later) if said.step is not None), 0)

    def set_step(self, step: int, micro: int = 0) -> None:
        """Goes on with another number (`inv_session_set_step`).

        Parameters
        ----------
        step
            The number of the next step, from 0.
        micro
            How many micro-batches of it have been before.

        Raises
        ------
        TypeError, ValueError
            Not a whole number from 0 to 2**63 - 1.
        """
        number, batches = (whole(name, value) for name, value in (("step", step), ("micro", micro)))
        self._say(_Said(lib.inv_session_set_step, (number, batches), number))

    def set_group_lr(self, group: int, factor: float) -> None:
        """The learning rate of a group, counted from 0, is `factor` times the step's from now on.

        Raises
        ------
        TypeError, ValueError
            There is no such group, or the factor is no number, is negative, or not finite.
        """
        groups = len(self._options.get("groups") or ())
        place, times = whole("group", group), real("factor", factor)
        if place >= groups:
            raise ValueError(f"there is no group {place}: this trainer has {groups}, counted from 0")
        if not 0 <= times < float("inf"):
            raise wrong_value("factor", factor, "a number, 0 or more")
        self._say(_Said(lib.inv_session_set_group_lr, (place, times)))

    @property
    def log(self) -> Dict[str, Array]:
        """Of each update so far: ``step``, ``loss``, ``lr``, ``grad_norm``, ``drift``, ``fallbacks``."""
        whole = ("step", "fallbacks")
        return {name: np.array(values, np.int64 if name in whole else np.float64)
                for name, values in zip(_LOGGED, self._log)}

    def report(self) -> Dict[str, Any]:
        """Plan, memory by class and over the step, blocks, drift (`inv_session_report`).

        Raises
        ------
        RuntimeError
            No batch has been seen yet.
        """
        return self._opened().report()

    def explain(self) -> Dict[str, Any]:
        """As `Model.explain`, of the session as it is.

        Raises
        ------
        RuntimeError
            No batch has been seen yet.
        """
        return self._opened().explain()

    # --- files ---

    def save(self, path: Path, *, layout: str = "keep", form: str = "default") -> None:
        """Writes the model with the present weights; everything else is as it was loaded.

        Parameters
        ----------
        layout
            Where tensors go: ``"keep"``, ``"inline"``, ``"external"`` (`inv_layout`).
        form
            ``"default"`` and ``"inference"``: batch normalization and dropout as inference wants them; ``"as_loaded"``.

        Raises
        ------
        FileError
            The file cannot be written; what was there stays.
        RuntimeError
            No batch has been seen yet.
        """
        self.model.write(path, self._opened().pointer, layout, form)

    def save_adapters(self, path: Path) -> None:
        """Writes the adapters of `Model.add_lora`, or of the file, with what they have learnt, in onnxruntime's format.

        Raises
        ------
        ArgumentError
            There are none.
        FileError
            The file cannot be written.
        """
        session = self._opened()
        session.context.call(lib.inv_model_save_adapters, self.model.pointer, session.pointer, os.fsencode(path))

    def save_state(self, path: Path, note: str = "") -> None:
        """A checkpoint: all that it takes to go on as if the training had not stopped (`inv_session_save_state`).

        Parameters
        ----------
        note
            Text of yours, which `load_state` gives back.

        Raises
        ------
        ArgumentError
            A step is in its middle: accumulated and not updated.
        FileError
            The file cannot be written; what was there stays.
        """
        session = self._opened()
        session.context.call(lib.inv_session_save_state, session.pointer, os.fsencode(path), note.encode())

    def load_state(self, path: Path) -> str:
        """Goes on from a checkpoint of the same model and optimizer. With its plan, if that is of this mode and batch:
        then, with the same batches, following steps give the same bits. The `Trainer` may be new: then its session is
        made with the first step.

        Returns
        -------
        str
            The note.

        Raises
        ------
        FileError
            The file cannot be read.
        FormatError
            It is no state, or damaged; the message says what of it.
        ArgumentError, ShapeError
            It is of another model or optimizer. Without a session that is an error of the first step.
        """
        file = os.fsencode(path)
        if self._averages and self._session is None:
            raise ArgumentError(_AVERAGED, "E_ARG")
        note, plan, first = self._read_state(file)
        load = _Said(lib.inv_session_load_state, (file, ffi.NULL), first, plan)
        if self._session is None:
            self._as_made()
            self._later = [*(said for said in self._later if said.plan is None), load]
            return note
        self._say(load)
        if plan and plan != self._session.plan():
            try:
                self._session.resize({name: n for name, n in self._sizes.items() if name != "batch"}, plan=plan)
            except ArgumentError:
                pass  # it is of another mode or size: the session keeps its own
        return note

    def _read_state(self, path: bytes) -> Tuple[str, str, int]:
        """Note, plan, and number of the next step."""
        context = self.model.context
        note, plan = ffi.new("char **"), ffi.new("char **")
        step = int(context.json(lib.inv_state_inspect, context.pointer, path)["step"])
        context.call(lib.inv_state_read, context.pointer, path, note, plan)
        found = text(note[0]), text(plan[0]), step
        lib.inv_free(context.pointer, note[0])
        lib.inv_free(context.pointer, plan[0])
        return found

    # --- scopes ---

    @contextmanager
    def modes(self, memory: "Optional[Memory]" = None, rules: "Mapping[str, Memory]" = {}, *,
              replace: bool = False) -> Iterator[None]:
        """Other memory modes for a while; at the end of the ``with`` they are as before. Scopes nest.

        Parameters
        ----------
        memory
            The mode of the session; None: as it is.
        rules
            Modes of single values or blocks, by globs (`inv_mode_rule`).
        replace
            The rules and the `keep` of before are dropped; else these come behind them.

        Raises
        ------
        ArgumentError
            A glob fits nothing.
        OutOfMemory
            The budget cannot be met; modes are as they were.
        TypeError, ValueError
            There is no such mode.
        """
        push = _Said(_push_modes, (_change_of(memory, rules, replace, self._options.get("device") or "cpu"),))
        self._say(push)
        try:
            yield
        finally:
            if self._session is None:  # as a pop does: whatever modes were said since
                at = self._later.index(push)
                since = [said for said in self._later[at:] if said.function not in (_push_modes, _set_modes)]
                self._later = self._later[:at] + since
            else:
                self._say(_Said(lib.inv_session_pop_modes, ()))

    def set_modes(self, memory: "Optional[Memory]" = None, rules: "Mapping[str, Memory]" = {}, *,
                  replace: bool = False) -> None:
        """The same for good (`inv_session_set_modes`).

        Raises
        ------
        ArgumentError, OutOfMemory, TypeError, ValueError
            As `modes` does. Before the first step a glob that fits nothing is an error of that step.
        """
        self._say(_Said(_set_modes, (_change_of(memory, rules, replace, self._options.get("device") or "cpu"),)))

    @contextmanager
    def averages(self) -> Iterator[None]:
        """Averages take the weights' place meanwhile, for evaluation and `save`, in a trainer with ``average=True``.

        Raises
        ------
        ValueError
            The trainer keeps no averages.
        """
        if not self._options.get("average"):
            raise ValueError("this trainer keeps no averages of weights: make one with average=True")
        self._as_made()
        self._warn_of_average(4)
        before = self._averages
        try:
            self._settled, self._averages = False, True
            self._settle()
            yield
        finally:
            self._settled, self._averages = False, before
            self._settle()

    def _warn_of_average(self, level: int) -> None:
        if 0 < self.steps < self._mean_from:
            warnings.warn(f"after step {self.steps} the averages are the weights of a single step; the mean begins at step "
                          f"{self._mean_from} (average_from + average_every)", stacklevel=level)

    def _settle(self) -> None:
        """Tells the session whether averages are wanted. Ctrl-C may come between any two lines, so each call asks again."""
        if self._settled:
            return
        if self._session is None:
            self._later.append(_Said(lib.inv_session_use_average, (self._averages,)))
        else:
            self._session.context.call(lib.inv_session_use_average, self._session.pointer, self._averages)
        self._settled = True

    # --- the session ---

    def open(self, x: Inputs, y: Optional[ArrayLike] = None) -> None:
        """Makes the session for batches like this one, which the first step does otherwise.

        Raises
        ------
        ShapeError, UnsupportedError, ArgumentError, OutOfMemory
            The model cannot be trained so.
        """
        with self._lock:
            frame, _, _ = self._bind(x, y, "batch")
            self._release(frame)

    @property
    def session(self) -> Session:
        """The session, for those who extend this class."""
        return self._opened()

    def _as_made(self) -> None:
        if self._changes != self.model.changes:
            raise RuntimeError("the head or the adapters of the model have changed since this trainer was made. Make "
                               "another trainer")

    def _opened(self) -> Session:
        self._as_made()
        self._settle()
        if self._session is None:
            raise RuntimeError("there is no session yet: the first step, or `open`, makes it")
        return self._session

    def _gradients(self, what: int, wants: str) -> Views:
        found = Views(self._opened(), what)
        if not len(found):
            raise RuntimeError(f"this trainer keeps no such gradients: make one with {wants}")
        return found

    def _rate(self) -> float:
        lr = self.lr
        return real("lr", lr(self.steps) if callable(lr) else lr, "a number for each step")

    def _compute(self, function: Any, x: Inputs, y: Optional[ArrayLike], size: str, *more: Any) -> Result:
        with self._lock:
            frame, target, session = self._bind(x, y, size)
            try:
                result = session.run(function, frame, target, *more)
            finally:
                self._release(frame)
            if size == "batch":
                self._ahead = self._ahead[-1:]  # this call has used, or overwritten, what was sent before it
            return result

    def _bind(self, x: Inputs, y: Optional[ArrayLike], size: str) -> Tuple[Frame, Any, Session]:
        self._as_made()
        self._settle()
        names, values = named(x, self._names)
        frame = self._frames.get(names)
        if frame is None:
            frame = self._frames[names] = Frame(names, self._whole)
        for i, value in enumerate(values):
            frame.put(i, value)
        target = ffi.NULL
        if y is not None:
            self._target.put(0, y)
            target = self._target.arrays
        rows, given = frame.rows(), None if y is None else self._target
        session, planned = self._session, self._planned
        tail = "tail_batch" if size == "batch" else "eval_tail"
        known = planned is not None and planned.takes(frame, given, rows) and rows in (self._sizes[size], self._sizes[tail])
        if session is None or not (known or rows == 0 or frame.n == 0):  # a batch of nothing the library refuses
            try:
                session = self._plan_for(frame, given, size, tail, rows)
            except BaseException:
                self._release(frame)
                raise
        return frame, target, session

    def _release(self, frame: Frame) -> None:
        frame.release()
        self._target.release()

    def _note(self, result: Result, lr: float) -> None:
        for values, value in zip(self._log, (self.steps - 1, result.loss, lr, result.grad_norm, result.drift,
                                             result.fallbacks)):
            values.append(value)
        for callback in self.callbacks:
            if callback(self, result):
                self._stopped = True

    def _plan_for(self, frame: Frame, target: Optional[Frame], size: str, tail: str, rows: int) -> Session:
        """The session, for batches of this size and these extents, too: made, or planned again with all that has become
        of it. What it is planned for is not known meanwhile: Ctrl-C may come when it has just been planned."""
        former, sizes = self._planned, dict(self._sizes)
        if rows > sizes[size]:
            sizes[tail] = sizes[size] or sizes[tail]
            sizes[size] = rows
        elif rows < sizes[size]:
            sizes[tail] = rows
        main = sizes["batch"] or (former.main if former else rows)
        others = {name: n for name, n in sizes.items() if name != "batch"}
        known = former.extents if former else {}
        given = {**frame.extents(rows, known), **(target.extents(rows, known) if target else {})}
        shapes, of_target = frame.with_rows(rows, main, known), target.with_rows(rows, main, known) if target else None
        self._planned = None
        try:
            if self._session is None:
                self._make(shapes, of_target, others)
            elif former is None or main != former.main or not former.takes(frame, target, rows):
                self._session.resize(others, shapes, of_target)
            elif any(self._sizes[name] != n for name, n in others.items()):
                self._session.resize(others)
        except Error:
            self._planned = former  # it is as it was
            raise
        self._sizes, self._planned = sizes, _Planned(main, {**known, **given})
        return self._opened()

    def _make(self, shapes: Frame, target: Optional[Frame], sizes: Mapping[str, int]) -> None:
        """The session, as whatever was said before the first batch wants it."""
        options = {**self._options, **sizes}
        plan = None
        for said in self._later:
            if said.plan is not None:
                plan, options["first_step"] = said.plan, said.step
        try:
            session = Session(self.model.context, self.model.pointer, shapes, target,
                              {**options, "plan_text": plan or options.get("plan_text")})
        except ArgumentError:
            if not plan:
                raise
            # The state's plan is of another mode or size.
            session = Session(self.model.context, self.model.pointer, shapes, target, options)
        for said in list(self._later):
            try:
                session.context.call(said.function, session.pointer, *said.arguments)
            except Error:
                if said.plan is None and said.function is not _push_modes:  # a file may come back, a scope ends
                    self._later.remove(said)
                raise
        self._session = session
        self._later = []

    def _say(self, said: _Said) -> None:
        """A setting of the session; as long as there is none, it is kept for the one to come."""
        if self._session is None:
            self._as_made()
            self._later.append(said)
        else:
            session = self._opened()
            session.context.call(said.function, session.pointer, *said.arguments)

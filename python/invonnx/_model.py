# SPDX-License-Identifier: Apache-2.0
"""Models: what `load` gives."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from ._arrays import Array, ArrayLike, Frame, Inputs, as_array, is_array, named, optional_frame
from . import _values
from ._core import Context, Progress
from ._native import ffi, lib
from ._options import Loss, Memory, Optimizer, Options, Schedule, Unpack, enum_value, make_options
from ._plan import Plan
from ._session import Session, Views

if TYPE_CHECKING:
    from ._trainer import Trainer

Path = Union[str, "os.PathLike[str]"]
#: Per input its shape, or an array of that shape; extents below 0, and inputs left out, are sought.
Shapes = Mapping[str, Union[Sequence[int], ArrayLike]]

#: ONNX's words for what NumPy calls otherwise.
_TYPES = {"float": "float32", "double": "float64", "bool": "bool"}


def encoded(path: Path) -> bytes:
    try:
        return os.fsencode(path)
    except TypeError:
        raise _values.wrong_type("path", path, "text or a path") from None


def load(path: Path, *, plugins: Sequence[Path] = (), rules: bool = True, constants: Sequence[str] = (),
         progress: Optional[Progress] = None) -> Model:
    """Maps and imports an ONNX file.

    Parameters
    ----------
    path
        The file. It must not change while the model lives; it may be removed or replaced.
    plugins
        Inverse rules and operators to be added (docs/plugin-abi.md): shared objects, texts of rules, ONNX files.
    rules
        False: without the built-in inverse rules.
    constants
        Names of Constant nodes and such that are parameters (`inv_model_load_with`).
    progress
        Called within what takes long, with what is being done and how far it is, from 0 to 1. It must not use the
        model.

    Returns
    -------
    Model

    Raises
    ------
    FileError, FormatError, UnsupportedError
        With all that was found.
    """
    context = Context(rules, progress)
    for plugin in plugins:
        context.call(lib.inv_context_load_plugin, context.pointer, encoded(plugin))
    keep: List[Any] = []
    out = ffi.new("inv_model **")
    context.call(lib.inv_model_load_with, context.pointer, encoded(path),
                 _values.strings("constants", constants, keep), len(constants), out)
    return Model(context, out[0])


def read_adapters(path: Path) -> Dict[str, Any]:
    """What a file of adapters (.onnx_adapter) holds: versions, parameters with type, shape and bytes.

    Raises
    ------
    FileError, FormatError
        The file cannot be read, or is no such file.
    """
    context = Context(True, None)
    return context.json(lib.inv_adapters_inspect, context.pointer, encoded(path))


def _type_of(value: Mapping[str, Any]) -> Tuple[str, Optional[Tuple[Any, ...]]]:
    shape = value.get("shape")
    return str(value["dtype"]), None if shape is None else tuple(shape)


class Model:
    """An imported model (`inv_model`); made by `load`.

    What changes it, `add_lora`, `set_head` and the like, comes before trainers are made; those of before say so.

    Attributes
    ----------
    inputs, outputs : dict
        Name to (element type, shape); extents that are open are names or None, and so is a shape that the file does not
        tell. Inputs that are carried along (docs/files.md) are not fed, and not among them.
    path : str
        The file.
    parameters : int
        Elements of the initializers that are weights as far as the file tells.
    """

    def __init__(self, context: Context, pointer: Any) -> None:
        self.context = context
        self.pointer: Any = context.own(pointer, lib.inv_model_destroy)
        self.changes = 0  # trainers of before do not plan again
        self._look()

    def _changed(self) -> None:
        self.changes += 1
        self._look()

    def _look(self) -> None:
        about = self.inspect()
        self.inputs = {each["name"]: _type_of(each) for each in about["inputs"] if not each.get("carried")}
        self.outputs = {each["name"]: _type_of(each) for each in about["outputs"]}
        self.path = str(about["path"])
        self.parameters = sum(int(np.prod(each["shape"], dtype=np.int64)) for each in about["initializers"]
                              if each.get("trainable"))

    def __repr__(self) -> str:
        def listed(values: Dict[str, Tuple[str, Optional[Tuple[Any, ...]]]]) -> str:
            return ", ".join(f"{n}: {t}" + ("" if s is None else f"[{', '.join(map(str, s))}]") for n, (t, s) in values.items())

        return (f"<invonnx.Model {self.path}: ({listed(self.inputs)}) -> ({listed(self.outputs)}), {self.parameters} parameters>")

    # --- looking ---

    def inspect(self) -> Dict[str, Any]:
        """Inputs, outputs, opsets, initializers, operators and what each lacks (as `invonnx inspect --json`).

        Raises
        ------
        OutOfMemory
            There is no memory for the report.
        """
        return self.context.json(lib.inv_model_inspect, self.pointer)

    def explain(self, *, loss: Optional[Loss] = None, batch: Optional[int] = None, inputs: Optional[Shapes] = None,
                target: Optional[ArrayLike] = None, memory: Memory = "auto",
                **options: Unpack[Options]) -> Dict[str, Any]:
        """Why blocks were found or refused, and with a loss how backward gets what it reads (docs/explain.md).

        Parameters are those of `plan`; without a loss the model is looked at as it runs.

        Raises
        ------
        ShapeError, UnsupportedError, TypeError, ValueError
            As of `plan`.
        """
        if loss is not None:
            return self.plan(loss=loss, batch=batch, inputs=inputs, target=target, memory=memory, **options).explain()
        return self._planned(lib.INV_FOR_RUN, batch, inputs, None, {**options, "memory": memory}).explain()

    def plan(self, *, loss: Loss, batch: Optional[int] = None, inputs: Optional[Shapes] = None,
             target: Optional[ArrayLike] = None, optimizer: Optional[Optimizer] = "sgd", memory: Memory = "auto",
             **options: Unpack[Options]) -> Plan:
        """What a training step would need, from shapes alone.

        Parameters
        ----------
        loss
            As `inv_loss`: ``"cross_entropy"``, ``"mse"``, ``"bce"``, ``"huber"``, ``"nll"``, ``"output"``.
        batch
            Rows of a step, where the model leaves that open; what is left open is sought by trying.
        inputs
            Shapes of inputs, where they are to be others.
        target
            An array of the target's shape and type; None: of the usual kind.
        optimizer
            None: the plan is of gradients alone.
        memory
            How values for backward are had (`inv_memory`).
        **options
            See `Options`; among them `budget`, in bytes or as ``"512MiB"``.

        Returns
        -------
        Plan
            Shown as a picture in a notebook.

        Raises
        ------
        OutOfMemory
            No plan is within the budget; `details` say what would be.
        ShapeError, UnsupportedError, ArgumentError
            The model cannot be trained so: shapes, operators, what an option names.
        TypeError, ValueError
            There is no such option, or it does not take this value; the message names it.
        """
        values = {**options, "loss": loss, "optimizer": optimizer, "memory": memory}
        return Plan(self, batch, self._planned(lib.INV_FOR_TRAIN, batch, inputs, target, values),
                    lambda changes: self._planned(lib.INV_FOR_TRAIN, batch, inputs, target, {**values, **changes}))

    def check(self, x: Inputs, y: Optional[ArrayLike] = None, *, loss: Optional[Loss] = None,
              **options: Unpack[Options]) -> Dict[str, Any]:
        """Tries every inverse on data: errors of round trips, condition numbers, what the drift limit refuses
        (`inv_model_check`, docs/numerics.md).

        Raises
        ------
        ShapeError, UnsupportedError, ArgumentError
            As of `plan`; findings are no failure.
        """
        frame, target = self.frame(x), optional_frame(y)
        c, keep = make_options({**options, "loss": loss})
        c.purpose, c.inputs, c.ninputs = lib.INV_FOR_TRAIN, frame.arrays, frame.n
        c.target = target.arrays if target else ffi.NULL
        found = self.context.json(lib.inv_model_check, self.pointer, c)
        del keep
        return found

    # --- running and training ---

    def run(self, x: Inputs, **options: Unpack[Options]) -> Dict[str, Array]:
        """Runs the model once as its file says, with the weights as they were loaded. To run many batches, evaluate
        them by a `Trainer`.

        Returns
        -------
        dict
            Copies of the outputs.

        Raises
        ------
        ShapeError, TypeError, ValueError
            Arrays are not those that the model takes.
        UnsupportedError
            An operator cannot be run.
        """
        frame = self.frame(x)
        values = {"constants_as_needed": True, **options, "purpose": lib.INV_FOR_RUN}
        session = Session(self.context, self.pointer, frame, None, values)
        session.run(lib.inv_session_eval, frame, ffi.NULL)
        return {name: session.get(lib.INV_GET_OUTPUT, name) for name in session.names(lib.INV_GET_OUTPUT)}

    def trainer(self, *, loss: Loss, optimizer: Optional[Optimizer] = "sgd", memory: Memory = "auto",
                lr: "float | Schedule | Callable[[int], float]" = 1e-3, tail_batch: int = 0, eval_batch: int = 0,
                eval_tail: int = 0, callbacks: Sequence[Callable[..., Optional[bool]]] = (),
                **options: Unpack[Options]) -> Trainer:
        """What trains the model. Memory is planned and taken by the first step, for the shapes of its batch.

        Parameters
        ----------
        loss, memory, **options
            As for `plan`; a plan's `text` as `plan_text` is used instead of a search.
        optimizer
            None: `Trainer.grad` gives gradients, and nothing is updated.
        lr
            Learning rate, or what gives it by the number of the step: a `Schedule`, or any function.
        tail_batch, eval_batch, eval_tail
            Rows of the last, smaller batch, and of those of evaluation, to be planned for at once. Batches of other
            sizes are planned for when they come, which searches again and moves the training's state.
        callbacks
            Called after each update with the trainer and the `Result`; one that returns True ends `Trainer.fit`.

        Returns
        -------
        Trainer

        Raises
        ------
        TypeError, ValueError
            There is no such option, or it does not take this value; the message names it. What the
            model cannot do, the first step says.
        """
        from ._trainer import Trainer

        sizes = {"tail_batch": tail_batch, "eval_batch": eval_batch, "eval_tail": eval_tail}
        return Trainer(self, {**options, "loss": loss, "optimizer": optimizer, "memory": memory}, sizes, lr, callbacks)

    def add_lora(self, targets: Sequence[str], *, rank: int = 8, alpha: float = 16.0, dropout: float = 0.0,
                 seed: int = 0) -> Dict[str, Any]:
        """Adds low-rank adapters beside weights (`inv_model_add_lora`, docs/fine-tuning.md); trainers made from then on
        train these, and of the model's own parameters only those of `train_only`.

        Parameters
        ----------
        targets
            Globs of names of weights, or of the nodes that read them.
        rank, alpha, dropout, seed
            What adapters give is multiplied by alpha / rank; `dropout` is a share of their input.

        Returns
        -------
        dict
            Weights, nodes and shapes.

        Raises
        ------
        ArgumentError
            A glob fits no weight, the rank is too large, or a weight has an adapter.
        """
        keep: List[Any] = []
        c = ffi.new("inv_lora *", {
            "rank": _values.whole("rank", rank, 1), "alpha": _values.real("alpha", alpha),
            "dropout": _values.real("dropout", dropout), "seed": _values.whole("seed", seed, 0, 2**64 - 1)})
        c.size = ffi.sizeof("inv_lora")
        c.targets, c.ntargets = _values.strings("targets", targets, keep), len(targets)
        found = self.context.json(lib.inv_model_add_lora, self.pointer, c)
        self._changed()
        return found

    # --- a part of somebody else's model ---

    def set_head(self, classes: int, *, node: Optional[str] = None, output: Optional[str] = None,
                 seed: int = 0) -> Dict[str, Any]:
        """Gives a classifier another number of classes: the last weight before the output, and its bias, begin anew
        (`inv_model_set_head`, docs/fine-tuning.md). Before trainers are made, and before adapters are added.

        Parameters
        ----------
        classes
            How many there are from now on.
        node
            The head; None: the last product before the output.
        output
            The output that it is sought from; None: the only one of floating point.
        seed
            Key of what the new weights are drawn from.

        Returns
        -------
        dict
            Node, classes before and now, names of weight and bias.

        Raises
        ------
        ArgumentError
            There is no such head, or what follows is made for the former classes.
        """
        keep: List[Any] = []
        c = ffi.new("inv_head *", {"classes": _values.whole("classes", classes, 1),
                                   "seed": _values.whole("seed", seed, 0, 2**64 - 1)})
        c.size = ffi.sizeof("inv_head")
        for name, value in (("node", node), ("output", output)):
            if value is not None:
                setattr(c, name, _values.chars(name, value, keep, "the name of a node or module" if name == "node" else "a name"))
        found = self.context.json(lib.inv_model_set_head, self.pointer, c)
        self._changed()
        return found

    def adapters(self) -> Dict[str, Any]:
        """The adapters that the model has, of its file or added since: weight, nodes, rank, shapes, bytes.

        Raises
        ------
        ArgumentError
            Nodes or shapes are not those of an adapter.
        """
        return self.context.json(lib.inv_model_adapters, self.pointer)

    def save_adapters(self, path: Path) -> None:
        """Writes them by themselves, as they were loaded, in onnxruntime's format (.onnx_adapter); those that are
        trained are written by `Trainer.save_adapters`.

        Raises
        ------
        ArgumentError
            There are none.
        FileError
            The file cannot be written; what was there stays.
        """
        self.context.call(lib.inv_model_save_adapters, self.pointer, ffi.NULL, encoded(path))

    def load_adapters(self, path: Path) -> Dict[str, Any]:
        """Puts the adapters of such a file on the model, in place of those that it has.

        Returns
        -------
        dict
            What the file holds, as `read_adapters`, and `base`: "same" if it was trained beside these weights, "other"
            if it was not, or "unknown" (docs/fine-tuning.md).

        Raises
        ------
        FileError, FormatError
            The file cannot be read.
        ArgumentError
            A weight is missing or of another shape.
        """
        found = self.context.json(lib.inv_model_load_adapters, self.pointer, encoded(path))
        self._changed()
        return found

    def merge_adapters(self) -> Dict[str, Any]:
        """Adds them, as they were loaded and not as a trainer has them, to the weights that they stand beside, and removes
        their nodes; `save` writes that.

        Raises
        ------
        ArgumentError
            There are none, or something else reads a weight that has one.
        """
        found = self.context.json(lib.inv_model_merge_adapters, self.pointer)
        self._changed()
        return found

    def free_adapters(self) -> None:
        """Makes them optional inputs of the model, which takes the files of `save_adapters` then; without them it computes
        what it did before it had any.

        Raises
        ------
        ArgumentError
            There are none.
        """
        self.context.call(lib.inv_model_free_adapters, self.pointer)
        self._changed()

    # --- writing ---

    def save(self, path: Path, *, layout: str = "keep", form: str = "default") -> None:
        """Writes the model as it was loaded, adapters included. `layout` and `form`: as `Trainer.save`.

        Raises
        ------
        FileError
            The file cannot be written; what was there stays.
        """
        self.write(path, ffi.NULL, layout, form)

    def write(self, path: Path, session: Any, layout: str, form: str) -> None:
        """Writes the model with the weights of an `inv_session`.

        Raises
        ------
        FileError
            The file cannot be written; what was there stays.
        ValueError
            There is no such layout or form.
        """
        self._set_form(layout, form)
        self.context.call(lib.inv_model_save, self.pointer, session, encoded(path))

    def rewrite(self, path: Path, *, batch: Optional[int] = None, inputs: Optional[Shapes] = None,
                layout: str = "keep", form: str = "default") -> Dict[str, Any]:
        """Writes the model with its matched blocks as functions, and beside each the one that inverts it
        (`inv_model_rewrite`, docs/rewriting.md).

        Returns
        -------
        dict
            What became of each block.

        Raises
        ------
        FileError, ShapeError, UnsupportedError
            The file cannot be written, or the model has no such shapes.
        """
        self._set_form(layout, form)
        c, keep = self._shape_options(7 if batch is None else batch, inputs)
        found = self.context.json(lib.inv_model_rewrite, self.pointer, c, encoded(path))
        del keep
        return found

    def reverse(self, *, given: Sequence[str] = (), logdet: Optional[str] = None, with_logdet: Optional[str] = None,
                batch: Optional[int] = None, inputs: Optional[Shapes] = None) -> Model:
        """The inverse direction, from outputs to inputs, as a model to be run or trained (`inv_model_reverse`).

        Raises
        ------
        NotInvertible
            A value cannot be derived, with node and reason.
        ShapeError, ArgumentError
            As of `plan`.
        """
        c, keep = self._shape_options(7 if batch is None else batch, inputs)
        out = ffi.new("inv_model **")
        reverse = _reverse_options(given, logdet, with_logdet, keep)
        self.context.call(lib.inv_model_reverse, self.pointer, c, reverse, out)
        return Model(self.context, out[0])

    def write_inverse(self, path: Path, *, given: Sequence[str] = (), logdet: Optional[str] = None,
                      with_logdet: Optional[str] = None, batch: Optional[int] = None,
                      inputs: Optional[Shapes] = None) -> Dict[str, Any]:
        """Writes the inverse direction as a plain ONNX model (`inv_model_write_inverse`, docs/rewriting.md).

        Raises
        ------
        NotInvertible
            A value cannot be derived, with node and reason.
        FileError
            The file cannot be written.
        """
        c, keep = self._shape_options(7 if batch is None else batch, inputs)
        reverse = _reverse_options(given, logdet, with_logdet, keep)
        return self.context.json(lib.inv_model_write_inverse, self.pointer, c, reverse, encoded(path))

    # --- shapes ---

    def frame(self, x: Inputs) -> Frame:
        """Arrays for the model's inputs.

        Raises
        ------
        TypeError, ValueError
            There is no such input, or its type is none that the library takes.
        """
        names, values = named(x, tuple(self.inputs))
        frame = Frame(names)
        for i, value in enumerate(values):
            frame.put(i, value)
        return frame

    def shapes(self, batch: Optional[int], inputs: Optional[Shapes]) -> Frame:
        """A frame of shapes alone; what the model leaves open and nobody says is sought by trying.

        Raises
        ------
        TypeError, ValueError
            There is no such input, or nobody tells its shape.
        ShapeError
            No extents were found that the model accepts.
        """
        given = dict(_values.globs("inputs", inputs or {}, "a dict of names and shapes"))
        if batch is not None:
            batch = _values.whole("batch", batch, 1)
        frame = Frame(tuple(self.inputs))
        unknown = given.keys() - self.inputs.keys()
        if unknown:
            raise ValueError(f"the model has no input {', '.join(sorted(unknown))}; it has {', '.join(self.inputs)}")
        open_ends = False
        for i, (name, (dtype, shape)) in enumerate(self.inputs.items()):
            value = given.get(name)
            if value is not None and is_array(value):
                frame.put(i, value)
                continue
            wanted = shape if value is None else value
            if wanted is None:
                raise ValueError(f"the file has no shape for the input '{name}'. Give it as inputs={{'{name}': ...}}")
            if isinstance(wanted, str) or not hasattr(wanted, "__iter__"):
                raise _values.wrong_type(f"inputs[{name!r}]", wanted, "a shape, or an array")
            dims = [int(d) if isinstance(d, (int, np.integer)) and d >= 0 else -1 for d in wanted]
            if dims and dims[0] < 0 and batch is not None:
                dims[0] = batch
            open_ends = open_ends or min(dims, default=0) < 0
            frame.put_shape(i, _TYPES.get(dtype, dtype), tuple(dims))
        if open_ends:
            self._find(frame, batch)
        return frame

    def _find(self, frame: Frame, batch: Optional[int]) -> None:
        c, keep = make_options({"constants_as_needed": True})
        c.inputs, c.ninputs = frame.arrays, frame.n
        dims = ffi.new("int64_t *[]", [frame.dims(i) for i in range(frame.n)])

        def find() -> int:
            s = lib.inv_model_find_extents(self.pointer, c, 1 if batch is None else batch, dims)
            return 0 if s == lib.INV_E_NOT_CONSTANT else int(s)  # who needs to know will say so

        self.context.call(find)
        del keep

    def _planned(self, purpose: int, batch: Optional[int], inputs: Optional[Shapes], target: Optional[ArrayLike],
                 options: Mapping[str, Any]) -> Session:
        frame = self.shapes(batch, inputs)
        values = {"constants_as_needed": True, **options, "purpose": purpose, "plan_only": True}
        return Session(self.context, self.pointer, frame, optional_frame(target), values)

    def _shape_options(self, batch: int, inputs: Optional[Shapes]) -> Tuple[Any, List[Any]]:
        frame = self.shapes(batch, inputs)
        c, keep = make_options({"constants_as_needed": True})
        c.inputs, c.ninputs = frame.arrays, frame.n
        keep.append(frame)
        return c, keep

    def _set_form(self, layout: str, form: str) -> None:
        self.context.call(lib.inv_model_set_layout, self.pointer,
                          enum_value("inv_layout", "INV_LAYOUT_", layout, "layout"))
        self.context.call(lib.inv_model_set_form, self.pointer, enum_value("inv_form", "INV_FORM_", form, "form"))


def _reverse_options(given: Sequence[str], logdet: Optional[str], with_logdet: Optional[str], keep: List[Any]) -> Any:
    c = ffi.new("inv_reverse_options *")
    c.size = ffi.sizeof("inv_reverse_options")
    c.given, c.ngiven = _values.strings("given", given, keep), len(given)
    for name, value in (("logdet", logdet), ("with_logdet", with_logdet)):
        if value is not None:
            setattr(c, name, _values.chars(name, value, keep, "the name of an output"))
    return c


__all__ = ["Model", "Views", "load", "read_adapters", "as_array"]

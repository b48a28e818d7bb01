# SPDX-License-Identifier: Apache-2.0
"""Training PyTorch modules, or parts of them, in planned memory. Needs torch; on the CPU.

>>> model.layers = invonnx.torch.wrap(model.layers, example)      # a part: the rest stays PyTorch's
>>> step = invonnx.torch.train_step(model, example, loss="cross_entropy", optimizer="adamw", lr=1e-3)   # all of it
>>> step(x, y)

Either way the parameters of the module stay the module's, under their names: their memory is that of the session, so
that both sides see every change and nothing is copied.
"""
from __future__ import annotations

import copy
import inspect
import os
import tempfile
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from ._model import Model, load
from ._native import lib
from ._options import Loss, Memory, Optimizer, Options, Unpack
from ._session import Result, Session
from ._trainer import Trainer

__all__ = ["TrainStep", "Wrapped", "export", "inverse", "train_step", "wrap"]

Tensor = torch.Tensor
#: One tensor; the positional arguments; or the keyword arguments by name.
Example = Union[Tensor, Sequence[Any], Mapping[str, Any]]


def _arguments(example: Example) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(example)
    return ((example,) if isinstance(example, Tensor) else tuple(example)), {}


def _names(n: int, what: str) -> List[str]:
    return [what] if n == 1 else [f"{what}{i}" for i in range(n)]


class _Form:
    """Tuples, lists and dicts with tensors in them: all but the tensors."""

    def __init__(self, tree: Any) -> None:
        leaves, self._spec = pytree.tree_flatten(tree)
        self._fixed = [None if isinstance(x, Tensor) else (x,) for x in leaves]

    def tensors(self, tree: Any) -> Tuple[Tensor, ...]:
        """Those of a tree of this form."""
        return tuple(x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor))

    def tree(self, tensors: Sequence[Any]) -> Any:
        rest = iter(tensors)
        return pytree.tree_unflatten([next(rest) if x is None else x[0] for x in self._fixed], self._spec)

    def __eq__(self, other: object) -> bool:
        def same(x: Any, y: Any) -> bool:
            if x is None or y is None:
                return x is y
            return x[0] is y[0] or (type(x[0]) is type(y[0]) and bool(np.all(x[0] == y[0])))

        return (isinstance(other, _Form) and self._spec == other._spec
                and all(same(x, y) for x, y in zip(self._fixed, other._fixed)))

    def words(self) -> Any:
        """For messages."""
        return pytree.tree_unflatten([_Word("tensor" if x is None else repr(x[0])[:40]) for x in self._fixed], self._spec)


class _Call:
    """A call of a module as the example makes it: its arguments, by place, by name or by default, and its result."""

    def __init__(self, module: torch.nn.Module, example: Example) -> None:
        self._signature = inspect.signature(module.forward)
        call = self._bind(*_arguments(example))
        self._given = _Form(call)
        self.example = self._given.tensors(call)
        self.inputs = _names(len(self.example), "x")
        self._result: Optional[_Form] = None  # seen when the module runs

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tuple[List[Any], Dict[str, Any]]:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return list(bound.args), dict(bound.kwargs)

    def tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tuple[Tensor, ...]:
        """The tensors of another call, which may differ from the example in them alone."""
        call = self._bind(args, kwargs)
        form = _Form(call)
        if form != self._given:
            raise TypeError(f"this call is ({self._words(form)}), but the example was ({self._words(self._given)}). Wrap "
                            "the module with an example of such a call, or call `.module`, which runs in PyTorch")
        return form.tensors(call)

    def _words(self, form: _Form) -> str:
        args, kwargs = form.words()
        names = [n for n in self._signature.parameters if n not in kwargs]
        return ", ".join(f"{n}={x}" for n, x in [*zip(names, args), *kwargs.items()])

    def arrays(self, tensors: Sequence[Tensor], model: Model) -> Dict[str, Any]:
        """A call's tensors by name, but for those that forward does not read: an export leaves them out."""
        return {n: _array(x) for n, x in zip(self.inputs, tensors) if n in model.inputs}

    def run(self, module: torch.nn.Module, tensors: Sequence[Tensor]) -> Tuple[Tensor, ...]:
        """Calls the module; gives the tensors of its result."""
        args, kwargs = self._given.tree(tensors)
        result = module(*args, **kwargs)
        self._result = _Form(result)
        found = self._result.tensors(result)
        one = {id(x): x for x in found}  # a tensor in several places is one output
        self._places = [list(one).index(id(x)) for x in found]
        return tuple(one.values())

    def result(self, tensors: Union[Tensor, Sequence[Tensor]]) -> Any:
        """What the module gives, of these tensors."""
        assert self._result is not None
        outputs = [tensors] if isinstance(tensors, Tensor) else tensors
        return self._result.tree([outputs[i] for i in self._places])


class _Word(str):
    """Text in messages, without quotes."""

    __repr__ = str.__str__


class _AsItIs(torch.nn.Module):
    """A module for the exporter, by its parameters, names and the tensors of a call: of other arguments it would make
    tensors, which are true and false of nothing. To call itself training keeps parameters apart that happen to be equal;
    modules inside are in the modes that they are in."""

    def __init__(self, module: torch.nn.Module, call: _Call) -> None:
        super().__init__()
        self._modules, self._parameters, self._buffers = module._modules, module._parameters, module._buffers
        self.__dict__["_whole"] = module  # none of its modules, whose names would begin with its own
        self.__dict__["_call"] = call

    def forward(self, *tensors: Tensor) -> Any:
        outputs = self.__dict__["_call"].run(self.__dict__["_whole"], tensors)
        return outputs if len(outputs) > 1 else outputs[0]


def export(module: torch.nn.Module, example: Example, path: "str | os.PathLike[str]") -> None:
    """Exports a module in the modes that it and its modules are in, so that all of its parameters keep their names and
    can be trained (docs/exporting.md). Axis 0 of inputs is open.

    Parameters
    ----------
    module
        On the CPU.
    example
        Its argument; a tuple of positional ones; or a dict of keyword arguments. Tensors are the model's inputs, `x` or
        `x0`, `x1` and so on; what is no tensor is a constant of the export.
    path
        The ONNX file.
    """
    _export(module, _Call(module, example), path)


def _export(module: torch.nn.Module, call: _Call, path: "str | os.PathLike[str]") -> None:
    example, inputs = call.example, call.inputs
    states = [(m, m.training) for m in module.modules()]
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    kept = {f"{name}." for name, m in module.named_modules() if isinstance(m, _NormBase)}  # ONNX moves these statistics
    axes = {name: {0: "N"} for name, x in zip(inputs, example) if x.ndim}
    try:
        with warnings.catch_warnings(), torch.autocast("cpu", enabled=False):  # warnings of the exporter about itself
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", "ONNX Preprocess")
            warnings.filterwarnings("ignore", "Converting a tensor", module=r"torch\.")
            torch.onnx.export(_AsItIs(module, call), example, os.fspath(path), dynamo=False, do_constant_folding=False,
                              training=torch.onnx.TrainingMode.PRESERVE, input_names=inputs, dynamic_axes=axes)
    finally:  # tracing has run it
        for m, was in states:
            m.training = was
        with torch.no_grad():
            for name, b in module.named_buffers():
                before = buffers.get(name)
                if before is None or torch.equal(b, before):
                    continue
                if name[:name.rfind(".") + 1] not in kept:
                    warnings.warn(f"forward changes the buffer '{name}', but exports do not keep that: it stays as it is now",
                                  stacklevel=3)
                b.copy_(before)


@contextmanager
def _loaded(module: torch.nn.Module, call: _Call) -> Iterator[Model]:
    """The module as a model, which stays when its file goes."""
    with tempfile.TemporaryDirectory(prefix="invonnx-") as folder:
        path = os.path.join(folder, "module.onnx")
        _export(module, call, path)
        yield load(path)


def _array(x: Tensor) -> Any:
    if x.device.type != "cpu":
        raise TypeError(f"this module runs on the CPU, and was given a tensor on {x.device}")
    x = x.detach()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()  # NumPy has no bfloat16; float32 has all its numbers


def _tensor(array: Any, dtype: str) -> Tensor:
    """A copy; `dtype` as ONNX calls it. Of bfloat16 NumPy sees the 16 bits, or float32 where that is computed."""
    x = torch.from_numpy(array.copy())
    if dtype != "bfloat16":
        return x
    return x.view(torch.bfloat16) if x.dtype in (torch.uint16, torch.int16) else x.to(torch.bfloat16)


class _Shared:
    """Lets parameters and buffers of a module lie in the memory of a session, which changes them there."""

    def __init__(self, module: torch.nn.Module, trainer: Trainer) -> None:
        self.trainer = trainer
        self.parameters: Dict[str, Tensor] = dict(module.named_parameters())
        self._tensors: Dict[str, Tensor] = {**self.parameters, **dict(module.named_buffers())}
        self._places = list(self._find_places(module))
        # Batches are counted by the module; the statistics themselves are the session's.
        self._counts = {n: b for n, b in self._tensors.items() if n.endswith("num_batches_tracked")}
        self._exported = {n: x._version for n, x in self._tensors.items() if n not in self._counts}
        self._session: Optional[Session] = None
        self._replaced = False
        self._at: List[Tuple[str, Tensor, int]] = []
        self._elsewhere: Dict[str, int] = {}
        self._statistics: List[str] = []

    def _find_places(self, module: torch.nn.Module) -> Iterator[Tuple[str, Dict[str, Any], str]]:
        """Where modules have the tensors, by their names."""
        for prefix, each in module.named_modules():
            for there in (each._parameters, each._buffers):
                for key in there:
                    name = _path(prefix, key)
                    if name in self._tensors:
                        yield name, there, key

    def take_replaced(self) -> None:
        """Others may have taken a tensor's place in its module."""
        replaced = [(name, there[key]) for name, there, key in self._places if there[key] is not self._tensors[name]]
        self._tensors.update(replaced)
        self.parameters.update((name, x) for name, x in replaced if name in self.parameters)
        self._replaced = self._replaced or bool(replaced)

    def look(self) -> None:
        """Looks where everything is before a step: PyTorch, or a session that was planned again, may have moved it."""
        session = self.trainer.session
        self.take_replaced()
        if self._replaced or session is not self._session or self._has_moved():
            self._begin(session)
        for i, (name, x, address) in enumerate(self._at):
            if x.dtype != torch.float32:
                raise TypeError(f"'{name}' is of type {x.dtype} now, but parameters trained here must be float32")
            if x.data_ptr() != address:
                self._share(name, x)
                self._at[i] = (name, x, x.data_ptr())
        for name, version in self._elsewhere.items():
            if self._tensors[name]._version != version:
                raise RuntimeError(f"'{name}' is not trained, so it is a constant of the module's export, but it "
                                   "has changed. Export the module again")

    def stepped(self, result: Result) -> None:
        """After a step: planning again may have moved what is in the session's memory, and batches are counted."""
        if self._has_moved():
            for i, (name, x, _) in enumerate(self._at):
                x.data = self._memory(name)
                self._at[i] = (name, x, x.data_ptr())
        for count in self._counts.values():
            count += 1

    def _has_moved(self) -> bool:
        """The session's memory is one block, which moves as a whole."""
        return bool(self._at) and self._memory(self._at[0][0]).data_ptr() != self._at[0][2]

    def take_statistics(self) -> None:
        """Running statistics, as a step without an update would leave them, are the module's now."""
        assert self._session is not None
        for name in self._statistics:
            self._tensors[name].detach().copy_(torch.from_numpy(self._session.get(lib.INV_GET_STATE, name)))

    def _begin(self, session: Session) -> None:
        first, self._session, self._at, self._replaced = self._session is None, session, [], False
        held = frozenset(session.names(lib.INV_GET_HELD))
        for name, x in self._tensors.items():
            if name in held and x.dtype == torch.float32 and session.view(lib.INV_GET_PARAM, name).flags.writeable:
                self._share(name, x)
                self._at.append((name, x, x.data_ptr()))
            elif x.requires_grad and name in held:
                raise TypeError(f"'{name}' is of type {x.dtype}: parameters that are trained here are of float32")
            elif first and name in self._exported:
                self._elsewhere[name] = self._exported[name]
        self._statistics = [n for n in session.names(lib.INV_GET_STATE) if n in self._tensors]

    def _memory(self, name: str) -> Tensor:
        assert self._session is not None
        return torch.from_numpy(self._session.view(lib.INV_GET_PARAM, name))

    def _share(self, name: str, x: Tensor) -> None:
        memory = self._memory(name)
        if memory.data_ptr() != x.data_ptr():
            memory.copy_(x.detach())
            x.data = memory


class _Exported:
    """What an export has fixed of a module: its modules, their modes, their hooks, and which parameters are trained.
    Where autograd gives gradients, it leaves out by itself what is frozen later."""

    def __init__(self, module: torch.nn.Module, autograd: bool) -> None:
        self._autograd = autograd
        named = list(module.named_modules())
        self._modules = [m for _, m in named]
        self.modes = [m.training for m in self._modules]
        self._children = [(name, m._modules, dict(m._modules)) for name, m in named]
        self._hooks = [(name, each, len(each)) for name, m in named for each in (
            m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)]
        self._tensors = [(name, there, key, x.requires_grad) for name, m in named for there in (m._parameters, m._buffers)
                         for key, x in there.items() if x is not None]
        for name, m in named:
            if m._backward_hooks or m._backward_pre_hooks:
                raise TypeError(f"a backward hook of '{name or 'the module'}' would not run here. Remove it, or leave "
                                "that module outside")

    def in_its_modes(self) -> bool:
        return all(m.training == mode for m, mode in zip(self._modules, self.modes))

    def check(self) -> None:
        """Raises if the module is another one than what was exported."""
        for name, there, were in self._children:
            if there.keys() != were.keys() or any(there[key] is not m for key, m in were.items()):
                changed = [k for k in {**there, **were} if there.get(k) is not were.get(k)]
                self._changed(f"submodule '{_path(name, (changed or list(there))[0])}' was replaced, added or removed")
        for name, hooks, n in self._hooks:
            if len(hooks) != n:
                self._changed(f"a hook of '{name or 'the module'}' was registered or removed, but hooks inside a "
                              "wrapped module do not run")
        for name, there, key, trained in self._tensors:
            x, path = there.get(key), _path(name, key)
            if x is None:
                self._changed(f"'{path}' was removed")
            elif x.requires_grad and not trained:
                self._changed(f"'{path}' was frozen, and is to be trained now")
            elif trained and not x.requires_grad and not self._autograd:
                self._changed(f"'{path}' was trained, and is frozen now")

    def _changed(self, what: str) -> None:
        since, remedy = (("it was wrapped", "Wrap `.module` again, or call it itself") if self._autograd else
                         ("its step was made", "Make a new one with `train_step`"))
        raise RuntimeError(f"the module has changed since {since}: {what}. {remedy}")


def _path(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, owner: "Wrapped", n: int, *tensors: Tensor) -> Any:
        ctx.owner, ctx.n = owner, n
        ctx.save_for_backward(*tensors)
        ctx.number, outputs = owner._forward(tensors[:n])
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[Tensor]) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("a wrapped module has no second derivatives: create_graph=True would lose them. Call `.module`, "
                               "which runs in PyTorch")
        tensors = ctx.saved_tensors  # which have not changed, or this raises
        owner: Wrapped = ctx.owner
        inputs, parameters = owner._backward(ctx.number, tensors[:ctx.n], gradients, ctx.needs_input_grad[2:])
        return (None, None, *inputs, *parameters)


class Wrapped(torch.nn.Module):
    """A module whose forward and backward run in planned memory; made by `wrap`. Parameters, buffers and submodules are
    those of the module itself, under the same names.

    Runs here while it and its modules are in the modes, training or evaluation, that they were wrapped in and gradients
    are recorded; else the module runs as ever. A call may differ from the example in its tensors alone.

    A copy (`copy.deepcopy`, `torch.optim.swa_utils.AveragedModel`) has a session of its own.
    """

    _module: torch.nn.Module

    def __init__(self, module: torch.nn.Module, call: _Call, model: Model, options: Any) -> None:
        super().__init__()
        object.__setattr__(self, "_module", module)
        for kind in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(self, kind, getattr(module, kind))
        self.training = module.training
        self._call, self._options = call, options
        self.model, self.trainer = model, model.trainer(**options)
        self._exported = _Exported(module, autograd=True)
        self._shared = _Shared(module, self.trainer)
        self._outputs = tuple(model.outputs)
        self._trained: List[str] = [n for n, p in module.named_parameters() if p.requires_grad]
        self._number = 0
        self._newest = -1

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Wrapped":
        self._exported.check()
        other = Wrapped(copy.deepcopy(self._module, memo), self._call, self.model, self._options)
        other._exported.modes = self._exported.modes
        memo[id(self)] = other
        return other

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a wrapped module holds a session and cannot be pickled: save its state_dict(), or `.module`")

    @property
    def module(self) -> torch.nn.Module:
        """The module itself, as it was wrapped."""
        return self._module

    def train(self, mode: bool = True) -> "Wrapped":
        self._module.train(mode)
        self.training = mode
        return self

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not self._exported.in_its_modes():
            return self._module(*args, **kwargs)
        self._exported.check()
        inputs = self._call.tensors(args, kwargs)
        self._shared.take_replaced()
        parameters = [self._shared.parameters[n] for n in self._trained]
        apply: Callable[..., Any] = _Step.apply
        return self._call.result(apply(self, len(inputs), *inputs, *parameters))

    def modes(self, memory: Optional[Memory] = None, rules: Mapping[str, Memory] = {}, *,
              replace: bool = False) -> Any:
        """Other memory modes within a ``with``: `Trainer.modes`. Wants a step to have been made."""
        return self.trainer.modes(memory, rules, replace=replace)

    def check(self, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        """Tries every inverse on the data of such a call: errors, condition numbers, what would be refused
        (`Model.check`)."""
        return self.model.check(self._call.arrays(self._call.tensors(args, kwargs), self.model))

    # --- for _Step ---

    def _run(self, inputs: Sequence[Tensor], number: int) -> Mapping[str, Any]:
        """Forward with the random numbers of that step."""
        trainer, x = self.trainer, self._call.arrays(inputs, self.model)
        trainer.open(x)
        self._shared.look()
        trainer.set_step(number)
        return trainer.forward(x)

    def _forward(self, inputs: Sequence[Tensor]) -> Tuple[int, Tuple[Tensor, ...]]:
        number, self._number = self._number, self._number + 1
        views = self._run(inputs, number)
        self._newest = number
        return number, tuple(_tensor(views[name], dtype) for name, (dtype, _) in self.model.outputs.items())

    def _backward(self, number: int, inputs: Sequence[Tensor], gradients: Sequence[Optional[Tensor]],
                  wanted: Sequence[bool]) -> Tuple[List[Optional[Tensor]], List[Optional[Tensor]]]:
        if number != self._newest:  # another forward has come between, and has its place
            self._run(inputs, number)
        self._newest = -1
        trainer = self.trainer
        given = {}
        for name, g, (dtype, shape) in zip(self._outputs, gradients, self.model.outputs.values()):
            if dtype in ("float", "double", "float16", "bfloat16"):
                given[name] = _array(g.contiguous()) if g is not None else np.zeros_like(trainer.outputs()[name])
        self._shared.stepped(trainer.backward(given))
        self._shared.take_statistics()
        return self._read(trainer, inputs, wanted)

    def _read(self, trainer: Trainer, inputs: Sequence[Tensor],
              wanted: Sequence[bool]) -> Tuple[List[Optional[Tensor]], List[Optional[Tensor]]]:
        of_inputs = trainer.input_gradients() if any(wanted[:len(inputs)]) else {}
        of_parameters: Mapping[str, Any] = trainer.gradients() if self._trained else {}

        def read(found: Mapping[str, Any], name: str, like: Tensor) -> Optional[Tensor]:
            return torch.from_numpy(found[name].copy()).to(like.dtype) if name in found else None

        parameters = self._shared.parameters
        return ([read(of_inputs, n, x) if w else None for n, x, w in zip(self._call.inputs, inputs, wanted)],
                [read(of_parameters, n, parameters[n]) for n in self._trained])


def wrap(module: torch.nn.Module, example: Example, *, memory: Memory = "auto",
         **options: Unpack[Options]) -> Wrapped:
    """A module, mostly a part of a larger one, whose forward and backward run in planned memory.

    Parameters
    ----------
    module
        On the CPU. It is exported in the mode that it is in (`export`); parameters that are frozen stay so.
    example
        Its argument; a tuple of positional ones; or a dict of keyword arguments, as Hugging Face's layers are called.
        Shapes of tensors are in the plan, but axis 0 is the batch, and open; all else is part of the export.
    memory
        How values for backward are had: ``"auto"``, ``"store"``, ``"recompute"``, ``"invert"``.
    **options
        Of sessions: `budget` in bytes for all of parameters and step, as ``"512MiB"``, `keep`, `modes`, `max_drift` and
        others (`Options`).

    Returns
    -------
    Wrapped
        Gradients of inputs and parameters are PyTorch's own within float32 rounding.

    Notes
    -----
    Tensors may be of any floating type: under autocast bfloat16 becomes float32, and outputs are float32.

    Between forward and backward the session holds what the plan keeps. A second forward before the backward of the
    first is right, but then the first one's forward runs once more in its backward. Running statistics of batch
    normalization change in backward, as ONNX has it: with the biased variance.
    """
    call = _Call(module, example)
    model, options = _model_to_train(module, call, options)
    return Wrapped(module, call, model, {"loss": "outside", "optimizer": None, "memory": memory,
                                         "input_grads": any(x.is_floating_point() for x in call.example), **options})


def _model_to_train(module: torch.nn.Module, call: _Call, options: Any) -> Tuple[Model, Any]:
    """The module as a model, and options by which its parameters are trained, also those that a file would not tell from
    constants (a single number, an exponent), but for frozen ones."""
    with _loaded(module, call) as model:
        known = {each["name"] for each in model.inspect()["initializers"]}
    names: Dict[bool, List[str]] = {True: [], False: []}
    for n, p in module.named_parameters():
        if n in known:
            names[p.requires_grad].append(n)
    return model, _with(options, freeze=names[False], train_only=() if "train_only" in options else names[True])


def _with(options: Any, **more: Sequence[str]) -> Any:
    """Lists of globs, added to those that are given."""
    added = {name: [*options.get(name, ()), *values] for name, values in more.items()}
    return {**options, **{name: values for name, values in added.items() if values}}


class TrainStep:
    """A training step of a whole module; made by `train_step`. Called with x and y it makes one.

    Attributes
    ----------
    trainer : Trainer
        Everything else: evaluation, checkpoints, modes, the log.
    """

    def __init__(self, module: torch.nn.Module, call: _Call, model: Model, trainer: Trainer) -> None:
        self.module, self.model, self.trainer, self._call = module, model, trainer, call
        self._exported = _Exported(module, autograd=False)
        self._shared = _Shared(module, trainer)

    def __call__(self, x: Example, y: Optional[Tensor] = None, *, lr: Optional[float] = None) -> Result:
        """One training step; the module's parameters and running statistics have changed then.

        Returns
        -------
        Result
        """
        self._exported.check()
        arrays = self._call.arrays(self._call.tensors(*_arguments(x)), self.model)
        target = None if y is None else _array(y)
        self.trainer.open(arrays, target)
        self._shared.look()
        result = self.trainer.step(arrays, target, lr=lr)
        self._shared.stepped(result)
        return result


def train_step(module: torch.nn.Module, example: Example, *, loss: Loss, optimizer: Optimizer = "sgd",
               lr: Any = 1e-3, memory: Memory = "auto", **options: Unpack[Options]) -> TrainStep:
    """Trains a whole module in planned memory: exports it, and gives its training step.

    Parameters
    ----------
    module, example
        As for `wrap`. The module's weights are what is trained: their memory is the session's.
    loss, optimizer, lr, memory, **options
        As for `Model.trainer`.

    Returns
    -------
    TrainStep
    """
    call = _Call(module, example)
    model, options = _model_to_train(module, call, options)
    trainer = model.trainer(loss=loss, optimizer=optimizer, lr=lr, memory=memory, **options)
    return TrainStep(module, call, model, trainer)


def inverse(module: torch.nn.Module, example: Example) -> Callable[..., Any]:
    """The inverse of a module, from its outputs to its inputs, with the weights that it has now.

    Raises
    ------
    NotInvertible
        Where a value cannot be derived, with node and reason.
    """
    was, call = module.training, _Call(module, example)
    try:
        with _loaded(module.eval(), call) as forward:
            model = forward.reverse(batch=call.example[0].shape[0])
    finally:
        module.train(was)

    def run(*outputs: Tensor) -> Any:
        results = model.run(tuple(_array(y) for y in outputs))
        found = [_tensor(a, dtype) for a, (dtype, _) in zip(results.values(), model.outputs.values())]
        return found[0] if len(found) == 1 else tuple(found)

    return run


# SPDX-License-Identifier: Apache-2.0
"""Training PyTorch modules, or parts of them, in planned memory. Needs torch; on the CPU.

>>> model.layers = invonnx.torch.wrap(model.layers, example)      # a part: the rest stays PyTorch's
>>> step = invonnx.torch.train_step(model, example, loss="cross_entropy", optimizer="adamw", lr=1e-3)   # all of it
>>> step(x, y)

Either way the parameters of the module stay the module's, under their names: their memory is that of the session, so
that both sides see every change and nothing is copied.
"""
from __future__ import annotations

import os
import tempfile
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch

from ._model import Model, load
from ._native import lib
from ._options import Loss, Memory, Optimizer, Options, Unpack
from ._session import Result, Session
from ._trainer import Trainer

__all__ = ["TrainStep", "Wrapped", "export", "inverse", "train_step", "wrap"]

Tensor = torch.Tensor
Example = Union[Tensor, Sequence[Tensor]]


def _tuple(example: Example) -> Tuple[Tensor, ...]:
    return (example,) if isinstance(example, Tensor) else tuple(example)


def _names(n: int, what: str) -> List[str]:
    return [what] if n == 1 else [f"{what}{i}" for i in range(n)]


class _AsItIs(torch.nn.Module):
    """A module for the exporter, by its parameters, names and positional arguments: of arguments that have defaults it
    would make tensors, which are true and false of nothing. To call itself training keeps parameters apart that happen
    to be equal; modules inside are in the modes that they are in."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._modules, self._parameters, self._buffers = module._modules, module._parameters, module._buffers
        self.__dict__["_whole"] = module  # none of its modules, whose names would begin with its own

    def forward(self, *args: Tensor) -> Any:
        return self.__dict__["_whole"](*args)


def export(module: torch.nn.Module, example: Example, path: "str | os.PathLike[str]") -> None:
    """Exports a module in the modes that it and its modules are in, so that all of its parameters keep their names and
    can be trained (docs/exporting.md). Axis 0 of inputs is open.

    Parameters
    ----------
    module
        On the CPU.
    example
        Its argument, or arguments: tensors.
    path
        The ONNX file.
    """
    example = _tuple(example)
    inputs = _names(len(example), "x")
    states = [(m, m.training) for m in module.modules()]
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    axes = {name: {0: "N"} for name, x in zip(inputs, example) if x.ndim}
    try:
        with warnings.catch_warnings():  # of the exporter about itself
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", "ONNX Preprocess")
            warnings.filterwarnings("ignore", "Converting a tensor", module=r"torch\.")
            torch.onnx.export(_AsItIs(module), example, os.fspath(path), dynamo=False, do_constant_folding=False,
                              training=torch.onnx.TrainingMode.PRESERVE, input_names=inputs, dynamic_axes=axes)
    finally:  # tracing has run it
        for m, was in states:
            m.training = was
        with torch.no_grad():
            for name, b in module.named_buffers():
                b.copy_(buffers[name])


@contextmanager
def _loaded(module: torch.nn.Module, example: Example) -> Iterator[Model]:
    """The module as a model, which stays when its file goes."""
    with tempfile.TemporaryDirectory(prefix="invonnx-") as folder:
        path = os.path.join(folder, "module.onnx")
        export(module, example, path)
        yield load(path)


def _array(x: Tensor) -> Any:
    if x.device.type != "cpu":
        raise TypeError(f"this module runs on the CPU, and was given a tensor on {x.device}")
    x = x.detach()
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


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
        self._at: List[Tuple[str, Tensor, int]] = []
        self._elsewhere: Dict[str, int] = {}
        self._statistics: List[str] = []

    def _find_places(self, module: torch.nn.Module) -> Iterator[Tuple[str, Dict[str, Any], str]]:
        """Where modules have the tensors, by their names."""
        for prefix, each in module.named_modules():
            for there in (each._parameters, each._buffers):
                for key in there:
                    name = f"{prefix}.{key}" if prefix else key
                    if name in self._tensors:
                        yield name, there, key

    def _take_replaced(self) -> bool:
        """Others may have taken a tensor's place in its module."""
        replaced = [(name, there[key]) for name, there, key in self._places if there[key] is not self._tensors[name]]
        self._tensors.update(replaced)
        self.parameters.update((name, x) for name, x in replaced if name in self.parameters)
        return bool(replaced)

    def look(self) -> None:
        """Looks where everything is before a step: PyTorch, or a session made anew, may have moved it."""
        session = self.trainer.session
        if self._take_replaced() or session is not self._session:
            self._begin(session)
        for i, (name, x, address) in enumerate(self._at):
            if x.data_ptr() != address:
                self._share(name, x)
                self._at[i] = (name, x, x.data_ptr())
        for name, version in self._elsewhere.items():
            if self._tensors[name]._version != version:
                raise RuntimeError(f"'{name}' is not trained and was a constant of its module's export, and has "
                                   "changed: export the module anew")

    def stepped(self, result: Result) -> None:
        """After a step: planning again has moved what is in the session's memory, and batches are counted."""
        if result.fallbacks:
            for i, (name, x, _) in enumerate(self._at):
                x.data = self._memory(name)
                self._at[i] = (name, x, x.data_ptr())
        for count in self._counts.values():
            count += 1

    def take_statistics(self) -> None:
        """Running statistics, as a step without an update would leave them, are the module's now."""
        assert self._session is not None
        for name in self._statistics:
            self._tensors[name].detach().copy_(torch.from_numpy(self._session.get(lib.INV_GET_STATE, name)))

    def _begin(self, session: Session) -> None:
        first, self._session, self._at = self._session is None, session, []
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


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, owner: "Wrapped", n: int, *tensors: Tensor) -> Any:
        ctx.owner, ctx.n = owner, n
        ctx.save_for_backward(*tensors)
        ctx.number, outputs = owner._forward(tensors[:n])
        return outputs if len(outputs) > 1 else outputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[Tensor]) -> Any:
        tensors = ctx.saved_tensors  # which have not changed, or this raises
        owner: Wrapped = ctx.owner
        inputs, parameters = owner._backward(ctx.number, tensors[:ctx.n], gradients, ctx.needs_input_grad[2:])
        return (None, None, *inputs, *parameters)


class Wrapped(torch.nn.Module):
    """A module whose forward and backward run in planned memory; made by `wrap`. Parameters, buffers and submodules are
    those of the module itself, under the same names.

    Runs here while it is in the mode, training or evaluation, that it was wrapped in and gradients are recorded; else
    the module runs as ever.
    """

    _module: torch.nn.Module

    def __init__(self, module: torch.nn.Module, model: Model, trainer: Trainer) -> None:
        super().__init__()
        object.__setattr__(self, "_module", module)
        for kind in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(self, kind, getattr(module, kind))
        self.training = module.training
        self._mode = module.training
        self.model, self.trainer = model, trainer
        self._shared = _Shared(module, trainer)
        self._inputs, self._outputs = tuple(model.inputs), tuple(model.outputs)
        self._trained: List[str] = [n for n, p in module.named_parameters() if p.requires_grad]
        self._number = 0
        self._newest = -1

    @property
    def module(self) -> torch.nn.Module:
        """The module itself, as it was wrapped."""
        return self._module

    def train(self, mode: bool = True) -> "Wrapped":
        self._module.train(mode)
        self.training = mode
        return self

    def forward(self, *inputs: Tensor) -> Any:
        if self.training != self._mode or not torch.is_grad_enabled():
            return self._module(*inputs)
        parameters = [self._shared.parameters[n] for n in self._trained]
        apply: Callable[..., Any] = _Step.apply
        return apply(self, len(inputs), *inputs, *parameters)

    def modes(self, memory: Optional[Memory] = None, rules: Mapping[str, Memory] = {}, *,
              replace: bool = False) -> Any:
        """Other memory modes within a ``with``: `Trainer.modes`. Wants a step to have been made."""
        return self.trainer.modes(memory, rules, replace=replace)

    def check(self, *inputs: Tensor) -> Dict[str, Any]:
        """Tries every inverse on these data: errors, condition numbers, what would be refused (`Model.check`)."""
        return self.model.check({n: _array(x) for n, x in zip(self._inputs, inputs)})

    # --- for _Step ---

    def _run(self, inputs: Sequence[Tensor], number: int) -> Mapping[str, Any]:
        """Forward with the random numbers of that step."""
        trainer, x = self.trainer, {n: _array(x) for n, x in zip(self._inputs, inputs)}
        trainer.open(x)
        self._shared.look()
        trainer.set_step(number)
        return trainer.forward(x)

    def _forward(self, inputs: Sequence[Tensor]) -> Tuple[int, Tuple[Tensor, ...]]:
        number, self._number = self._number, self._number + 1
        views = self._run(inputs, number)
        self._newest = number
        return number, tuple(torch.from_numpy(views[name].copy()) for name in self._outputs)

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
        return ([read(of_inputs, n, x) if w else None for n, x, w in zip(self._inputs, inputs, wanted)],
                [read(of_parameters, n, parameters[n]) for n in self._trained])


def wrap(module: torch.nn.Module, example: Example, *, memory: Memory = "auto",
         **options: Unpack[Options]) -> Wrapped:
    """A module, mostly a part of a larger one, whose forward and backward run in planned memory.

    Parameters
    ----------
    module
        On the CPU. It is exported in the mode that it is in (`export`); parameters that are frozen stay so.
    example
        Its argument, or arguments: tensors. What they say of shapes is in the plan, but axis 0 is the batch, and open.
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
    Between forward and backward the session holds what the plan keeps. A second forward before the backward of the
    first is right, but then the first one's forward runs once more in its backward. Running statistics of batch
    normalization change in backward, as ONNX has it: with the biased variance.
    """
    model, freeze = _model_to_train(module, example)
    trainer = model.trainer(loss="outside", optimizer=None, memory=memory,
                            input_grads=any(x.is_floating_point() for x in _tuple(example)),
                            **_with(options, freeze=freeze))
    return Wrapped(module, model, trainer)


def _model_to_train(module: torch.nn.Module, example: Example) -> Tuple[Model, List[str]]:
    """The module as a model, and which of its initializers are frozen parameters."""
    with _loaded(module, example) as model:
        known = {each["name"] for each in model.inspect()["initializers"]}
    return model, [n for n, p in module.named_parameters() if not p.requires_grad and n in known]


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

    def __init__(self, module: torch.nn.Module, model: Model, trainer: Trainer) -> None:
        self.module, self.model, self.trainer = module, model, trainer
        self._shared = _Shared(module, trainer)

    def __call__(self, x: Example, y: Optional[Tensor] = None, *, lr: Optional[float] = None) -> Result:
        """One training step; the module's parameters and running statistics have changed then.

        Returns
        -------
        Result
        """
        arrays, target = tuple(_array(each) for each in _tuple(x)), None if y is None else _array(y)
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
    model, freeze = _model_to_train(module, example)
    trainer = model.trainer(loss=loss, optimizer=optimizer, lr=lr, memory=memory, **_with(options, freeze=freeze))
    return TrainStep(module, model, trainer)


def inverse(module: torch.nn.Module, example: Example) -> Callable[..., Any]:
    """The inverse of a module, from its outputs to its inputs, with the weights that it has now.

    Raises
    ------
    NotInvertible
        Where a value cannot be derived, with node and reason.
    """
    was = module.training
    try:
        with _loaded(module.eval(), example) as forward:
            model = forward.reverse(batch=_tuple(example)[0].shape[0])
    finally:
        module.train(was)

    def run(*outputs: Tensor) -> Any:
        found = [torch.from_numpy(a) for a in model.run(tuple(_array(y) for y in outputs)).values()]
        return found[0] if len(found) == 1 else tuple(found)

    return run


# SPDX-License-Identifier: Apache-2.0
"""The options of sessions: names and meanings are those of `inv_session_options` in include/invonnx/session.h."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import _values
from ._native import ffi, lib
from ._other_words import unknown_option

if TYPE_CHECKING:
    from typing_extensions import Literal, TypedDict, Unpack as Unpack

    Loss = Literal["cross_entropy", "mse", "bce", "nll", "output", "huber", "outside"]
    Memory = Literal["auto", "store", "recompute", "invert", "offload"]
    Optimizer = Literal[
        "sgd", "momentum", "adam", "adamw", "lion", "rmsprop", "lamb", "adafactor", "muon", "adamw8"
    ]

    class Options(TypedDict, total=False):
        """What `Model.plan`, `Model.explain`, `Model.check` and `Model.trainer` take besides; each is the field of
        `inv_session_options` of that name, but that lists need no count."""

        budget: Union[None, int, str]
        keep: Sequence[str]
        modes: Union[Mapping[str, Memory], Sequence[str]]
        guard: Literal["on", "full", "off"]
        max_drift: float
        plan_text: str
        effort: int
        cost: Literal["time", "flops"]
        device: str
        threads: int
        float64: bool
        precision: Literal["full", "tf32", "bf16"]
        seed: int
        loss_outputs: Sequence[str]
        logdet: str
        trust_logdet: bool
        class_axis: int
        class_weights: Union[Sequence[float], str]
        ignore_index: int
        label_smoothing: float
        probabilities: bool
        rows_mix: bool
        huber_delta: float
        train_only: Sequence[str]
        freeze: Sequence[str]
        tied: Sequence[str]
        hold_zeros: Sequence[str]
        hold_rows: Sequence[str]
        no_hold: Sequence[str]
        untie: bool
        train_bn: bool
        through_quantization: bool
        no_dropout: bool
        input_grads: bool
        constant_inputs: Sequence[str]
        constants_as_needed: bool
        momentum: float
        nesterov: bool
        beta1: float
        beta2: float
        epsilon: float
        weight_decay: float
        decay_all: bool
        groups: Sequence[Union["Group", str]]
        clip_norm: float
        clip_value: float
        grad_norm: bool
        accumulate: Union[bool, int]
        average: Union[bool, str]
        average_decay: float
        average_from: int
        average_every: int
        early_update: bool
        send_ahead: bool
        weights: Literal["bfloat16", "bf16", "float32", "f32"]
        improve: bool
        cost_cache: str
        stages: Mapping[str, int]
        profile: bool

else:
    Loss = Memory = Optimizer = str

    class _Unpack:
        def __getitem__(self, item: Any) -> Any:
            return item

    Unpack = _Unpack()
    Options = Dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Parameters that are updated in a way of their own (`inv_param_group`).

    Parameters
    ----------
    glob
        Of names of parameters; of several groups the last that fits counts.
    lr
        What the learning rate of a step is multiplied by.
    weight_decay
        None: as the session has it.
    optimizer
        None: the session's; another one is used with its default numbers.
    """

    glob: str
    lr: float = 1.0
    weight_decay: Optional[float] = None
    optimizer: "Optional[Optimizer]" = None


@dataclass(frozen=True)
class Schedule:
    """How the learning rate goes over the steps of a training (`inv_schedule`): up during `warmup` steps, then as
    `kind` says, until step `total`. Called with the number of a step, from 0 on, it gives that step's rate.

    Parameters
    ----------
    kind
        ``"constant"``, ``"linear"``, ``"cosine"``, ``"polynomial"``, ``"step"``, ``"one_cycle"`` or ``"wsd"``.
    lr, min_lr
        The highest rate, and the one at the end.
    total
        Steps of the training. All but ``"constant"`` and ``"step"`` want it.
    warmup
        Steps in which the rate grows, or a share of `total` as ``"5%"``.
    power
        Of ``"polynomial"``.
    every, factor
        Of ``"step"``: steps between two cuts, and what a cut multiplies the rate by.
    decay
        Of ``"wsd"``: steps of the decay at the end, or a share as ``"20%"``, which is the default.

    Raises
    ------
    TypeError, ValueError
        A number is missing, or is none that the kind can go by.
    """

    kind: str
    lr: float
    total: int = 0
    warmup: Union[int, str] = 0
    min_lr: float = 0.0
    power: float = 1.0
    every: int = 0
    factor: float = 0.1
    decay: Union[None, int, str] = None

    def __post_init__(self) -> None:
        kind = _values.word("schedule", self.kind, _SCHEDULES)
        name = f"Schedule({self.kind!r})"
        reals = {key: _values.real(f"{name}: {key}", getattr(self, key)) for key in ("lr", "min_lr", "power", "factor")}
        for key, value in reals.items():
            if not 0 <= value < float("inf"):
                raise _values.wrong_value(f"{name}: {key}", value, "a number, 0 or more")
        total = _values.whole(f"{name}: total", self.total)
        every = _values.whole(f"{name}: every", self.every)
        if not total and kind not in (lib.INV_SCHEDULE_CONSTANT, lib.INV_SCHEDULE_STEP):
            raise ValueError(f"{name} wants total=STEPS, the steps of the training: epochs * batches of an epoch")
        if not every and kind == lib.INV_SCHEDULE_STEP:
            raise ValueError(f"{name} wants every=STEPS, the steps between two cuts")
        if reals["min_lr"] > reals["lr"]:
            raise ValueError(f"{name}: min_lr is {reals['min_lr']:g}, which is above lr, {reals['lr']:g}")
        warmup = _values.share_or_steps(f"{name}: warmup", self.warmup, total)
        if total and warmup > total:
            raise ValueError(f"{name}: warmup is {warmup} steps, which is longer than total, {total}")
        decay = total // 5 if self.decay is None else _values.share_or_steps(f"{name}: decay", self.decay, total)
        c = ffi.new("inv_schedule *", {"size": ffi.sizeof("inv_schedule"), "kind": kind, "total": total, "every": every,
                                       "warmup": warmup, "decay": decay, **reals})
        object.__setattr__(self, "_c", c)

    def __call__(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        return lib.inv_lr_at(self._c, step)  # type: ignore[attr-defined, no-any-return]


def enum_value(enum: str, prefix: str, word: str, what: str) -> int:
    """The value of ``"cosine"``, say, in the C enumeration."""
    return _values.word(what, word, _values.words(enum, prefix))


_SCHEDULES = _values.words("inv_schedule_kind", "INV_SCHEDULE_")
_ENUMS = {
    "loss": _values.words("inv_loss", "INV_LOSS_"),
    "memory": _values.words("inv_memory", "INV_MEMORY_"),
    "optimizer": _values.words("inv_optimizer", "INV_OPT_"),
    "guard": _values.words("inv_guard", "INV_GUARD_"),
    "precision": _values.words("inv_precision", "INV_PRECISION_"),
    "weights": {"f32": lib.INV_DT_NONE, "float32": lib.INV_DT_NONE, "bf16": lib.INV_BF16, "bfloat16": lib.INV_BF16},
}
#: Devices that compute in host memory.
ON_HOST = ("cpu", "checked")
_LISTS = ("loss_outputs", "keep", "train_only", "freeze", "tied", "hold_zeros", "hold_rows", "no_hold",
          "constant_inputs")
_TEXTS = {"device": "device", "logdet": "logdet", "cost_cache": "cost_cache", "plan_text": "plan"}
_NUMBERS = ("momentum", "beta1", "beta2", "epsilon", "weight_decay")
_FIELDS: Dict[str, Any] = dict(ffi.typeof("inv_session_options").fields)
#: What is no option: the size, and numbers of elements.
_HIDDEN = {"size", *("n" + name for name, field in _FIELDS.items() if field.type.kind == "pointer")}


_OFFLOAD = "'offload' copies to host memory and wants a device with memory of its own, as cuda"


def session_mode(mode: Any) -> int:
    """The memory mode of a session; 'offload' is none."""
    found = _values.word("memory", mode, _ENUMS["memory"])
    if found == lib.INV_MEMORY_OFFLOAD:
        raise ValueError(f"memory='offload' is a mode of single values. Give rules, as {{'*': 'offload'}}; "
                         f"{_OFFLOAD}")
    return found


def mode_rules(modes: "Union[Mapping[str, Memory], Sequence[str]]", keep: List[Any], device: Optional[str] = None) -> Any:
    """An array of `inv_mode_rule`. `device`: the one that they are for, if that is known."""
    wants = "a dict of globs and modes, as {'block:*': 'recompute'}, or a list of 'GLOB=MODE'"
    given: Dict[str, Any] = {}
    if isinstance(modes, Mapping):
        given.update(modes)
    elif isinstance(modes, str) or not isinstance(modes, Sequence):
        raise _values.wrong_type("modes", modes, wants)
    else:
        for each in modes:
            if not isinstance(each, str):
                raise _values.wrong_type("modes", modes, wants)
            glob, mark, mode = each.rpartition("=")
            if not mark:
                raise _values.wrong_value("modes", each, wants)
            given.pop(glob, None)  # the last that fits counts
            given[glob] = mode
    rules = ffi.new("inv_mode_rule[]", max(len(given), 1))
    for rule, (glob, mode) in zip(rules, given.items()):
        rule.glob = _values.chars("modes", glob, keep, "globs")
        rule.mode = _values.word(f"modes[{glob!r}]", mode, _ENUMS["memory"])
        if rule.mode == lib.INV_MEMORY_OFFLOAD and device in ON_HOST:
            raise ValueError(f"modes[{glob!r}]: {_OFFLOAD}; the device is {device}")
    keep.append(rules)
    keep.append(len(given))
    return rules


def _group(name: str, group: Any) -> Group:
    if isinstance(group, str):
        glob, said = _values.settings(name, group, ("lr", "weight_decay", "optimizer"))
        try:
            return Group(glob, float(said.get("lr", 1.0)), float(said["weight_decay"]) if "weight_decay" in said else None,
                         said.get("optimizer"))  # type: ignore[arg-type]
        except ValueError:
            raise _values.wrong_value(name, group, "numbers for lr and weight-decay") from None
    if not isinstance(group, Group):
        raise _values.wrong_type(name, group, "Group(...) or 'GLOB:lr=X,weight-decay=X,optimizer=NAME'")
    return group


def _put_groups(c: Any, groups: Any, keep: List[Any]) -> None:
    if isinstance(groups, (str, Group, Mapping)) or not isinstance(groups, Sequence):
        raise _values.wrong_type("groups", groups, "a list of Group(...)")
    array = ffi.new("inv_param_group[]", max(len(groups), 1))
    for i, each in enumerate(groups):
        name = f"groups[{i}]"
        group = _group(name, each)
        array[i].glob = _values.chars(f"{name}.glob", group.glob, keep, "a glob")
        array[i].lr = _values.real(f"{name}.lr", group.lr)
        decay = -1.0 if group.weight_decay is None else _values.real(f"{name}.weight_decay", group.weight_decay)
        if group.weight_decay is not None and decay < 0:
            raise _values.wrong_value(f"{name}.weight_decay", group.weight_decay, "a number, 0 or more")
        array[i].weight_decay = decay
        array[i].optimizer = _values.word(f"{name}.optimizer", group.optimizer or "none", _ENUMS["optimizer"])
    keep.append(array)
    c.groups, c.ngroups = array, len(groups)


def _put_stages(c: Any, stages: Any, keep: List[Any]) -> None:
    given = _values.globs("stages", stages, "a dict of globs and first steps, as {'*': 100}")
    array = ffi.new("inv_stage[]", max(len(given), 1))
    for stage, (glob, first) in zip(array, given.items()):
        stage.glob = _values.chars("stages", glob, keep, "globs")
        setattr(stage, "from", _values.whole(f"stages[{glob!r}]", first))
    keep.append(array)
    c.stages, c.nstages = array, len(given)


def _put_modes(c: Any, modes: Any, keep: List[Any]) -> None:
    c.modes = mode_rules(modes, keep)
    c.nmodes = keep[-1]


def _put_class_weights(c: Any, value: Any, keep: List[Any]) -> None:
    wants = "a number for each class, or the .npy file that has them"
    try:
        numbers = np.load(value) if isinstance(value, str) else np.asarray(value, np.float64)
        numbers = np.asarray(numbers, np.float64)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise _values.wrong_type("class_weights", value, wants) from error
    if numbers.ndim != 1:
        raise _values.wrong_value("class_weights", value, wants)
    keep.append(ffi.new("double[]", numbers.tolist()))
    c.class_weights, c.nclass_weights = keep[-1], len(numbers)


def _put_budget(c: Any, value: Any, keep: List[Any]) -> None:
    c.budget = _values.nbytes("budget", value)


def _put_ignore_index(c: Any, value: Any, keep: List[Any]) -> None:
    c.ignores, c.ignore_index = True, _values.whole("ignore_index", value, -2**63)


def _put_accumulate(c: Any, value: Any, keep: List[Any]) -> None:
    c.accumulate = micro_batches(value) != 1


_OF_THEIR_OWN: Dict[str, Callable[[Any, Any, List[Any]], None]] = {
    "groups": _put_groups, "stages": _put_stages, "modes": _put_modes, "class_weights": _put_class_weights,
    "budget": _put_budget, "ignore_index": _put_ignore_index, "accumulate": _put_accumulate,
}


def micro_batches(value: Any) -> int:
    """Batches of a step of `Trainer.fit`; 0: the caller says by `Trainer.update`."""
    wants = "True, or a number of batches, 1 or more, that `fit` makes a step of"
    if isinstance(value, (bool, np.bool_)):
        return 0 if value else 1
    try:
        return _values.whole("accumulate", value, 1)
    except (TypeError, ValueError) as error:
        raise (_values.wrong_value if isinstance(error, ValueError) else _values.wrong_type)("accumulate", value, wants) from None


#: What only several processes have that train together, as those of ``mpirun -n 4 invonnx train``.
_OF_RANKS = ("world", "shard", "sync_bn")


def _put_number(c: Any, name: str, value: Any) -> None:
    kind = _FIELDS[name].type.cname
    if kind == "_Bool":
        setattr(c, name, _values.flag(name, value))
    elif kind == "double":
        setattr(c, name, _values.real(name, value))
    else:
        bits = 8 * ffi.sizeof(_FIELDS[name].type)
        signed = not kind.startswith("u")
        least = -2**(bits - 1) if signed and name not in _NOT_BELOW_0 else 0
        setattr(c, name, _values.whole(name, value, least, 2**(bits - signed) - 1))


_NOT_BELOW_0 = ("threads", "effort", "tail_batch", "eval_batch", "eval_tail")


def _put(c: Any, name: str, value: Any, keep: List[Any]) -> None:
    if name in _OF_RANKS:
        if isinstance(value, (bool, int, str)) and (not value or value == "none"):
            return
        raise TypeError(f"{name}: from Python each process trains alone. Only `mpirun invonnx train` trains with several together "
                        "(docs/scaling.md)")
    if name == "memory":
        c.memory = session_mode(value)
    elif name in _ENUMS:
        setattr(c, name, _values.word(name, value, _ENUMS[name]))
    elif name in _LISTS:
        setattr(c, name, _values.strings(name, value, keep))
        setattr(c, "n" + name, len(value))
    elif name in _TEXTS:
        setattr(c, _TEXTS[name], _values.chars(name, value, keep))
    elif name in _OF_THEIR_OWN:
        _OF_THEIR_OWN[name](c, value, keep)
    elif name in _FIELDS and name not in _HIDDEN and _FIELDS[name].type.kind == "primitive":
        _put_number(c, name, value)
    else:
        raise TypeError(unknown_option(name, [*_ENUMS, *_LISTS, *_TEXTS, *_OF_THEIR_OWN, "cost", *(
            n for n, f in _FIELDS.items() if n not in _HIDDEN and f.type.kind == "primitive")]))


def make_options(values: Mapping[str, Any]) -> Tuple[Any, List[Any]]:
    """An `inv_session_options` from options by name; None is the default. Also what it points to."""
    keep: List[Any] = []
    c = ffi.new("inv_session_options *")
    c.size = ffi.sizeof("inv_session_options")
    given = {name: value for name, value in values.items() if value is not None}
    if "average" in given:
        said = _values.average(given.pop("average"))
        twice = said.keys() & given.keys()
        if twice:
            raise ValueError(f"average says {', '.join(sorted(twice))}, too: give one of both")
        given.update(said)
    optimizer = _values.word("optimizer", given.get("optimizer", "none"), _ENUMS["optimizer"])
    if optimizer != lib.INV_OPT_NONE:
        numbers = lib.inv_optimizer_defaults(optimizer)
        for name in _NUMBERS:
            setattr(c, name, getattr(numbers, name))
    for name, value in given.items():
        _put(c, name, value, keep)
    return c, keep

# SPDX-License-Identifier: Apache-2.0
"""The options of sessions: names and meanings are those of `inv_session_options` in include/invonnx/session.h."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ._arrays import _CODES
from ._core import nbytes, strings
from ._native import ffi, lib

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
        modes: Mapping[str, Memory]
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
        class_weights: Sequence[float]
        ignore_index: int
        label_smoothing: float
        probabilities: bool
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
        groups: Sequence["Group"]
        clip_norm: float
        clip_value: float
        grad_norm: bool
        accumulate: bool
        average: bool
        average_decay: float
        average_from: int
        average_every: int
        early_update: bool
        send_ahead: bool
        weights: Literal["bfloat16"]
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
    total, warmup, decay, every
        Steps: of all, of the warm-up, of the decay at the end (``"wsd"``), between two cuts (``"step"``).
    power, factor
        Of ``"polynomial"``, and of a cut of ``"step"``.
    """

    kind: str
    lr: float
    total: int = 0
    warmup: int = 0
    min_lr: float = 0.0
    power: float = 1.0
    every: int = 0
    factor: float = 0.1
    decay: int = 0

    def __post_init__(self) -> None:
        values = dict(self.__dict__)
        values["kind"] = enum_value("inv_schedule_kind", "INV_SCHEDULE_", self.kind, "schedule")
        c = ffi.new("inv_schedule *", {"size": ffi.sizeof("inv_schedule"), **values})
        object.__setattr__(self, "_c", c)

    def __call__(self, step: int) -> float:
        return lib.inv_lr_at(self._c, step)  # type: ignore[attr-defined, no-any-return]


def enum_value(enum: str, prefix: str, word: str, what: str) -> int:
    """The value of ``"cosine"``, say, in the C enumeration."""
    known: Dict[str, int] = {name[len(prefix):].lower(): value
                             for value, name in ffi.typeof(enum).elements.items()}
    if word not in known:
        raise ValueError(f"{what} is {word!r}: there are {', '.join(known)}")
    return known[word]


_ENUMS = {
    "loss": ("inv_loss", "INV_LOSS_"),
    "memory": ("inv_memory", "INV_MEMORY_"),
    "optimizer": ("inv_optimizer", "INV_OPT_"),
    "guard": ("inv_guard", "INV_GUARD_"),
    "precision": ("inv_precision", "INV_PRECISION_"),
}
_LISTS = ("loss_outputs", "keep", "train_only", "freeze", "tied", "hold_zeros", "hold_rows", "no_hold",
          "constant_inputs")
_TEXTS = ("device", "logdet", "cost_cache")
_NUMBERS = ("momentum", "beta1", "beta2", "epsilon", "weight_decay")
_FIELDS: Dict[str, Any] = dict(ffi.typeof("inv_session_options").fields)


def mode_rules(modes: "Mapping[str, Memory]", keep: List[Any]) -> Any:
    """An array of `inv_mode_rule`."""
    rules = ffi.new("inv_mode_rule[]", max(len(modes), 1))
    for rule, (glob, mode) in zip(rules, modes.items()):
        rule.glob = text = ffi.new("char[]", glob.encode())
        rule.mode = enum_value("inv_memory", "INV_MEMORY_", mode, "mode")
        keep.append(text)
    keep.append(rules)
    return rules


def _groups(groups: Sequence[Group], keep: List[Any]) -> Any:
    array = ffi.new("inv_param_group[]", max(len(groups), 1))
    for c, group in zip(array, groups):
        c.glob = text = ffi.new("char[]", group.glob.encode())
        keep.append(text)
        c.lr = group.lr
        c.weight_decay = -1.0 if group.weight_decay is None else group.weight_decay
        c.optimizer = enum_value("inv_optimizer", "INV_OPT_", group.optimizer or "none", "optimizer")
    keep.append(array)
    return array


def _stages(stages: Mapping[str, int], keep: List[Any]) -> Any:
    array = ffi.new("inv_stage[]", max(len(stages), 1))
    for c, (glob, first) in zip(array, stages.items()):
        c.glob = text = ffi.new("char[]", glob.encode())
        keep.append(text)
        setattr(c, "from", first)
    keep.append(array)
    return array


#: What only several processes have that train together, as those of ``mpirun -n 4 invonnx train``.
_OF_RANKS = ("world", "shard", "sync_bn")


def _put(c: Any, name: str, value: Any, keep: List[Any]) -> None:
    if name in _OF_RANKS and value:
        raise TypeError(f"{name}: only `mpirun invonnx train` trains by several processes together; from Python each trains alone "
                        "(docs/scaling.md)")
    if name in _ENUMS:
        setattr(c, name, enum_value(*_ENUMS[name], value, name))
    elif name in _LISTS:
        setattr(c, name, strings(value, keep))
        setattr(c, "n" + name, len(value))
    elif name in _TEXTS or name == "plan_text":
        keep.append(ffi.new("char[]", value.encode()))
        setattr(c, "plan" if name == "plan_text" else name, keep[-1])
    elif name == "modes":
        c.modes, c.nmodes = mode_rules(value, keep), len(value)
    elif name == "groups":
        c.groups, c.ngroups = _groups(value, keep), len(value)
    elif name == "stages":
        c.stages, c.nstages = _stages(value, keep), len(value)
    elif name == "class_weights":
        keep.append(ffi.new("double[]", [float(w) for w in value]))
        c.class_weights, c.nclass_weights = keep[-1], len(value)
    elif name == "budget":
        c.budget = nbytes(value)
    elif name == "ignore_index":
        c.ignores, c.ignore_index = True, value
    elif name == "weights":
        c.weights = _CODES[value]
    elif name in _FIELDS and _FIELDS[name].type.kind == "primitive":
        setattr(c, name, value)
    else:
        raise TypeError(f"there is no option {name!r}")


def make_options(values: Mapping[str, Any]) -> Tuple[Any, List[Any]]:
    """An `inv_session_options` from options by name; None is the default. Also what it points to."""
    keep: List[Any] = []
    c = ffi.new("inv_session_options *")
    c.size = ffi.sizeof("inv_session_options")
    given = {name: value for name, value in values.items() if value is not None}
    if given.get("optimizer", "none") != "none":
        numbers = lib.inv_optimizer_defaults(enum_value("inv_optimizer", "INV_OPT_", given["optimizer"], "optimizer"))
        for name in _NUMBERS:
            setattr(c, name, getattr(numbers, name))
    for name, value in given.items():
        _put(c, name, value, keep)
    return c, keep

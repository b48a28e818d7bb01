# SPDX-License-Identifier: Apache-2.0
"""Trains imported ONNX models in little memory.

>>> import invonnx
>>> m = invonnx.load("model.onnx")
>>> m.plan(loss="cross_entropy", batch=64, budget="512MiB")
>>> t = m.trainer(loss="cross_entropy", optimizer="adamw", lr=1e-3)
>>> for x, y in data:
...     t.step(x, y)
>>> t.save("trained.onnx")

A model and all that is made of it is used by one thread at a time, others wait; different models are independent. The
GIL is free while the library is at work, and Ctrl-C ends what takes long without changing anything. Remarks of the
library go to the logger ``invonnx``. For PyTorch there is `invonnx.torch`.
"""
from . import _openblas  # noqa: F401  before all that loads the library
from ._core import (
    ArgumentError,
    DeviceError,
    Error,
    FileError,
    FormatError,
    NotInvertible,
    NumericError,
    OutOfMemory,
    RanksError,
    ShapeError,
    Stopped,
    UnsupportedError,
    text as _text,
)
from ._model import Model, load, read_adapters
from ._native import lib as _lib
from ._options import Group, Schedule
from ._plan import Plan
from ._session import Result
from ._trainer import Trainer

__version__ = _text(_lib.inv_version())

__all__ = [
    "ArgumentError",
    "DeviceError",
    "Error",
    "FileError",
    "FormatError",
    "Group",
    "Model",
    "NotInvertible",
    "NumericError",
    "OutOfMemory",
    "Plan",
    "RanksError",
    "Result",
    "Schedule",
    "ShapeError",
    "Stopped",
    "Trainer",
    "UnsupportedError",
    "load",
    "read_adapters",
]

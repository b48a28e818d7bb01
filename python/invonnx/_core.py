# SPDX-License-Identifier: Apache-2.0
"""The C API from Python: calls with errors as exceptions, one at a time per context, and Ctrl-C."""
from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple, Type

from ._native import ffi, lib

#: What a session or search remarks on its way goes here, at level INFO.
LOG = logging.getLogger("invonnx")

Progress = Callable[[str, float], None]


class Error(Exception):
    """A call of the library failed.

    Attributes
    ----------
    status : str
        The name of the status code, such as ``"E_SHAPE"``.
    details : dict
        What the library knows beyond the message; of a budget that cannot be met the bytes that are needed and what
        would lower them (`inv_context_details`). Mostly empty.
    """

    def __init__(self, message: str, status: str = "", details: Optional[Dict[str, Any]] = None) -> None:
        super().__init__(message)
        self.status = status
        self.details = details or {}


class ArgumentError(Error, ValueError):
    """A wrong argument (``E_ARG``, ``E_EXISTS``, ``E_NOT_CONSTANT``)."""


class OutOfMemory(Error, MemoryError):
    """No memory, or a budget that cannot be met (``E_NOMEM``)."""


class FileError(Error, OSError):
    """A file cannot be read or written (``E_IO``)."""


class FormatError(Error, ValueError):
    """A malformed file or graph (``E_PARSE``, ``E_GRAPH``)."""


class UnsupportedError(Error, NotImplementedError):
    """An operator, gradient, kernel or element type that is not there (``E_UNSUPPORTED_OP``, ``..._TYPE``)."""


class ShapeError(Error, ValueError):
    """Shapes do not fit (``E_SHAPE``)."""


class NotInvertible(Error, ValueError):
    """A value cannot be derived from what comes behind it (``E_NOT_INVERTIBLE``)."""


class NumericError(Error, ArithmeticError):
    """A loss or gradient is not finite; nothing was committed (``E_NUMERIC``)."""


class DeviceError(Error, RuntimeError):
    """A device failed (``E_DEVICE``)."""


class Stopped(Error):
    """Ctrl-C ended the call, which has changed nothing (``E_STOPPED``). Mostly seen as KeyboardInterrupt."""


class RanksError(Error, RuntimeError):
    """Another process of a run on several failed (``E_RANKS``)."""


_ERRORS: Dict[int, Type[Error]] = {
    lib.INV_E_ARG: ArgumentError,
    lib.INV_E_EXISTS: ArgumentError,
    lib.INV_E_NOT_CONSTANT: ArgumentError,
    lib.INV_E_NOMEM: OutOfMemory,
    lib.INV_E_IO: FileError,
    lib.INV_E_PARSE: FormatError,
    lib.INV_E_GRAPH: FormatError,
    lib.INV_E_UNSUPPORTED_OP: UnsupportedError,
    lib.INV_E_UNSUPPORTED_TYPE: UnsupportedError,
    lib.INV_E_SHAPE: ShapeError,
    lib.INV_E_NOT_INVERTIBLE: NotInvertible,
    lib.INV_E_NUMERIC: NumericError,
    lib.INV_E_DEVICE: DeviceError,
    lib.INV_E_STOPPED: Stopped,
    lib.INV_E_RANKS: RanksError,
}
_NAMES: Dict[int, str] = {value: name[4:] for value, name in ffi.typeof("inv_status").elements.items()}

Destroy = Callable[[Any], None]


def text(p: Any) -> str:
    """A C string; ``""`` for NULL."""
    return ffi.string(p).decode() if p else ""


class _Callbacks:
    """What the library calls back finds this, and not the context, which would never go else."""

    def __init__(self, progress: Optional[Progress]) -> None:
        self.progress = progress
        self.raised: Optional[BaseException] = None


class Context:
    """An `inv_context`: one call at a time, whichever thread makes it. The GIL is free meanwhile."""

    def __init__(self, rules: bool = True, progress: Optional[Progress] = None) -> None:
        self._callbacks = _Callbacks(progress)
        self._handle = ffi.new_handle(self._callbacks)
        self.lock = threading.RLock()
        self._busy = False
        self._dead: Deque[Tuple[Destroy, Any]] = deque()
        costs: Dict[Tuple[int, bool, bool], Any] = {}
        self._costs = costs
        options = ffi.new("inv_context_options *")
        options.size = ffi.sizeof("inv_context_options")
        options.log, options.log_opaque = lib.invonnx_log, self._handle
        options.no_rules = not rules
        if progress:
            options.progress, options.progress_opaque = lib.invonnx_progress, self._handle
        options.stop = ffi.addressof(lib, "invonnx_stop")
        out = ffi.new("inv_context **")
        status = lib.inv_context_create(options, out)
        if status:
            raise OutOfMemory(text(lib.inv_status_text(status)), _NAMES[status])

        def destroy(pointer: Any) -> None:
            for table in costs.values():
                lib.inv_free(pointer, table)
            lib.inv_context_destroy(pointer)

        self.pointer: Any = ffi.gc(out[0], destroy)

    def costs(self, options: Mapping[str, Any]) -> Any:
        """Rates of this machine, or of a GPU, by which plans for these options are made; NULL where arithmetic counts."""
        cost = options.get("cost") or os.environ.get("INVONNX_COST")
        cost = cost or ("flops" if options.get("memory") == "store" else "time")
        if cost not in ("time", "flops"):
            raise ValueError(f"cost is {cost!r}: there are time, flops")
        key = (options.get("threads") or 0, bool(options.get("float64")),
               str(options.get("device") or "").startswith("cuda"))
        if cost == "time" and key not in self._costs:
            device = ffi.new("char []", b"cuda") if key[2] else ffi.NULL
            c = ffi.new("inv_calibrate_options *", {"threads": key[0], "float64": key[1], "device": device})
            c.size = ffi.sizeof("inv_calibrate_options")
            out = ffi.new("inv_cost_table **")
            self.call(lib.inv_calibrate, self.pointer, c, out)
            self._costs[key] = out[0]
        return self._costs[key] if cost == "time" else ffi.NULL

    def call(self, function: Callable[..., int], *args: Any) -> None:
        """Calls a function that returns a status, and raises what it says."""
        with self.lock:
            if self._busy:
                raise RuntimeError("a callback must not use the model that calls it")
            self._busy = True
            watches = threading.current_thread() is threading.main_thread() and lib.invonnx_watch()
            try:
                status = function(*args)
            finally:
                if watches:
                    lib.invonnx_unwatch()
                self._busy = False
            if self._dead:
                self._bury()
            raised, self._callbacks.raised = self._callbacks.raised, None
            if raised is not None:
                raise raised
            if status:
                raise self._error(status)

    def json(self, function: Callable[..., int], *args: Any) -> Dict[str, Any]:
        """Calls a function whose last parameter gets a JSON object."""
        found = json.loads(self.text(function, *args))
        assert isinstance(found, dict)
        return found

    def text(self, function: Callable[..., int], *args: Any) -> str:
        """Calls a function whose last parameter gets text."""
        out = ffi.new("char **")
        self.call(function, *args, out)
        found = text(out[0])
        lib.inv_free(self.pointer, out[0])
        return found

    def own(self, pointer: Any, destroy: Destroy, *keep: Any) -> Any:
        """A pointer that is destroyed when nobody has it any more, before what it needs (`keep`), and not while a call
        is at work."""

        def drop(p: Any, keep: Tuple[Any, ...] = keep) -> None:
            self._dead.append((destroy, p))
            if self.lock.acquire(blocking=False):
                try:
                    if not self._busy:
                        self._bury()
                finally:
                    self.lock.release()

        return ffi.gc(pointer, drop)

    def _bury(self) -> None:
        while self._dead:
            destroy, pointer = self._dead.popleft()
            destroy(pointer)

    def _error(self, status: int) -> Error:
        details = text(lib.inv_context_details(self.pointer))
        message = text(lib.inv_context_message(self.pointer)) or text(lib.inv_status_text(status))
        return _ERRORS.get(status, Error)(message, _NAMES[status], json.loads(details) if details else None)


def _caught(_kind: Any, value: BaseException, traceback: Any) -> None:
    """What a callback raises is raised again by the call that it was called from."""
    ffi.from_handle(traceback.tb_frame.f_locals["opaque"]).raised = value


def _log(opaque: Any, line: Any) -> None:
    LOG.info("%s", text(line))


def _progress(opaque: Any, stage: Any, share: float) -> None:
    ffi.from_handle(opaque).progress(text(stage), share)


ffi.def_extern(name="invonnx_log", onerror=_caught)(_log)
ffi.def_extern(name="invonnx_progress", onerror=_caught)(_progress)


def strings(values: Sequence[str], keep: List[Any]) -> Any:
    """A `const char *const *`; `keep` holds what it points to."""
    if isinstance(values, str):
        raise TypeError(f"a list of names is wanted, not the one name {values!r}")
    each = [ffi.new("char[]", value.encode()) for value in values]
    array = ffi.new("const char *[]", each)
    keep.extend(each)
    keep.append(array)
    return array


_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", 1):
    _UNITS.update({_letter: 1024**_power, _letter + "iB": 1024**_power, _letter + "B": 1000**_power})


def nbytes(value: "int | str") -> int:
    """Bytes from a number, or text such as ``"512MiB"``, ``"2G"`` (of 1024) or ``"500MB"`` (of 1000)."""
    if not isinstance(value, str):
        return int(value)
    number = value.rstrip("KMGTiB ")
    unit = value[len(number):].strip()
    try:
        return int(float(number) * _UNITS[unit])
    except (ValueError, KeyError):
        raise ValueError(f"{value!r} is not a number of bytes, as 1500000, 512MiB, 2G or 500MB") from None

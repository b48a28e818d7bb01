# SPDX-License-Identifier: Apache-2.0
"""The C API from Python: calls with errors as exceptions, one at a time per context, and Ctrl-C."""
from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, Mapping, Optional, Tuple, Type

from ._native import ffi, lib
from ._other_words import in_python
from ._values import word, wrong_type

#: What a session or search remarks on its way goes here, at level INFO.
LOG = logging.getLogger("invonnx")

Progress = Callable[[str, float], None]

#: What plans are compared by.
COSTS = {"time": 0, "flops": 1}


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
        if progress is not None and not callable(progress):
            raise wrong_type("progress", progress, "a function of a stage and a share")
        self._callbacks = _Callbacks(progress)
        self._handle = ffi.new_handle(self._callbacks)
        self._caller = ffi.new("invonnx_caller *", {"python": self._handle})
        self.lock = threading.RLock()
        self._torn = False  # a fork has come while another thread was in a call
        self._parked = False  # the interpreter ends, and a thread that goes no further has the lock
        self._dead: Deque[Tuple[Destroy, Any]] = deque()
        costs: Dict[Tuple[int, bool, bool], Any] = {}
        self._costs = costs
        options = ffi.new("inv_context_options *")
        options.size = ffi.sizeof("inv_context_options")
        options.log, options.log_opaque = ffi.addressof(lib, "invonnx_call_log"), self._caller
        options.no_rules = not rules
        if progress:
            options.progress, options.progress_opaque = ffi.addressof(lib, "invonnx_call_progress"), self._caller
        options.stop = ffi.addressof(lib, "invonnx_stop")
        out = ffi.new("inv_context **")
        status = lib.inv_context_create(options, out)
        if status:
            raise OutOfMemory(text(lib.inv_status_text(status)), _NAMES[status])
        dead = self._dead

        def destroy(pointer: Any) -> None:
            _bury(dead)
            for table in costs.values():
                lib.inv_free(pointer, table)
            lib.inv_context_destroy(pointer)

        self.pointer: Any = ffi.gc(out[0], destroy)
        _contexts.add(self)

    def costs(self, options: Mapping[str, Any]) -> Any:
        """Rates of this machine, or of a GPU, by which plans for these options are made; NULL where arithmetic counts."""
        cost = options.get("cost")
        if cost is None:
            cost = os.environ.get("INVONNX_COST") or ("flops" if options.get("memory") == "store" else "time")
        word("cost", cost, COSTS)
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
        in_main = threading.current_thread() is threading.main_thread()
        failed = None
        with self.lock:
            if in_main or not _ending:
                self._check_usable()
                failed = self._run(function, args, in_main)
            stays = _ending and not in_main
        if stays:  # a daemon thread goes no further when the interpreter ends, which ends the thread, too
            self._parked = self.lock._is_owned()  # type: ignore[attr-defined]
            threading.Event().wait()
        if failed is not None:
            raise failed

    def _check_usable(self) -> None:
        if self._torn:
            raise RuntimeError("this process was made by fork() while another thread was computing with the model. "
                               "Load the model again here")
        if self._caller.depth:
            raise RuntimeError("a callback must not use the model that calls it")

    def _run(self, function: Callable[..., int], args: Tuple[Any, ...], in_main: bool) -> Optional[BaseException]:
        """The call itself, and what it says. Ctrl-C may raise between any two lines of it: so each call begins with what
        the former one may have left."""
        self._callbacks.raised = None
        watches = in_main and lib.invonnx_watch()
        try:
            status = function(*args)
        finally:
            if watches:
                lib.invonnx_unwatch()
        _bury(self._dead)
        return self._callbacks.raised or (self._error(status) if status else None)

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

    def own(self, pointer: Any, destroy: Destroy) -> Any:
        """A pointer that is destroyed when nobody has it any more, and not while a call is at work. The library counts
        who holds what, so the order does not matter (`inv_context_destroy`)."""

        def drop(p: Any) -> None:
            if self._torn:
                return  # it goes with the process
            self._dead.append((destroy, p))
            if self.lock.acquire(blocking=False):
                try:
                    if not self._caller.depth:
                        _bury(self._dead)
                finally:
                    self.lock.release()

        return ffi.gc(pointer, drop)

    def is_in_use(self) -> bool:
        """Whether a thread other than this one is in a call, and goes on."""
        if self._parked:
            return False
        free = self.lock.acquire(blocking=False)
        if free:
            self.lock.release()
        return not free

    def after_fork(self) -> None:
        """In a child: other threads, which may have the lock, are not there."""
        if self.is_in_use():
            self._torn = True
            self.lock._at_fork_reinit()  # type: ignore[attr-defined]
        self._torn = self._torn or self._caller.depth > 0

    def _error(self, status: int) -> Error:
        details = text(lib.inv_context_details(self.pointer))
        message = text(lib.inv_context_message(self.pointer)) or text(lib.inv_status_text(status))
        return _ERRORS.get(status, Error)(in_python(message), _NAMES[status], json.loads(details) if details else None)


def _bury(dead: "Deque[Tuple[Destroy, Any]]") -> None:
    while dead:
        destroy, pointer = dead.popleft()
        destroy(pointer)


_contexts: "weakref.WeakSet[Context]" = weakref.WeakSet()
_ending = False


def _after_fork() -> None:
    for context in list(_contexts):
        context.after_fork()


def _end() -> None:
    """At exit only daemon threads are left. The libraries' own ends must not come while one is in a call: it is stopped,
    and waited for."""
    global _ending
    _ending = True
    limit = time.monotonic() + 10
    lib.invonnx_end(1)
    while any(context.is_in_use() for context in list(_contexts)) and time.monotonic() < limit:
        time.sleep(0.001)
    lib.invonnx_end(0)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_end)


def _caught(_kind: Any, value: BaseException, traceback: Any) -> None:
    """What a callback raises is raised again by the call that it was called from."""
    ffi.from_handle(traceback.tb_frame.f_locals["opaque"]).raised = value


def _log(opaque: Any, line: Any) -> None:
    LOG.info("%s", in_python(text(line)))


def _progress(opaque: Any, stage: Any, share: float) -> None:
    ffi.from_handle(opaque).progress(text(stage), share)


ffi.def_extern(name="invonnx_log", onerror=_caught)(_log)
ffi.def_extern(name="invonnx_progress", onerror=_caught)(_progress)

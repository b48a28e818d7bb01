# SPDX-License-Identifier: Apache-2.0
"""Arrays on their way in and out: `inv_array` over the caller's memory, NumPy over the session's."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from ._native import ffi, lib

Array = npt.NDArray[Any]
#: A NumPy array, whatever speaks DLPack (tensors of PyTorch, JAX, CuPy on the CPU), or what NumPy makes an array of.
ArrayLike = Any
#: Inputs of a model: one array, several in the model's order, or by name.
Inputs = Union[ArrayLike, Sequence[ArrayLike], Mapping[str, ArrayLike]]

_CODES: Dict[str, int] = {
    "float32": lib.INV_F32, "float64": lib.INV_F64, "float16": lib.INV_F16, "bfloat16": lib.INV_BF16,
    "uint8": lib.INV_U8, "uint16": lib.INV_U16, "uint32": lib.INV_U32, "uint64": lib.INV_U64,
    "int8": lib.INV_I8, "int16": lib.INV_I16, "int32": lib.INV_I32, "int64": lib.INV_I64, "bool": lib.INV_BOOL,
}
_TYPES: Dict[int, str] = {code: name for name, code in _CODES.items()}


def _from_dlpack(x: Any) -> Any:
    try:
        return np.from_dlpack(x)
    except (RuntimeError, BufferError):  # no type or no place of NumPy's
        try:
            return np.asarray(x)  # which knows JAX's bfloat16
        except Exception as error:
            raise TypeError(f"NumPy cannot read a tensor of type {getattr(x, 'dtype', '?')} on {getattr(x, 'device', '?')}. "
                            f"Give one that it can read, as x.float().cpu()") from error


def as_array(x: ArrayLike) -> Array:
    """The array itself, without a copy where its memory can be read as it is.

    Only what is not contiguous, not of the machine's byte order, or no array at all is copied.
    """
    if not isinstance(x, np.ndarray):
        x = _from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x)
    if not x.flags.c_contiguous or not x.dtype.isnative:
        x = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
    return x  # type: ignore[no-any-return]


def is_array(x: object) -> bool:
    return isinstance(x, np.ndarray) or hasattr(x, "__dlpack__")


class Frame:
    """`inv_array`s that are filled anew by each call; what stays as it was (names, types, shapes) is kept.

    An array whose first extent is the one that `whole` has for its name goes whole into every step: it has no rows.
    """

    def __init__(self, names: Sequence[str], whole: Mapping[str, int] = {}) -> None:
        self.names = tuple(names)
        self._whole = whole
        self.n = len(self.names)
        self.arrays: Any = ffi.new("inv_array[]", self.n)
        self.buffers: List[Any] = [None] * self.n
        self._seen: List[Tuple[Any, Tuple[int, ...]]] = [(None, ())] * self.n
        self._dims: List[Any] = [None] * self.n
        self.planned: Any = None  # what its shapes are known to fit; None as soon as one changes
        self._names = [ffi.new("char[]", name.encode()) for name in self.names]
        for i, name in enumerate(self._names):
            self.arrays[i].name = name

    def put(self, i: int, x: ArrayLike) -> None:
        """Array `i` is x from now on."""
        a = x if type(x) is np.ndarray and x.flags.c_contiguous and x.dtype.isnative else as_array(x)
        code, shape = self._seen[i]
        if a.dtype != code or a.shape != shape:
            self._describe(i, a.dtype, a.shape)
        if a.dtype.char not in "?bBhHiIlLqQefd":
            a = a.view(np.uint16)  # bfloat16, which the buffer protocol does not know
        self.buffers[i] = buffer = ffi.from_buffer(a)
        self.arrays[i].data = buffer

    def put_shape(self, i: int, dtype: Any, shape: Tuple[int, ...]) -> None:
        """Only the shape of array `i` matters."""
        self._describe(i, dtype, shape)
        self.arrays[i].data = ffi.NULL

    def _describe(self, i: int, dtype: Any, shape: Tuple[int, ...]) -> None:
        code = _CODES.get(np.dtype(dtype).name)
        if code is None:
            raise TypeError(f"'{self.names[i]}' is of type {dtype}, which the library does not take: "
                            f"{', '.join(_CODES)}")
        a = self.arrays[i]
        self._dims[i] = dims = ffi.new("int64_t[]", [int(d) for d in shape] or [0])
        a.dtype, a.rank, a.dims = code, len(shape), dims
        self._seen[i] = (dtype, tuple(shape))
        self.planned = None

    def rows(self) -> int:
        """The batch: the first extent of the first array that has one, and that does not go whole into every step."""
        firsts = [(name, shape[0]) for name, (_, shape) in zip(self.names, self._seen) if shape]
        return next((n for name, n in firsts if n != self._whole.get(name)), firsts[0][1] if firsts else 1)

    def shapes(self) -> Tuple[Tuple[str, str, Tuple[int, ...]], ...]:
        return tuple((name, str(dtype), shape) for name, (dtype, shape) in zip(self.names, self._seen))

    def dims(self, i: int) -> Any:
        return self._dims[i]

    def _has_rows(self, i: int, rows: int, known: Mapping[str, Tuple[int, ...]]) -> bool:
        """Whether the first extent of array `i` is the batch. If equal by chance, the extents of before tell."""
        name, shape = self.names[i], self._seen[i][1]
        if not shape or shape[0] != rows:
            return False
        first = (known.get(name) or (None,))[0]
        return first == -1 or rows not in (first, self._whole.get(name))

    def extents(self, rows: int, known: Mapping[str, Tuple[int, ...]]) -> Dict[str, Tuple[int, ...]]:
        """Shapes by name, with -1 where the batch is; `known` are those of a batch before."""
        return {name: (-1, *shape[1:]) if self._has_rows(i, rows, known) else shape
                for i, (name, (_, shape)) in enumerate(zip(self.names, self._seen))}

    def with_rows(self, rows: int, wanted: int, known: Mapping[str, Tuple[int, ...]]) -> "Frame":
        """The same for another batch; the arrays themselves only if it is the same one."""
        other = Frame(self.names)
        for i, (dtype, shape) in enumerate(self._seen):
            if self._has_rows(i, rows, known):
                shape = (wanted, *shape[1:])
            other.put_shape(i, dtype, shape)
            if rows == wanted:
                other.buffers[i] = self.buffers[i]
                other.arrays[i].data = self.arrays[i].data
        return other

    def release(self) -> None:
        """The caller's memory is not held any longer."""
        for i in range(self.n):
            self.buffers[i] = None
            self.arrays[i].data = ffi.NULL


def named(x: Inputs, names: Tuple[str, ...]) -> Tuple[Tuple[str, ...], Sequence[ArrayLike]]:
    """Inputs by name, in the order in which they are given."""
    if isinstance(x, Mapping):
        unknown = x.keys() - set(names)
        if unknown:
            raise ValueError(f"the model has no input {', '.join(sorted(map(repr, unknown)))}; it has {', '.join(names)}")
        return tuple(x), tuple(x.values())
    values: Sequence[Any] = x if isinstance(x, (tuple, list)) and (len(names) != 1 or len(x) == 1) else (x,)
    if len(values) != len(names):
        raise ValueError(f"the model has {len(names)} inputs ({', '.join(names)}), {len(values)} arrays were given")
    return names, values


class Lent:
    """Stands behind views of a session's memory: the session lives as long as they do."""

    def __init__(self, session: Any, view: Any) -> None:
        self.session = session
        dtype = _TYPES[view.dtype]
        shape = tuple(view.dims[0:view.rank])
        # NumPy has no bfloat16: such numbers are seen as their 16 bits.
        typestr = np.dtype("uint16" if dtype == "bfloat16" else dtype).str
        address = int(ffi.cast("uintptr_t", view.data))
        self.__array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (address, not view.persists), "version": 3,
        }
        self.counts = not view.persists
        session.lent += self.counts

    def __del__(self) -> None:
        self.session.lent -= self.counts


def copied(data: Any, dtype: int, dims: Sequence[int]) -> Array:
    """A copy of memory that the library has lent for the moment."""
    name = _TYPES[dtype]
    kind = np.dtype("uint16" if name == "bfloat16" else name)
    shape = tuple(dims)
    n = int(np.prod(shape, dtype=np.int64))
    flat = np.frombuffer(ffi.buffer(data, n * kind.itemsize), kind, n) if n else np.empty(0, kind)
    return flat.reshape(shape).copy()


def dtype_code(array: Array) -> int:
    return _CODES[array.dtype.name]


def optional_frame(target: Optional[ArrayLike]) -> Any:
    """The target alone as a frame; None: there is none."""
    if target is None:
        return None
    frame = Frame(("target",))
    frame.put(0, target)
    return frame

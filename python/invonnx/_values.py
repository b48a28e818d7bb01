# SPDX-License-Identifier: Apache-2.0
"""Reads the values of options. An error names the option, what it was given, and what it takes."""
from __future__ import annotations

import operator
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from ._native import ffi


def _wrong(error: "type[Exception]", name: str, value: Any, wants: str) -> Exception:
    shown = repr(value)
    return error(f"{name} is {shown if len(shown) <= 80 else shown[:77] + '...'}: it wants {wants}")


def wrong_type(name: str, value: Any, wants: str) -> Exception:
    return _wrong(TypeError, name, value, wants)


def wrong_value(name: str, value: Any, wants: str) -> Exception:
    return _wrong(ValueError, name, value, wants)


def flag(name: str, value: Any) -> bool:
    """True or False, or 1 or 0."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, (int, np.integer)) and value in (0, 1)):
        return bool(value)
    raise wrong_type(name, value, "True or False")


def whole(name: str, value: Any, low: int = 0, high: int = 2**63 - 1) -> int:
    """A whole number from `low` to `high`."""
    wants = f"a whole number from {low} to {high}" if abs(low) < 2**31 and high < 2**31 else f"a whole number, {low} or more"
    most = f"a whole number, {high} at most"
    if isinstance(value, (bool, np.bool_)):
        raise wrong_type(name, value, wants)
    try:
        number = operator.index(value)
    except TypeError:
        if not isinstance(value, (float, np.floating)) or not float(value).is_integer():
            raise wrong_type(name, value, wants) from None
        number = int(value)
    if not low <= number <= high:
        raise wrong_value(name, value, most if number > high >= 2**31 else wants)
    return number


def real(name: str, value: Any, wants: str = "a number") -> float:
    """A number, also one of NumPy's or a tensor of one element."""
    if isinstance(value, (bool, np.bool_, str, bytes)) or value is None:
        raise wrong_type(name, value, wants)
    try:
        return float(value)
    except OverflowError:
        raise wrong_value(name, value, wants) from None
    except (TypeError, ValueError):
        raise wrong_type(name, value, wants) from None


def chars(name: str, value: Any, keep: List[Any], wants: str = "text") -> Any:
    """A C string, which `keep` holds."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise wrong_type(name, value, wants)
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise wrong_value(name, value, f"{wants} that can be written as UTF-8") from None
    if b"\0" in data:
        raise wrong_value(name, value, f"{wants} without a zero byte")
    keep.append(ffi.new("char[]", data))
    return keep[-1]


def strings(name: str, values: Any, keep: List[Any]) -> Any:
    """A `const char *const *`; `keep` holds what it points to."""
    wants = "a list of names"
    if isinstance(values, str):
        raise wrong_type(name, values, f"{wants}, as [{values!r}]")
    try:
        len(values)  # an iterator would be used up
        items = list(values)
    except TypeError:
        raise wrong_type(name, values, wants) from None
    if isinstance(values, Mapping):
        raise wrong_type(name, values, wants)
    each = [chars(name, value, keep, wants) for value in items]
    keep.append(ffi.new("const char *[]", each))
    return keep[-1]


def words(enum: str, prefix: str) -> Dict[str, int]:
    """The words of a C enumeration."""
    return {name[len(prefix):].lower(): value for value, name in ffi.typeof(enum).elements.items()}


def word(name: str, value: Any, known: Mapping[str, int]) -> int:
    """The number of a word. A hyphen is as good as an underscore."""
    found = known.get(value.replace("-", "_")) if isinstance(value, str) else None
    if found is None and isinstance(value, str):
        raise ValueError(f"{name} is {value!r}: there are {', '.join(known)}")
    if found is None:
        raise wrong_type(name, value, f"one of {', '.join(known)}")
    return found


_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", 1):
    _UNITS.update({_letter: 1024**_power, _letter + "iB": 1024**_power, _letter + "B": 1000**_power})


def nbytes(name: str, value: Any) -> int:
    """Bytes from a number, or text such as ``"512MiB"``, ``"2G"`` (of 1024) or ``"500MB"`` (of 1000)."""
    wants = "a number of bytes, as 1500000, 512MiB, 2G or 500MB"
    if not isinstance(value, str):
        number = real(name, value, wants)
        if not 0 <= number < 2**63:
            raise wrong_value(name, value, wants)
        return int(value)
    digits = value.rstrip("KMGTiB ")
    try:
        found = float(digits) * _UNITS[value[len(digits):].strip()]
    except (ValueError, KeyError):
        raise wrong_value(name, value, wants) from None
    if not 0 <= found < 2**63:
        raise wrong_value(name, value, wants)
    return int(found)


def globs(name: str, value: Any, wants: str) -> Mapping[str, Any]:
    """Globs and what each is given."""
    if not isinstance(value, Mapping):
        raise wrong_type(name, value, wants)
    return value


def share_or_steps(name: str, value: Any, total: int) -> int:
    """Steps, or a share of all as ``"5%"``."""
    wants = "a number of steps, or a share of all as '5%'"
    if not isinstance(value, str):
        return whole(name, value)
    try:
        share = float(value[:-1]) if value.endswith("%") else -1.0
    except ValueError:
        share = -1.0
    if not 0 <= share <= 100:
        raise wrong_value(name, value, wants)
    if not total:
        raise wrong_value(name, value, "a number of steps, where total is not given")
    return int(share / 100 * total + 0.5)


def average(value: Any) -> "Dict[str, Any]":
    """The options that ``"ema:0.999"`` and ``"swa:FROM:EVERY"`` stand for."""
    wants = "True, 'ema:DECAY' as 'ema:0.999', or 'swa:FROM:EVERY' in steps"
    if not isinstance(value, str):
        try:
            return {"average": flag("average", value)}
        except TypeError:
            raise wrong_type("average", value, wants) from None
    kind, *rest = value.split(":")
    try:
        if kind == "ema" and len(rest) == 1 and 0 < float(rest[0]) < 1:
            return {"average": True, "average_decay": float(rest[0])}
        steps = [int(each) for each in rest]
        if kind == "swa" and len(steps) <= 2 and all(n >= 0 for n in steps):
            return {"average": True, **dict(zip(("average_from", "average_every"), steps))}
    except ValueError:
        pass
    raise wrong_value("average", value, wants)


def settings(name: str, text: str, known: Sequence[str]) -> "tuple[str, Dict[str, str]]":
    """``"GLOB:lr=X,weight-decay=Y"`` as a glob and its settings."""
    wants = "Group(...) or 'GLOB:lr=X,weight-decay=X,optimizer=NAME'"
    glob, _, rest = text.rpartition(":")
    pairs = [each.partition("=") for each in rest.split(",")]
    found = {key.strip().replace("-", "_"): value.strip() for key, _, value in pairs}
    if not glob or not all(mark for _, mark, _ in pairs) or not found.keys() <= set(known):
        raise wrong_value(name, text, wants)
    return glob, found



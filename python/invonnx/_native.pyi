# The compiled part, made by cffi from the C headers: names are those of include/invonnx/*.h.
from typing import Any

ffi: Any
lib: Any

# SPDX-License-Identifier: Apache-2.0
"""Runs a test that needs a CUDA device, or says why it does not and exits with 77, which ctest shows as skipped.

    need.py COMMAND...    runs it if there is a device
    need.py               only says what is there (exit 0) or what is missing (77)

INVONNX_CUDA=OFF, as the build sets it, means a build without the CUDA backend."""
import ctypes
import os
import sys


def missing():
    """Why there is no CUDA device, or None. Asks the driver, not invonnx: a broken backend must not look like that."""
    if os.environ.get("INVONNX_CUDA", "ON") != "ON":
        return "this build has no CUDA backend"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver (libcuda.so.1)"
    status = driver.cuInit(0)
    if status:
        return f"no CUDA device (cuInit: error {status})"
    count = ctypes.c_int(0)
    status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status or count.value == 0:
        return f"no CUDA device (error {status}, {count.value} devices)"
    return None


def main():
    why = missing()
    if why:
        print(f"skipped: {why}")
        return 77
    if len(sys.argv) > 1:
        os.execvp(sys.argv[1], sys.argv[1:])
    print("a CUDA device is there")
    return 0


if __name__ == "__main__":
    sys.exit(main())

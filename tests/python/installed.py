# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of the package over an installed library, and installs it into a folder of its own.

    installed.py BUILD_DIR FOLDER

BUILD_DIR is a build of the library; in FOLDER are afterwards `prefix`, the library as it is installed, `wheel`, and
`site`, which goes into PYTHONPATH."""
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    build, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["cmake", "--install", build, "--prefix", folder / "prefix"], check=True, stdout=subprocess.DEVNULL)
    (found,) = (folder / "prefix").rglob("invonnx.pc")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    environment = {**os.environ, "PKG_CONFIG_PATH": str(found.parent)}
    subprocess.run([*pip, "wheel", "--no-build-isolation", "--no-deps", "-C", "cmake.define.INVONNX_INSTALLED=ON",
                    "-C", f"build-dir={folder / 'build'}", "-w", folder / "wheel", ROOT], check=True, env=environment)
    (wheel,) = (folder / "wheel").glob("*.whl")
    assert "-cp39-abi3-" in wheel.name, wheel.name
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)


if __name__ == "__main__":
    main()

"""Compiling C for the tests of the native code."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "native"

Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """``compile_c(sources, *flags)`` gives the path of the program or library; the warnings are errors."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if not shutil.which(compiler[0]):
        pytest.skip(f"there is no C compiler ({compiler[0]}) on this machine")
    folder = tmp_path_factory.mktemp("compiled")

    def compile_all(sources: list[Path], *flags: str) -> Path:
        target = folder / f"c{len(list(folder.iterdir()))}.so"
        includes = [f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'runtime'}"]
        strict = ["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
        command = [
            *compiler,
            *strict,
            *includes,
            *flags,
            *map(str, sources),
            "-o",
            str(target),
            "-lm",
            "-ldl",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"
        return target

    return compile_all

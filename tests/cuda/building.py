"""The build of the stand-in: the CUDA plugin's sources and a runtime for them, as plain C++."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shlex
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# A signal that a register is clobbered by longjmp, or that a pragma is nvcc's, means nothing here; and where a system's
# compiler hardens by default, a longjmp to another stack, which is how a card's threads take turns, would be an abort.
FLAGS = ("-std=c++20", "-O2", "-U_FORTIFY_SOURCE", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas",
         "-Wno-clobbered", "-Wno-missing-field-initializers")  # fmt: skip


def builder():
    """native/build.py."""
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "native/build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["native_build"] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def standin_library():
    """Its path, built like the plugin, but by the C++ compiler; only what changed.

    ``STANDIN_SANITIZE=alignment,bounds,...`` in the environment: with these checks of the compiler's undefined behavior
    sanitizer, whose first finding ends the process.
    """
    build = builder()
    compiler = shlex.split(sysconfig.get_config_var("CXX") or "c++")
    includes = build.include_flags(build.INCLUDE, build.NATIVE, build.CUDA, HERE / "standin")
    small_strips = ("-DDF_STRIP_BYTES=4096", "-DDF_STRIP_ELEMENTS=256", "-DDF_STRIP_DEPTH=8")
    small_tables = ("-DDF_SQUARED_FEW=2", "-DDF_SQUARED_MANY=3", "-DDF_FUSED_BLOCKS=1", "-DDF_ROW_THREADS=128",
                    "-DDF_ATTENTION_NOTED=2")  # fmt: skip
    flags = ("-x", "c++", *small_strips, *small_tables, *includes)
    units = tuple(
        build.Unit(path, flags, f"standin/{build.object_name(folder, path)}")
        for folder, pattern in ((build.CUDA, "*.cu"), (HERE / "standin", "*.cpp"))
        for path in sorted(folder.rglob(pattern))
    )
    # A kernel of another package is linked with it, and finds the runtime there.
    exports = "df_plugin_entry; *standin*; *cuda*; cublasLt*; cudnn*; threadIdx; blockIdx; blockDim; gridDim"
    checks = os.environ.get("STANDIN_SANITIZE", "")
    sanitizers = (f"-fsanitize={checks}", "-fno-sanitize-recover=all") if checks else ()
    library = build.Library("standin", exports, units, (compiler[0], *FLAGS, *sanitizers), ("-ldl",))
    target = build.OBJECTS / ("standin-checked" if checks else "standin") / "_cuda.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:  # one of several test processes builds
        fcntl.flock(lock, fcntl.LOCK_EX)
        build.build_library(library, target)
    return target

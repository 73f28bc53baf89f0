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
FLAGS = ("-std=c++20", "-O1", "-U_FORTIFY_SOURCE", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas",
         "-Wno-clobbered", "-Wno-missing-field-initializers")  # fmt: skip


VENDORS = {"cublaslt.cpp", "cudnn.cpp"}  # what the plugin alone calls


def builder():
    """native/build.py."""
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "native/build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["native_build"] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def check_flags(checks):
    """Flags of everything, and of kernels alone, for these checks of what runs.

    ``alignment,bounds,...``: those of its undefined behavior sanitizer, whose first finding ends the process.
    ``races``: kernels say what they read and write, and accesses of threads that nothing orders end it, see
    standin/races.cpp.
    """
    if checks == "races":
        return ("-DSTANDIN_RACES",), ("-fsanitize=thread", "-O1", "-g1")  # with lines, which a report names
    return ((f"-fsanitize={checks}", "-fno-sanitize-recover=all") if checks else ()), ()


def precompiled(build, compiler, flags):
    """Flags of a source to have cuda_runtime.h precompiled: with C++'s own headers it was half of the time."""
    unit = build.Unit(HERE / "standin/cuda_runtime.h", ("-x", "c++-header", *flags), "standin/cuda_runtime")
    header = build.object_of(compiler, unit).with_suffix(".h")
    header.parent.mkdir(parents=True, exist_ok=True)
    with header.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        compiled = build.compile_unit(compiler, unit)
        # A compiler that can't take what is compiled takes the text.
        if not header.exists():
            header.write_text("#include <cuda_runtime.h>\n")
        found = header.with_suffix(".h.gch")
        if not found.exists():
            found.symlink_to(compiled.name)
    return ("-include", os.path.relpath(header, ROOT))


def standin_library(checks=None, plugin=True):
    """Its path, built like the plugin, but by the C++ compiler; only what changed.

    ``checks`` is by default what ``STANDIN_SANITIZE`` says in the environment; without ``plugin`` it is the runtime
    alone.
    """
    build = builder()
    compiler = shlex.split(sysconfig.get_config_var("CXX") or "c++")
    includes = build.include_flags(build.INCLUDE, build.NATIVE, build.CUDA, HERE / "standin")
    small_strips = ("-DDF_STRIP_BYTES=4096", "-DDF_STRIP_ELEMENTS=256", "-DDF_STRIP_DEPTH=8")
    small_tables = ("-DDF_SQUARED_FEW=2", "-DDF_SQUARED_MANY=3", "-DDF_FUSED_BLOCKS=1", "-DDF_ROW_THREADS=128",
                    "-DDF_ATTENTION_NOTED=2")  # fmt: skip
    if checks is None:
        checks = os.environ.get("STANDIN_SANITIZE", "")
    everywhere, kernels = check_flags(checks)
    flags = (*small_strips, *small_tables, *includes, *everywhere)
    # A kernel of another package is linked with it, and finds the runtime there.
    exports = ("df_plugin_entry", "*standin*", "*cuda*", "*__pipeline*", "cublasLt*", "cudnn*", "threadIdx", "blockIdx",
               "blockDim", "gridDim", "__tsan_*")  # fmt: skip
    begin = {own: precompiled(build, (compiler[0], *FLAGS), (*flags, *own)) for own in {kernels, ()}}
    units = tuple(
        build.Unit(path, ("-x", "c++", *begin[own], *flags, *own), f"standin/{build.object_name(folder, path)}")
        for folder, pattern, own in ((build.CUDA, "*.cu", kernels), (HERE / "standin", "*.cpp", ()))
        for path in sorted(folder.rglob(pattern))
        if plugin or (folder.name == "standin" and path.name not in VENDORS)
    )
    link = ("-ldl", *(flag for flag in everywhere if flag.startswith("-f")))
    kind = "races" if checks == "races" else "checked" if checks else "plain"
    name = f"standin-{kind}" if plugin else f"standin-{kind}-runtime"
    library = build.Library(name, "; ".join(exports), units, (compiler[0], *FLAGS), link)
    target = build.OBJECTS / name / "_cuda.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:  # one of several test processes builds
        fcntl.flock(lock, fcntl.LOCK_EX)
        build.build_library(library, target)
    return target

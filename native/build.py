"""The build of the native libraries; setuptools finds it through pyproject.toml.

``dataflow._runtime`` is a cffi extension: thread pool, segment executor and offset search, with the Python
side generated from the C headers. ``dataflow_cpu/_cpu.so`` and ``dataflow_cuda/_cuda.so`` are plain shared
libraries without Python in them, opened like anybody's device plugin. ``python native/build.py`` builds all in
place, doing only what changed.

The CUDA library is built where nvcc is found: as ``NVCC`` says, under ``CUDA_HOME``, or on the path.
``DATAFLOW_CUDA=off`` leaves it out, ``on`` makes it an error when there is no nvcc; ``DATAFLOW_CUDA_ARCHS``
("80;90") are the architectures that it has machine code for, with PTX of the last for newer ones.
``DATAFLOW_CPU_ISAS`` ("portable;avx2;avx512") are the instruction sets that the CPU library has code for beside the
portable one, and ``DATAFLOW_ISA_FLAGS`` ("portable:-O1;avx2:-O1") the flags of some after all others.
``DATAFLOW_SANITIZE=address,undefined`` builds with these sanitizers, without CUDA, and without portable code where
``DATAFLOW_CPU_ISAS`` doesn't name it; ``CC`` and ``CFLAGS`` work as usual.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cffi
import setuptools
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "native"
INCLUDE = NATIVE / "include"
RUNTIME = NATIVE / "runtime"
CPU = NATIVE / "cpu"
CUDA = NATIVE / "cuda"
OBJECTS = ROOT / "build/native"

# What Python sees, in the order in which the headers need each other.
CDEF_HEADERS = (INCLUDE / "dataflow.h", RUNTIME / "runtime.h", RUNTIME / "planner/offsets.h")
# Called by the runtime's log; the Python side gives it a body with ffi.def_extern().
CDEF_PYTHON = 'extern "Python" void df_log_python(int32_t severity, const char *text);'

JOBS = os.cpu_count() or 1
BASE_FLAGS = ("-std=c11", "-fPIC", "-pthread")
WARNINGS = ("-Wall", "-Wextra")
# Nothing that changes what a result means, so no -ffast-math. Contraction to fma is wanted; errno and the
# floating-point exception flags are not read.
KERNEL_FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
CUDA_ARCHS = "80;90"
# Before glibc 2.34 the dynamic loader's functions are a separate library.
LOADER = ("-ldl",) if sys.platform.startswith("linux") else ()
# ptxas tells what each kernel takes of a multiprocessor; it goes to a file beside the object (``usage_of``).
CUDA_USAGE = "-Xptxas=-v"
# The records of kernels name the members that they set.
CUDA_HOST_WARNINGS = ("-Wall", "-Wextra", "-Wno-missing-field-initializers")
ISA_FLAGS: dict[str, tuple[str, ...]] = {
    "portable": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c",
               "-mprefer-vector-width=512"),
}  # fmt: skip
# AMX: its processors have AVX-512 too; only the files that use AMX tiles are compiled with these flags.
AMX_FLAGS = (*ISA_FLAGS["avx512"], "-mavx512bf16", "-mamx-tile", "-mamx-bf16")
# VNNI, the dot products of bytes: files in folders named vnni have a copy of their own for each set that it extends.
VNNI_FLAGS = {"avx512": "-mavx512vnni", "avx2": "-mavxvnni"}


@dataclass(frozen=True, slots=True)
class Unit:
    """One compilation: a source, its flags, and the name of the object, which includes folders to be unique."""

    source: Path
    flags: tuple[str, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library to build.

    Attributes:
        exports: the one symbol that can be seen from outside.
        compiler: the command and the flags that compile and link all of it.
        link: flags of the link step alone.
    """

    name: str
    exports: str
    units: tuple[Unit, ...]
    compiler: tuple[str, ...]
    link: tuple[str, ...] = ()


# ---- what is built -----------------------------------------------------------------------------------


def runtime_library() -> Library:
    """``dataflow._runtime``; writes the generated binding that is among its sources."""
    ffi = cffi.FFI()
    for header in CDEF_HEADERS:
        plain = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", header.read_text(), flags=re.DOTALL | re.MULTILINE)
        ffi.cdef("\n".join(line for line in plain.splitlines() if not line.startswith("#")))
    ffi.cdef(CDEF_PYTHON)
    ffi.set_source("dataflow._runtime", "\n".join(f'#include "{path.relative_to(NATIVE)}"' for path in CDEF_HEADERS))
    binding = OBJECTS / "_runtime.c"
    binding.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(binding))  # leaves the file alone when nothing changed
    includes = include_flags(INCLUDE, RUNTIME)
    python = (f"-I{sysconfig.get_path('include')}", "-DPy_LIMITED_API=0x030B0000")
    flags = (optimization(), *WARNINGS, *includes)
    units = [Unit(path, flags, object_name(RUNTIME, path)) for path in sorted(RUNTIME.rglob("*.c"))]
    units.append(Unit(binding, ("-O2", *include_flags(NATIVE), *includes, *python), "runtime/binding"))
    return Library("dataflow._runtime", "PyInit__runtime", tuple(units), c_compiler(), ("-lm", *LOADER))


def cpu_library() -> Library:
    """``dataflow_cpu._cpu``: the plugin once, every kernel family once per instruction set.

    Files in folders named ``amx`` are compiled once, where the compiler knows AMX tiles; ``DF_AMX`` tells the plugin
    and the files for AVX-512 that they are there. Those in folders named ``vnni`` are compiled for AVX-512 and AVX2
    where the compiler knows these dot products, and ``DF_VNNI`` tells the files for those sets.
    """
    compiler = c_compiler()
    flags = (optimization(), *KERNEL_FLAGS, *WARNINGS, *include_flags(INCLUDE, NATIVE, CPU))
    x86_64 = platform.machine().lower() in ("x86_64", "amd64")
    asked = os.environ.get("DATAFLOW_CPU_ISAS", ";".join(ISA_FLAGS)).split(";")
    if unknown := set(asked) - {"", *ISA_FLAGS}:
        raise SystemExit(
            f"DATAFLOW_CPU_ISAS: there is no {', '.join(sorted(unknown))}; there are {'; '.join(ISA_FLAGS)}"
        )
    wanted = [isa for isa, own in ISA_FLAGS.items() if own and x86_64 and isa in asked]
    # A sanitized library is for one machine and the sets that are asked for: code that nobody runs isn't compiled.
    portable = not (wanted and sanitizer_flags()) or "portable" in asked
    wanted = [*(["portable"] if portable else []), *wanted]
    amx = ("-DDF_AMX",) if "avx512" in wanted and sys.platform == "linux" and takes_flags(compiler, AMX_FLAGS) else ()
    isas = {isa: (*ISA_FLAGS[isa], *(amx if isa == "avx512" else ())) for isa in wanted}
    there = tuple(f"-DDF_{isa.upper()}" for isa in wanted if isa != "portable")
    there += () if portable else ("-DDF_NO_PORTABLE",)
    vnni = {isa: flag for isa, flag in VNNI_FLAGS.items() if isa in isas and takes_flags(compiler, (flag,))}
    isas |= {isa: (*isas[isa], "-DDF_VNNI") for isa in vnni}
    given = os.environ.get("DATAFLOW_ISA_FLAGS", "")
    last = {isa: shlex.split(own) for isa, _, own in (entry.partition(":") for entry in given.split(";"))}
    special = {
        "amx": {"avx512": (*AMX_FLAGS, *amx)} if amx else {},
        "vnni": {isa: (*isas[isa], flag) for isa, flag in vnni.items()},
    }
    units = [Unit(CPU / "plugin.c", (*flags, *there, *amx), "cpu/plugin")]
    for source in sorted(set(CPU.rglob("*.c")) - {CPU / "plugin.c"}):
        for isa, own in special.get(source.parent.name, isas).items():
            everywhere = (*flags, "-fvisibility=hidden", f"-DDF_ISA={isa}")
            units.append(Unit(source, (*everywhere, *own, *last.get(isa, ())), f"{object_name(CPU, source)}-{isa}"))
    return Library("dataflow_cpu._cpu", "df_plugin_entry", tuple(units), compiler, ("-lm", *LOADER))


def cuda_library(nvcc: str) -> Library:
    """``dataflow_cuda._cuda``, with the CUDA runtime inside, so that it loads where there is no driver."""
    archs = os.environ.get("DATAFLOW_CUDA_ARCHS", CUDA_ARCHS).split(";")
    targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs]
    targets.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")
    strict = "-Werror" in shlex.split(os.environ.get("CFLAGS", ""))
    host = ",".join(("-fPIC", "-fvisibility=hidden", *CUDA_HOST_WARNINGS, *(("-Werror",) if strict else ())))
    warnings = ("-Werror=all-warnings",) if strict else ()
    # nvcc's -O is of the host's code, which launches; that of cards is optimized in any case, to the same PTX.
    compiler = (nvcc, "-std=c++20", "-O1", "-Xfatbin=-compress-all", *targets, f"-Xcompiler={host}", *warnings)
    flags = (CUDA_USAGE, *include_flags(INCLUDE, NATIVE, CUDA))
    units = [Unit(path, flags, object_name(CUDA, path)) for path in sorted(CUDA.rglob("*.cu"))]
    return Library("dataflow_cuda._cuda", "df_plugin_entry", tuple(units), compiler, ("-cudart=static",))


def object_name(folder: Path, source: Path) -> str:
    """``cpu/conv/winograd`` for native/cpu/conv/winograd.c: files of one name stand in several folders."""
    return str(source.relative_to(folder.parent).with_suffix(""))


def include_flags(*folders: Path) -> tuple[str, ...]:
    """From the top folder, where the compiler runs: objects of one copy of the tree serve in another."""
    return tuple(f"-I{os.path.relpath(folder, ROOT)}" for folder in folders)


def find_nvcc() -> str | None:
    """The CUDA compiler, or None where the library is left out; says so.

    Raises:
        SystemExit: ``DATAFLOW_CUDA=on`` and there is none.
    """
    wanted = os.environ.get("DATAFLOW_CUDA", "auto")
    if wanted not in ("auto", "on", "off"):
        raise SystemExit(f"error: DATAFLOW_CUDA={wanted!r}: expected auto, on or off")
    if wanted == "off" or sanitizer_flags() or sys.platform != "linux":
        return None
    toolkits = (os.environ.get("CUDA_HOME"), "/usr/local/cuda")
    beside = [str(Path(folder, "bin/nvcc")) for folder in toolkits if folder]
    commands = filter(None, (os.environ.get("NVCC"), *beside, "nvcc"))
    found = next(filter(None, map(shutil.which, commands)), None)
    if found is None and wanted == "on":
        raise SystemExit("error: DATAFLOW_CUDA=on, and there is no nvcc; install the CUDA toolkit or set CUDA_HOME")
    if found is None:
        print("nvcc was not found: building without the device cuda", flush=True)
    return found


def c_compiler() -> tuple[str, ...]:
    """The C compiler with the flags that everything is compiled and linked with."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    return (*command, *BASE_FLAGS, *sanitizer_flags(), *shlex.split(os.environ.get("CFLAGS", "")))


def takes_flags(compiler: Sequence[str], flags: Sequence[str]) -> bool:
    """True when the compiler knows all of ``flags``."""
    command = [*compiler, *flags, "-Werror", "-E", "-x", "c", os.devnull]
    return not subprocess.run(command, capture_output=True, check=False).returncode


# ---- how it is built ---------------------------------------------------------------------------------


def build_library(library: Library, target: Path) -> None:
    """Compiles what is out of date and links ``target``; other builds may run at the same time."""
    with ThreadPoolExecutor(JOBS) as pool:
        objects = list(pool.map(lambda unit: compile_unit(library.compiler, unit), library.units))
    newest = max(path.stat().st_mtime for path in objects)
    link = [*library.compiler, *shared_flags(library), *map(str, objects), *library.link]
    stamp = OBJECTS / f"{library.name}.link"
    wanted = shlex.join([*link, str(target)])
    if stamp.exists() and stamp.read_text() == wanted and target.exists() and target.stat().st_mtime >= newest:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    run_to(target, link)
    stamp.write_text(wanted)


def compile_unit(compiler: Sequence[str], unit: Unit) -> Path:
    """The object of ``unit``, compiled unless it is newer than the source and all headers that it read."""
    target = object_of(compiler, unit)
    if is_current(target, needs := target.with_suffix(".d")):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # The dependency file is written first: without the object it means nothing.
    usage = usage_of(target) if CUDA_USAGE in unit.flags else None
    source = os.path.relpath(unit.source, ROOT)
    run_to(target, [*compiler, *unit.flags, "-MMD", "-MF", str(needs), "-MT", "object", "-c", source], usage)
    return target


def object_of(compiler: Sequence[str], unit: Unit) -> Path:
    """Where the object of ``unit`` lies; another one for other flags."""
    digest = hashlib.sha256(shlex.join([*compiler, *unit.flags]).encode()).hexdigest()
    return OBJECTS / f"{unit.name}-{digest[:12]}.o"


def usage_of(target: Path) -> Path:
    """What ptxas said of the kernels in an object."""
    return target.with_suffix(".usage")


def is_current(target: Path, needs: Path) -> bool:
    """True when ``target`` is newer than every file that the compiler noted in ``needs``."""
    if not target.exists() or not needs.exists():
        return False
    made = target.stat().st_mtime
    names = needs.read_text().partition(":")[2].replace("\\\n", " ").split()
    return all(path.exists() and path.stat().st_mtime <= made for path in (ROOT / name for name in names))


def run_to(target: Path, command: Sequence[str], usage: Path | None = None) -> None:
    """Runs ``command -o target``, replacing the file in one step: a process may have the old one mapped.

    What the command says goes to ``usage``, and of that to the terminal what is no report of ptxas.
    """
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    line = [*command, "-o", str(unfinished)]
    # One write, so that two compilations do not end up on one line.
    sys.stdout.write(f"{shlex.join(line)}\n")
    sys.stdout.flush()
    try:
        done = subprocess.run(line, check=False, cwd=ROOT, stderr=None if usage is None else subprocess.PIPE, text=True)
        if usage is not None:
            usage.write_text(done.stderr)
            lines = done.stderr.splitlines(keepends=True)
            sys.stderr.write("".join(s for s in lines if "ptxas info" not in s and "bytes stack frame" not in s))
        if done.returncode:
            raise SystemExit(f"error: building {target.name} failed; the compiler's message is above")
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def sanitizer_flags() -> tuple[str, ...]:
    """Flags for ``DATAFLOW_SANITIZE``; none when it is not set."""
    sanitizers = os.environ.get("DATAFLOW_SANITIZE")
    if not sanitizers:
        return ()
    return (f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1")


def optimization() -> str:
    """The optimization level: lower under sanitizers, whose checks would take minutes to compile."""
    return "-O0" if sanitizer_flags() else "-O3"


def shared_flags(library: Library) -> tuple[str, ...]:
    """Linker flags for a shared library that exports one symbol."""
    if sys.platform == "darwin":
        return ("-bundle", "-undefined", "dynamic_lookup", f"-Wl,-exported_symbol,_{library.exports}")
    script = OBJECTS / f"{library.name}.map"
    script.write_text(f"{{ global: {library.exports}; local: *; }};\n")
    return ("-shared", "-Xlinker", f"--version-script={script}")


# ---- the setuptools command --------------------------------------------------------------------------


class BuildNative(build_ext):  # type: ignore[misc]  # setuptools has no types
    """Builds the libraries and puts the headers for plugin authors beside the core."""

    _found: list[Library] | None = None

    def run(self) -> None:
        """Builds into ``build_lib``, or beside the sources for an editable install."""
        if os.name != "posix":
            raise SystemExit("error: dataflow builds on Linux and macOS; Windows is not supported yet")
        for library in self._libraries():
            build_library(library, Path(self.get_ext_fullpath(library.name)))
        shutil.copytree(INCLUDE, self._package_directory() / "include", dirs_exist_ok=True)

    def get_ext_filename(self, fullname: str) -> str:
        """The file of an extension inside ``build_lib``."""
        *packages, name = fullname.split(".")
        file = "_runtime.abi3.so" if name == "_runtime" else f"{name}.so"
        return str(Path(*packages, file))

    def get_source_files(self) -> list[str]:
        """Everything under native/, which is how it comes into an sdist."""
        files = [path for path in (ROOT / "native").rglob("*") if path.suffix in (".c", ".cu", ".h", ".py")]
        return sorted(str(path.relative_to(ROOT)) for path in files)

    def get_outputs(self) -> list[str]:
        """The files that an install has from this command."""
        libraries = [self.get_ext_fullpath(library.name) for library in self._libraries()]
        headers = [str(self._package_directory() / "include" / path.name) for path in INCLUDE.glob("*.h")]
        return sorted(libraries + headers)

    def get_output_mapping(self) -> dict[str, str]:
        """Empty: an editable install has its libraries in the tree, where they were built."""
        return {}

    def _package_directory(self) -> Path:
        return ROOT / "dataflow" if self.inplace else Path(self.build_lib) / "dataflow"

    def _libraries(self) -> list[Library]:
        if self._found is None:
            nvcc = find_nvcc()
            self._found = [runtime_library(), cpu_library(), *([cuda_library(nvcc)] if nvcc else [])]
        return self._found


if __name__ == "__main__":
    os.chdir(ROOT)
    setuptools.setup(script_args=["--quiet", "build_ext", "--inplace"])

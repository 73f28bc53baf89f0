"""The build: what it compiles again, what its libraries export, what cffi is given."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def build(tmp_path, monkeypatch, compile_c):
    """native/build.py with its objects in a folder of the test."""
    assert compile_c  # skips where there is no compiler
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "native/build.py")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name
    monkeypatch.setitem(sys.modules, "native_build", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "OBJECTS", tmp_path / "objects")
    others = ("DATAFLOW_SANITIZE", "DATAFLOW_ISA_FLAGS", "DATAFLOW_CUDA", "DATAFLOW_CUDA_ARCHS")
    for variable in ("CFLAGS", "NVCC", "CUDA_HOME", *others):
        monkeypatch.delenv(variable, raising=False)
    return module


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "one.h").write_text("enum { ONE = 1 };\n")
    (folder / "one.c").write_text('#include "one.h"\nint one(void) { return ONE; }\n')
    (folder / "two.c").write_text("int one(void);\nint two(void) { return 2 * one() + EXTRA; }\n")
    return folder


def library_of(build, sources, extra=0):
    units = (
        build.Unit(sources / "one.c", (), "one"),
        build.Unit(sources / "two.c", (f"-DEXTRA={extra}",), "two"),
    )
    return build.Library("numbers", "two", units, build.c_compiler())


def call_two(path: Path) -> int:
    """What two() of the library returns; from a copy, because the loader keeps what it has opened."""
    copy = path.with_name(f"copy{len(list(path.parent.iterdir()))}.so")
    copy.write_bytes(path.read_bytes())
    return ctypes.CDLL(str(copy)).two()


def compiled(capfd) -> list[str]:
    """The sources that were compiled since the last call."""
    lines = capfd.readouterr().out.splitlines()
    return [line.split(" -c ")[1].split()[0].rsplit("/", 1)[1] for line in lines if " -c " in line]


def later(path: Path) -> None:
    """Makes ``path`` newer than everything else, whatever the file system's clock can tell apart."""
    path.touch()
    future = path.stat().st_mtime + 60
    os.utime(path, (future, future))


def test_only_what_changed_is_compiled(build, sources, tmp_path, capfd):
    target = tmp_path / "out/libnumbers.so"
    build.build_library(library_of(build, sources), target)
    assert sorted(compiled(capfd)) == ["one.c", "two.c"]
    assert call_two(target) == 2
    linked = target.stat().st_mtime_ns

    build.build_library(library_of(build, sources), target)
    assert compiled(capfd) == []
    assert target.stat().st_mtime_ns == linked

    (sources / "one.h").write_text("enum { ONE = 10 };\n")
    later(sources / "one.h")
    build.build_library(library_of(build, sources), target)
    assert compiled(capfd) == ["one.c"]
    assert call_two(target) == 20

    build.build_library(library_of(build, sources, extra=1), target)  # other flags
    assert "two.c" in compiled(capfd)
    assert call_two(target) == 21


def test_a_library_exports_one_symbol(build, sources, tmp_path):
    target = tmp_path / "libnumbers.so"
    build.build_library(library_of(build, sources), target)
    library = ctypes.CDLL(str(target))
    assert hasattr(library, "two")
    assert not hasattr(library, "one")


def test_a_failed_build_leaves_the_library_alone(build, sources, tmp_path, capfd):
    target = tmp_path / "libnumbers.so"
    build.build_library(library_of(build, sources), target)
    (sources / "two.c").write_text("int two(void) { return wrong; }\n")
    later(sources / "two.c")
    with pytest.raises(SystemExit, match=r"building two-.*failed"):
        build.build_library(library_of(build, sources), target)
    assert "wrong" in capfd.readouterr().err
    assert call_two(target) == 2


def test_a_kernel_family_is_compiled_per_instruction_set(build, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "CPU", tmp_path / "cpu")
    for name in ("plugin", "gemm/tile", "gemm/amx/tile"):
        (tmp_path / f"cpu/{name}.c").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"cpu/{name}.c").touch()
    monkeypatch.setattr(build, "takes_flags", lambda compiler, flags: True)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    own = [f"cpu/gemm/tile-{isa}" for isa in ("portable", "avx2", "avx512")]
    assert [unit.name for unit in build.cpu_library().units] == ["cpu/plugin", "cpu/gemm/amx/tile-avx512", *own]
    for unit in build.cpu_library().units:
        assert "-ffast-math" not in unit.flags
        assert not any(flag.startswith("-march") for flag in unit.flags)
    assert [u.name for u in build.cpu_library().units if "-mamx-bf16" in u.flags] == ["cpu/gemm/amx/tile-avx512"]
    assert [u.name for u in build.cpu_library().units if "-DDF_AMX" in u.flags] == [
        "cpu/plugin",
        "cpu/gemm/amx/tile-avx512",
        "cpu/gemm/tile-avx512",
    ]
    monkeypatch.setenv("DATAFLOW_CPU_ISAS", "avx2")
    assert [unit.name for unit in build.cpu_library().units] == ["cpu/plugin", *own[:2]]
    assert [f for f in build.cpu_library().units[0].flags if f.startswith("-DDF_")] == ["-DDF_AVX2"]
    monkeypatch.setenv("DATAFLOW_SANITIZE", "address")
    assert [unit.name for unit in build.cpu_library().units] == ["cpu/plugin", own[1]]
    assert "-DDF_NO_PORTABLE" in build.cpu_library().units[0].flags
    monkeypatch.setenv("DATAFLOW_CPU_ISAS", "avx2;portable")
    assert [unit.name for unit in build.cpu_library().units] == ["cpu/plugin", *own[:2]]
    monkeypatch.setenv("DATAFLOW_CPU_ISAS", "")
    assert [unit.name for unit in build.cpu_library().units] == ["cpu/plugin", own[0]]
    monkeypatch.delenv("DATAFLOW_SANITIZE")
    monkeypatch.setenv("DATAFLOW_CPU_ISAS", "avx512;sse")
    with pytest.raises(SystemExit, match=r"DATAFLOW_CPU_ISAS: there is no sse; there are portable; avx2; avx512"):
        build.cpu_library()
    monkeypatch.delenv("DATAFLOW_CPU_ISAS")
    monkeypatch.setattr(build, "takes_flags", lambda compiler, flags: False)
    assert [unit.name for unit in build.cpu_library().units] == ["cpu/plugin", *own]
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    assert [unit.name for unit in build.cpu_library().units] == ["cpu/plugin", own[0]]


def test_an_instruction_set_has_flags_of_its_own(build, monkeypatch):
    plain = {unit.name: unit.flags for unit in build.cpu_library().units}
    monkeypatch.setenv("DATAFLOW_ISA_FLAGS", "portable:-O1 -g;avx2:-O2")
    for unit in build.cpu_library().units:
        own = {"portable": ("-O1", "-g"), "avx2": ("-O2",)}.get(unit.name.rpartition("-")[2], ())
        assert unit.flags == (*plain[unit.name], *own)


def test_cuda_is_left_out_without_nvcc_and_says_so(build, monkeypatch, capsys):
    monkeypatch.setattr(build.shutil, "which", lambda command: None)
    assert build.find_nvcc() is None
    assert "nvcc was not found: building without the device cuda" in capsys.readouterr().out
    monkeypatch.setenv("DATAFLOW_CUDA", "on")
    with pytest.raises(SystemExit, match=r"DATAFLOW_CUDA=on, and there is no nvcc"):
        build.find_nvcc()
    monkeypatch.setenv("DATAFLOW_CUDA", "maybe")
    with pytest.raises(SystemExit, match=r"expected auto, on or off"):
        build.find_nvcc()


def test_nvcc_is_looked_for_where_the_user_says(build, monkeypatch, tmp_path):
    monkeypatch.setattr(build.sys, "platform", "linux")
    monkeypatch.setattr(build.shutil, "which", lambda command: command)
    assert build.find_nvcc() == "/usr/local/cuda/bin/nvcc"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert build.find_nvcc() == str(tmp_path / "bin/nvcc")
    monkeypatch.setenv("NVCC", "my-nvcc")
    assert build.find_nvcc() == "my-nvcc"
    monkeypatch.setenv("DATAFLOW_CUDA", "off")
    assert build.find_nvcc() is None


def test_cuda_has_binaries_and_ptx_and_warnings_are_errors_where_they_are_in_c(build, monkeypatch):
    flags = build.cuda_library("nvcc").compiler
    wanted = ["arch=compute_80,code=sm_80", "arch=compute_90,code=sm_90", "arch=compute_90,code=compute_90"]
    assert [flag.removeprefix("-gencode=") for flag in flags if flag.startswith("-gencode")] == wanted
    assert "-Werror=all-warnings" not in flags
    assert not any("fast" in flag for flag in flags)
    monkeypatch.setenv("CFLAGS", "-Werror")
    assert "-Werror=all-warnings" in build.cuda_library("nvcc").compiler


def test_objects_of_a_copy_are_those_of_the_tree(build):
    """What is compiled in one copy of the tree can be used in another: no flag and no name holds the tree's path."""
    for library in (build.runtime_library(), build.cpu_library(), build.cuda_library("nvcc")):
        objects = [str(build.object_of(library.compiler, unit).relative_to(build.OBJECTS)) for unit in library.units]
        assert len(set(objects)) == len(library.units)
        assert not [flag for unit in library.units for flag in unit.flags if str(ROOT) in flag]

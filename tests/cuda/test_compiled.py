"""Each CUDA source that changed since it passed is compiled, what is found fails and isn't recorded."""

from __future__ import annotations

import pytest

from tests.cuda import compiled
from tests.cuda.building import ROOT, builder

NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "release $RELEASE"; exit; fi
while [ $# -gt 0 ]; do case "$1" in *.cu) source="$1" ;; -o) touch "$2" ;; esac; shift; done
echo "$source" >>"$LOG"
case "$source" in */reduce.cu) cat "$SAID" >&2 ;; */cast.cu) exit "${REFUSED:-0}" ;; esac
"""
SAID = """ptxas info    : Compiling entry function '_Z5sortsPf' for 'sm_90'
ptxas info    : Used {} registers
"""


@pytest.fixture
def compiles(monkeypatch, tmp_path):
    """``compiles(registers=, NAME=value)``: the status, and the sources that nvcc was given."""
    nvcc, log = tmp_path / "nvcc", tmp_path / "log"
    nvcc.write_text(NVCC)
    nvcc.chmod(0o755)
    given = {"NVCC": nvcc, "LOG": log, "SAID": tmp_path / "said", "CFLAGS": "", "DATAFLOW_CUDA": "on"}
    for name, value in {**given, "DATAFLOW_CUDA_ARCHS": "80", "RELEASE": "1"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("DATAFLOW_SANITIZE", raising=False)
    monkeypatch.setattr(compiled, "RECORD", tmp_path / "compiled")

    def run(registers=20, **environment):
        (tmp_path / "said").write_text(SAID.format(registers))
        log.write_text("")
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            return compiled.main(), sorted(log.read_text().split())

    return run


def test_what_passed_is_not_compiled_again(compiles):
    every = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "native/cuda").rglob("*.cu"))
    assert compiles() == (0, every)
    assert compiles() == (0, [])
    assert compiles(RELEASE="2") == (0, every)
    lines = compiled.RECORD.read_text().splitlines()
    compiled.RECORD.write_text("\n".join(line for line in lines if not line.endswith("queue.cu")))
    assert compiles(RELEASE="2") == (0, ["native/cuda/queue.cu"])


def test_what_is_found_fails_until_it_is_mended(compiles, capsys):
    assert compiles(registers=200, REFUSED="1")[0] == 1
    said = capsys.readouterr().err
    assert "native/cuda/reduce/reduce.cu: sorts: 200 registers, at most 64 are allowed" in said
    assert "native/cuda/map/cast.cu: error: building kernels.fatbin failed" in said
    assert compiles(registers=200) == (1, ["native/cuda/map/cast.cu", "native/cuda/reduce/reduce.cu"])
    assert compiles() == (0, ["native/cuda/reduce/reduce.cu"])


def test_a_line_is_of_the_headers_the_flags_and_the_limits(tmp_path):
    folders = (ROOT / "native/include", ROOT / "native", ROOT / "native/cuda")
    unit = builder().Unit(ROOT / "native/cuda/map/cast.cu", (), "cuda/map/cast")
    assert set(folders[1].glob("cuda/map/map.h")) < set(compiled.files_of(unit.source, folders))
    assert ROOT / "native/include/dataflow.h" in compiled.files_of(unit.source, folders)

    def line(flag="-O1", limits=None, folders=folders):
        return compiled.line_of(unit, folders, (flag,), limits or {})

    assert line() == line() == line(limits={"no kernel of this source": 1})
    (tmp_path / "dataflow.h").write_text("#define ANOTHER\n")
    others = [line("-O2"), line(limits={"cast": 1}), line(limits={"cast": 2}), line(folders=(tmp_path, *folders))]
    assert len({line(), *others}) == 5

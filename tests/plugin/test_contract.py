"""The contract in C compiles wherever it is included, and docs/plugins.md lists all of it with tests that there are."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dataflow as df
from dataflow._runtime import ffi
from dataflow.cli.plugin import plugin_test
from dataflow.execute.execution import thread_count
from dataflow.plugin.hookspecs import HOOKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/plugins.md").read_text()
HEADER = (ROOT / "native/include/dataflow.h").read_text()
ROWS = {row.split("`")[1]: row for row in PAGE.splitlines() if row.startswith("| `")}


HEADERS = "#include <dataflow.h>\n#include <dataflow_inline.h>\n#include <dataflow_steps.h>\n"
LANGUAGES = {"c": "c11", "c++": "c++17"}
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]


def clang_of(language):
    """The name that clang has here, with a number or without one; None where there is none."""
    name = {"c": "clang", "c++": r"clang\+\+"}[language]
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    files = (path.name for folder in folders if folder.is_dir() for path in folder.iterdir())
    return min((file for file in files if re.fullmatch(name + r"(-\d+)?", file)), key=len, default=None)


@pytest.mark.parametrize("language", LANGUAGES)
def test_headers_compile_without_warnings_by_gcc(language):
    compile_headers({"c": "gcc", "c++": "g++"}[language], language)


@pytest.mark.parametrize("language", LANGUAGES)
def test_headers_compile_without_warnings_by_clang(language, tmp_path):
    """By the compiler, by clang-tidy, which has its front end, or by both: what there is."""
    compiler = clang_of(language)
    tidy = shutil.which("clang-tidy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if compiler is None and tidy is None:
        pytest.skip("needs clang or clang-tidy")
    if compiler is not None:
        compile_headers(compiler, language)
    if tidy is not None:
        source = tmp_path / f"headers.{'c' if language == 'c' else 'cpp'}"
        source.write_text(HEADERS)
        # One check beside the compiler's warnings: older versions refuse to run with none.
        checks = ["--quiet", "--checks=-*,clang-diagnostic-*,misc-misplaced-const", "--warnings-as-errors=*"]
        flags = [f"-std={LANGUAGES[language]}", *STRICT, f"-I{df.get_include()}"]
        subprocess.run([tidy, *checks, "--header-filter=.*", source, "--", *flags], check=True)


def compile_headers(compiler, language):
    flags = [f"-std={LANGUAGES[language]}", *STRICT, "-fsyntax-only", f"-I{df.get_include()}"]
    subprocess.run([compiler, *flags, "-x", language, "-"], input=HEADERS, text=True, check=True)


def test_the_page_lists_every_hook():
    assert [hook for hook in HOOKS if hook not in ROWS] == []


def test_the_page_lists_every_variable_of_the_environment():
    sources = [path for folder in ("dataflow", "plugins", "importers", "native") for path in (ROOT / folder).rglob("*")]
    texts = (path.read_text() for path in sources if path.suffix in (".py", ".c", ".h", ".cu"))
    found = {name for text in texts for name in re.findall(r"\bDATAFLOW_[A-Z_]+[A-Z]\b", text)} - {"DATAFLOW_H"}
    guards = {name for name in found if name.endswith("_H")}
    assert found - guards == {
        name for row in PAGE.splitlines() for name in re.findall(r"`(DATAFLOW_\w+)`", row.split(" | ")[0])
    }


def test_the_page_lists_every_option_of_the_kit():
    options = {max(option.opts, key=len) for option in plugin_test.params if option.param_type_name == "option"}
    assert options == {name for row in ROWS.values() for name in re.findall(r"`(--\w+)`", row.split(" | ")[0])}


def test_threads_are_those_of_the_environment(monkeypatch):
    monkeypatch.delenv("DATAFLOW_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert thread_count(None) == 3
    monkeypatch.setenv("DATAFLOW_NUM_THREADS", "2")
    assert thread_count(None) == 2
    assert thread_count(4) == 4
    monkeypatch.setenv("DATAFLOW_NUM_THREADS", "many")
    with pytest.raises(df.InputError, match="DATAFLOW_NUM_THREADS"):
        thread_count(None)


def test_the_page_lists_every_member_of_every_table():
    tables = set(re.findall(r"^(?:typedef )?struct (df_\w+) \{", HEADER, re.MULTILINE))
    assert len(tables) > 20
    for table in tables:
        members = {name for name, _ in ffi.typeof(table).fields}
        assert members == set(re.findall(r"`(\w+)`", ROWS[table].split("|")[2])), table


def test_the_page_lists_every_helper():
    texts = [(ROOT / f"native/include/{name}.h").read_text() for name in ("dataflow_inline", "dataflow_cuda")]
    macros = {name for text in texts for name in re.findall(r"^#define (df_\w+|DF_\w+)\(", text, re.MULTILINE)}
    functions = {name for text in texts for name in re.findall(r"^static .*?\b(df_\w+)\(", text, re.MULTILINE)}
    listed = {name for row in PAGE.splitlines() for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    assert macros | functions <= listed
    assert len(functions) > 20


def test_tests_that_the_page_names_are_there():
    named = re.findall(r"`(tests/[\w/.]+)`: `(\w+)`", PAGE)
    assert len(named) > 30
    for file, test in named:
        assert re.search(rf"(def|void) {test}\(", (ROOT / file).read_text()), (file, test)


def test_what_grows_is_not_compared_with_its_size_of_today():
    """A table of an older contract is shorter than that of today."""
    for path in (ROOT / "native/runtime").rglob("*.c"):
        assert not re.search(r"struct_size\s*<\s*sizeof", path.read_text()), path.name

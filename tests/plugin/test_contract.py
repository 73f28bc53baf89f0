"""The contract in C compiles wherever it is included, and docs/plugins.md lists all of it with tests that there are."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import dataflow as df
from dataflow._runtime import ffi
from dataflow.plugin.hookspecs import HOOKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/plugins.md").read_text()
HEADER = (ROOT / "native/include/dataflow.h").read_text()
ROWS = {row.split("`")[1]: row for row in PAGE.splitlines() if row.startswith("| `")}


@pytest.mark.parametrize("compiler", ["gcc", "g++", "clang", "clang++"])
@pytest.mark.parametrize("header", ["dataflow.h", "dataflow_inline.h"])
def test_headers_compile_without_warnings(compiler, header):
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    language, standard = ("c++", "c++17") if compiler.endswith("++") else ("c", "c11")
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{df.get_include()}"]
    source = f"#include <{header}>\n"
    subprocess.run([compiler, *flags, "-x", language, "-"], input=source, text=True, check=True)


def test_the_page_lists_every_hook():
    assert [hook for hook in HOOKS if hook not in ROWS] == []


def test_the_page_lists_every_member_of_every_table():
    tables = set(re.findall(r"^(?:typedef )?struct (df_\w+) \{", HEADER, re.MULTILINE))
    assert len(tables) > 20
    for table in tables:
        members = {name for name, _ in ffi.typeof(table).fields}
        assert members == set(re.findall(r"`(\w+)`", ROWS[table].split("|")[2])), table


def test_tests_that_the_page_names_are_there():
    named = re.findall(r"`(tests/[\w/.]+)`: `(\w+)`", PAGE)
    assert len(named) > 30
    for file, test in named:
        assert re.search(rf"(def|void) {test}\(", (ROOT / file).read_text()), (file, test)


def test_what_grows_is_not_compared_with_its_size_of_today():
    """A table of an older contract is shorter than that of today."""
    for path in (ROOT / "native/runtime").rglob("*.c"):
        assert not re.search(r"struct_size\s*<\s*sizeof", path.read_text()), path.name

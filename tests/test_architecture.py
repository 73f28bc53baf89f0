"""docs/architecture.md says what is so: its paths exist, its order of layers is the one that is tested."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.test_layers import LAYERS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text()
MOST_FILES, MOST_LINES = 30, 350
SOURCES = (".py", ".c", ".h", ".cu")


def tracked(*folders):
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    files = [ROOT / name for name in listed.split()] or [p for f in folders for p in (ROOT / f).rglob("*")]
    return [p for p in files if p.suffix in SOURCES and p.exists()]


def section(title):
    return PAGE.split(f"## {title}")[1].split("\n## ")[0]


@pytest.mark.parametrize("page", ["docs/architecture.md", "README.md", "CONTRIBUTING.md"])
def test_every_path_that_a_page_names_exists(page):
    named = re.findall(
        r"`((?:dataflow|native|importers|plugins|tests|docs|benchmarks)/[\w./-]*)`", (ROOT / page).read_text()
    )
    assert named
    assert [path for path in named if "FAMILY" not in path and not (ROOT / path).exists()] == []


def test_the_order_of_layers_is_the_one_that_is_tested():
    (listed,) = re.findall(r"`(errors host [a-z ]+)`", PAGE)
    layers = [layer for layer in LAYERS if (ROOT / "dataflow" / layer).is_dir() or layer in listed.split()]
    assert listed.split() == layers


def test_every_question_is_answered_by_a_path():
    questions = [line for line in section("Where is ...").splitlines() if line.startswith("|")][2:]
    assert len(questions) >= 10
    assert all(line.count("`") >= 2 for line in questions)


def test_no_folder_of_the_core_holds_more_files_than_one_can_look_over():
    folders = {path.parent for path in tracked("dataflow")}
    crowded = [f for f in folders if sum(path.parent == f for path in tracked("dataflow")) > MOST_FILES]
    assert crowded == []


def test_every_long_file_has_one_reason_to_change():
    listed = set(re.findall(r"^\| `([^`]+)` \|", section("Long files"), re.MULTILINE))
    sources = tracked("dataflow", "native", "importers", "plugins")
    long = {str(p.relative_to(ROOT)) for p in sources if len(p.read_text().splitlines()) > MOST_LINES}
    assert listed == long

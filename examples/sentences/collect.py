"""Writes topics.csv: sentences of dataflow's docstrings and pages, and the part of dataflow that each speaks of.

python examples/sentences/collect.py
"""

from __future__ import annotations

import ast
import csv
import random
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = {
    "adapters": ["dataflow/adapters", "dataflow/layers", "docs/training/lora.md"],
    "data": ["dataflow/train/data", "docs/training/data.md"],
    "reading": ["importers/dataflow_onnx", "docs/models.md"],
    "gradients": ["dataflow/passes"],
    "losses": ["dataflow/train/losses", "dataflow/train/metrics", "docs/training/losses.md"],
    "memory": ["dataflow/planning", "docs/training/memory.md"],
    "optimizers": ["dataflow/train/optimizers", "dataflow/train/schedules", "docs/training/optimizers.md"],
    "plugins": ["dataflow/plugin", "dataflow/testing", "docs/plugins.md"],
}
EACH = 75  # sentences


def sentences(path: Path) -> Iterator[str]:
    """The first paragraphs of a file's docstrings, or the sentences of a page."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield (ast.get_docstring(node) or "").split("\n\n")[0]
    else:
        prose = re.sub(r"```.*?```|^[|#].*?$|^ {4}.*?$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        for paragraph in re.split(r"\n\s*\n", prose):
            yield from re.split(r"(?<=\.)\s+(?=[A-Z`*])", paragraph.strip())


def main() -> None:
    """Writes the file; the order is random, but the same each time."""
    order = random.Random(0)
    rows = []
    for topic, sources in SOURCES.items():
        paths = [p for source in sources for p in sorted((ROOT / source).rglob("*.py")) or [ROOT / source]]
        found = dict.fromkeys(re.sub(r"\s+|``?", " ", s).strip() for path in paths for s in sentences(path))
        rows += [(text, topic) for text in order.sample([s for s in found if 30 <= len(s) <= 160], EACH)]
    order.shuffle(rows)
    with (HERE / "topics.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("text", "topic"), *rows])


if __name__ == "__main__":
    main()

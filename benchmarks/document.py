"""Puts the figures of ``results/*.json`` into docs/benchmarks.md, so that no figure is copied by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from report import FOLDER

PAGE = Path(__file__).parents[1] / "docs/benchmarks.md"


def table(record: Mapping[str, Any]) -> str:
    """When and where one benchmark ran, and a table of its results; goals are upper limits of ``ratio``."""
    results = record["results"]
    columns = list(dict.fromkeys(key for result in results for key in result if key != "goal"))
    goals = any("goal" in result for result in results)
    machine = record["machine"]
    versions = "".join(f", {key} {value}" for key, value in record.items() if isinstance(value, str) and key in PEERS)
    lines = [f"{record['date']}, {machine['processor']}, {machine['cores']} cores{versions}.", ""]
    lines.append("| " + " | ".join([c.replace("_", " ") for c in columns] + ["goal for ratio"] * goals) + " |")
    lines.append("| " + " | ".join(["---"] * (len(columns) + goals)) + " |")
    for result in results:
        cells = [text(result.get(column, "")) for column in columns]
        if goals:
            cells.append(verdict(result) if "goal" in result else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


PEERS = ("onnxruntime", "torch")


def verdict(result: Mapping[str, Any]) -> str:
    met = "met" if result["ratio"] <= result["goal"] else "**missed**"
    return f"at most {result['goal']}: {met}"


def text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def filled(page: str) -> str:
    """The page with new tables between its ``<!-- NAME -->`` and ``<!-- end -->`` marks."""

    def fill(mark: re.Match[str]) -> str:
        path = FOLDER / f"{mark[1]}.json"
        return f"<!-- {mark[1]} -->\n\n{table(json.loads(path.read_text()))}\n\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", fill, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))

"""Measures every model of a folder, each in a process of its own, and writes the table of docs/models.md.

A row that is there is not measured again, so that a run that was stopped goes on; ``--again`` measures it. Files that
``export.py`` wrote come with what PyTorch computed; any other ``.onnx`` may lie beside them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results/zoo.jsonl"
PAGE = HERE.parents[1] / "docs/models.md"
STAGES = ("run", "gradients", "steps", "time", "first")
FIGURES = ("error_ratio", "ratio", "first_ratio", "numpy_nodes", "gradient_error", "pytorch_gradient_error")
MARK = "## The zoo\n"
INTRO = """
`benchmarks/zoo/run.sh FOLDER` exports the models (random weights, nothing is downloaded), runs each on the CPU and
writes this table: a line per architecture, with the worst of its variants (both exporters, fixed and named sizes).
error: the largest difference from float64 as a multiple of onnxruntime's, over all bindings of named sizes; ratio,
first: time of a run, and from the file to the first result, as a part of onnxruntime's; NumPy: nodes that run there;
gradient: the largest deviation of a parameter's gradient from PyTorch's in float64, and PyTorch's own of that gradient
in float32; loss: after twenty steps as a part of the first; saved: the saved file's difference in onnxruntime.

Gradients that deviate by more than 1e-4 do so by rounding, as PyTorch's own in float32; or because an activation or a
maximum lies within rounding of a kink, as a run in float64 shows (`regnet_x_400mf`: 3 activations, `resnext50`: 3,
`squeezenet1_1`: one maximum); or because the exporter stored what a bias gives for a flow of zeros (`raft_small`).
Steps are AdamW's of 1e-4; where the loss rises by these, as random weights let it (`deeplabv3_mobilenet_v3_large`,
`fcn_resnet50`, `raft_small`), of 1e-6. Times are taken apart from the rest, on a machine that does nothing else; those
below half a millisecond vary by what the machine's host does. Times of 46 files, all that were above 1 but
`fcn_resnet50`, were taken again on 2026-11-23 on two cores of an AMD EPYC; `generator` was then 1.3 to 1.84 in four
rounds, `pyramid` 1.27 to 1.46, `mnasnet0_5` 0.97 to 1.28, `squeezenet1_1` 0.94 to 1.16, `fasterrcnn` 0.96 to 1.16.
"""


def measure(path: Path, stages: Sequence[str], seconds: float, memory: int, threads: int) -> dict[str, Any]:
    """A row; stages that the limits ended are missing."""
    command = [sys.executable, str(HERE / "measure.py"), str(path), *stages, "--threads", str(threads)]
    row: dict[str, Any] = {"model": path.stem}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (memory, memory)),
    )
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    out, err = process.communicate()
    late = not timer.is_alive()
    timer.cancel()
    done = []
    for line in out.splitlines():
        if line.startswith("{"):
            found = json.loads(line.replace(f"{path.parent}/", ""))  # what is said of a file is the same in any folder
            done.append(found.pop("stage"))
            row |= found
    if process.returncode:
        at = next((stage for stage in ("load", *stages) if stage not in done), "end")
        why = f"longer than {seconds:g} s" if late else f"exit {process.returncode}: {err.strip()[-300:]}"
        row[f"{at}_failed"] = why
    return row


def models(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """The files whose names fit one of the patterns."""
    for path in sorted(folder.glob("*.onnx")):
        if any(fnmatch(path.stem, pattern) for pattern in patterns):
            yield path


def read(results: Path) -> dict[str, dict[str, Any]]:
    """Rows by model; a later line of the file replaces an earlier one's entries."""
    found: dict[str, dict[str, Any]] = {}
    if results.exists():
        for line in results.read_text().splitlines():
            row = json.loads(line)
            found[row["model"]] = row
    return found


def line(row: Mapping[str, Any]) -> str:
    """A row of the page."""
    failed = [f"{key.removesuffix('_failed')}: {text}" for key, text in row.items() if key.endswith("_failed")]
    if "refusal" in row:
        failed = [refusal_of(row)]
    loads = row.get("loads")
    cells = [row["model"], loads if isinstance(loads, str) else "yes" if loads else "no"]
    cells += [
        _short(row.get(k))
        for k in ("error_ratio", "ratio", "first_ratio", "numpy_nodes", "gradient_error", "pytorch_gradient_error")
    ]
    cells += [_short(row["last_loss"] / row["loss"] if row.get("loss") else None), _short(row.get("saved_error"))]
    cells.append(" ".join("; ".join(failed).split()).replace("|", "\\|")[:160])
    return "| " + " | ".join(cells) + " |"


def refusal_of(row: Mapping[str, Any]) -> str:
    """Why a model isn't loaded; where onnxruntime can't run the file either, what that says."""
    said = row.get("onnxruntime_refuses")
    return f"{row['model']} is not valid: {said}" if said else str(row["refusal"])


def _short(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def joined(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of an architecture's variants: the worst of each figure, and how many of them load."""
    found: dict[str, Any] = {"model": rows[0]["model"].partition(".")[0]}
    found["loads"] = f"{sum(bool(row.get('loads')) for row in rows)} of {len(rows)}"
    for key in sorted({key for row in rows for key in row} - found.keys()):
        values = [row[key] for row in rows if key in row]
        if key == "refusal":
            refused = [refusal_of(row) for row in rows if not row.get("loads")]
            found |= {key: refused[0]} if refused else {}
        elif key.endswith("_failed"):
            found[key] = values[0]
        elif all(isinstance(v, (int, float)) for v in values):
            found[key] = max(values)
    if "loss" in found:  # of the variant whose loss falls least
        worst = max((row for row in rows if row.get("loss")), key=lambda row: row["last_loss"] / row["loss"])
        found |= {"loss": worst["loss"], "last_loss": worst["last_loss"]}
    return found


def write_page(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """The table in the place of the page's last section."""
    text = PAGE.read_text().split(MARK)[0].rstrip()
    head = "| model | loads | error | ratio | first | NumPy | gradient | PyTorch's | loss | saved | what fails |"
    groups = itertools.groupby(sorted(rows.values(), key=lambda r: r["model"]), lambda r: r["model"].partition(".")[0])
    lines = [line(joined(list(group))) for _, group in groups]
    table = "\n".join([head, "|" + " --- |" * head.count(" | ") + " --- |", *lines])
    PAGE.write_text(f"{text}\n\n{MARK}{INTRO}{of_times(rows)}\n{table}\n")


def of_times(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A sentence about all files together."""
    ratios = [row["ratio"] for row in rows.values() if "ratio" in row]
    longer = sum(ratio > 1 for ratio in ratios)
    mean = statistics.geometric_mean(ratios) if ratios else 0.0
    return f"The ratios of {len(ratios)} files have a geometric mean of {mean:.2f}; {longer} of them are above 1.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=["*"], metavar="GLOB", help="models, e.g. 'bert.*'")
    parser.add_argument("--list", action="store_true", help="print their names and what is known of them")
    parser.add_argument("--stages", nargs="*", choices=STAGES, default=list(STAGES))
    parser.add_argument("--again", action="store_true", help="also rows that are there")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=300, help="the longest that a model may take")
    parser.add_argument("--memory", type=float, default=8, help="the most GiB that it may take")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--page", action="store_true", help="write docs/models.md")
    options = parser.parse_args()
    rows = read(options.results)
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)
    paths = list(models(options.folder, options.only))
    if options.list:
        for path in paths:
            print(line(rows.get(path.stem, {"model": path.stem})))
        return
    wanted = [path for path in paths if options.again or path.stem not in rows]
    begin = time.monotonic()
    for done, path in enumerate(wanted, 1):
        limit = int(options.memory * 2**30)
        row = measure(path, options.stages, options.seconds, limit, options.threads)
        kept = {k: v for k, v in rows.get(path.stem, {}).items() if k != "refusal" and not k.endswith("_failed")}
        row = rows[path.stem] = kept | row
        with options.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(line(row), flush=True)
        spent = time.monotonic() - begin
        left = f"about {spent / done * (len(wanted) - done) / 60:.0f} minutes left"
        print(f"{done} of {len(wanted)} after {spent / 60:.0f} minutes, {left}", file=sys.stderr, flush=True)
    if options.page:
        write_page(dict(sorted(rows.items())))


if __name__ == "__main__":
    main()

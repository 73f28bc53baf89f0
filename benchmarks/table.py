"""Writes docs/benchmarks.md from benchmarks/results/*.json."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
ORDER = ("startup", "chain", "training", "planner", "light")
INTRO = """# Benchmarks

`benchmarks/run.sh` runs them and writes `benchmarks/results/*.json`; `benchmarks/table.py` makes this page of those.
Each competitor is measured in the same run, taking turns; figures are medians over the rounds, and the ratio is the
median of the rounds' ratios (ours divided by theirs, less is better). The machines are shared and noisy: absolute times
drift between minutes, so only ratios count. Under `chrt -r 1` two spinning threads don't share a core.

A median far above the usual (about 4 ms for torch's MLP step on this machine) means that something else ran: such a
run says nothing. Over
a day's calm runs the MLP's ratio was between 0.68 and 0.82, in most between 0.74 and 0.79, and the CNN's, since max
pooling finds places by vectors, between 0.29 and 0.42.

Convolution at batch 1 runs from packed copies of constant weights, which the plan names (`packs` in the table `light`):
3x3 kernels on planes from 20 x 20 on by Winograd's F(4x4, 3x3), 1x1 kernels as products of matrices, groups of one
channel and first layers by kernels of their own, the rest as tiles over positions and filters. Batch norms and scales
behind a convolution are part of its weights, residuals and relu are added where sums are stored. In `light` each turn
begins with a rest and a run that does not count, since onnxruntime's threads spin after a run and on two cores would
take one from whoever comes next.

No model's scratch memory (`arena`) is above its largest live set, `of live set` in the table `planner`.

What is not reached yet: where most of the work lies on planes of 14 x 14 and less (resnet50, inception_v2) and where
layers are small (squeezenet) onnxruntime is still ahead, by its layout with channels innermost; packed weights come on
top of the weights, 4 times as large for Winograd; the minimalloc instances, which an exact solver packs into their
capacity, take 7% to 27% more.
"""


def main() -> None:
    parts = [INTRO]
    for name in ORDER:
        record = json.loads((HERE / f"results/{name}.json").read_text())
        machine = record["machine"]
        versions = ", ".join(f"{k} {record[k]}" for k in ("onnxruntime",) if k in record)
        parts.append(f"## {name}\n\n{record['date']}, {machine['processor']}, {machine['cores']} cores, Python "
                     f"{machine['python']}{', ' + versions if versions else ''}\n")  # fmt: skip
        keys = list(dict.fromkeys(key for row in record["results"] for key in row))
        parts.append("| " + " | ".join(k.replace("_", " ") for k in keys) + " |\n|" + " --- |" * len(keys))
        parts += ["| " + " | ".join(_short(row.get(key, "")) for key in keys) + " |" for row in record["results"]]
        parts.append("")
    (HERE.parent / "docs/benchmarks.md").write_text("\n".join(parts))


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()

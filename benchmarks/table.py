"""Writes docs/benchmarks.md, and the table of means in README.md, from benchmarks/results/*.json."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ORDER = {
    "light": "Inference of the nine light models of the onnx package and of BERT-base over 128 words, against "
    "onnxruntime. Weights and inputs are random and new in every run, and the values before Softmax are compared "
    "before anything is timed; at batch 1 both are also compared with float64 (error: the largest, as a part of the "
    "largest result; ours may be four times the other's). The geometric mean's goal is capped by the floors like those "
    "of its rows.",
    "quantized": "Inference of models that onnxruntime's quantizers wrote (random weights, up to the logits), against "
    "onnxruntime on the same file. QDQ: activations and weights of 8 bits, by channel; with weights of 7 bits its "
    "kernels for AVX2 don't saturate. dynamic: activations by the range of each run. 4 bits: weights by blocks of 32. "
    "off: the mean difference of the logits, as a part of their mean magnitude.",
    "training": "A training step with AdamW, against PyTorch eager and JAX (one jitted step). All begin with the same "
    "random weights, and their losses are compared. ResNet-50 trains with the statistics of its batches.",
    "tokens": "A token of a decoder with a cache (random weights) after so many others, against onnxruntime with its "
    "cache as inputs and outputs. off: the largest difference of the logits, as a part of the largest.",
    "precision": "The same work at each precision of products (`precision=`), beside the strict float32 of the tables "
    "above: `to_float32` is the time as a part of ours in float32, the other ratios are to peers that compute in "
    "float32, and to PyTorch under autocast to bfloat16. error: the largest against float64, as a part of the largest "
    "result; loss off: of the loss after the first turns, from PyTorch's.",
    "loading": "From the file to the first result, in a fresh process that has run another, small model before.",
    "binding": "A plan for sizes that are new to a loaded model: milliseconds of CPU time, of runs the least of "
    "several, behind the first two sizes. The second of a kind is made with traced sizes, which takes longer; those "
    "behind it get its numbers. The machine was shared. The ratio is to 8 and 15 ms for the encoder, to 0.1 ms per "
    "node for others.",
    "memory": "The most memory of that process (peak), and what it holds after three runs (resident), less the "
    "weights, and less a process that has run the small model alone.",
    "training_memory": "The same of a process that trains, less weights and AdamW's two moments, and the time of its "
    "steps as a part of the fastest competitor's; in JAX what XLA says that the step takes. The ratio is to the least "
    "memory of the competitors, at the budget of ours with the least memory that is no slower than the fastest.",
    "chain": "10,000 small ops in a row, without folding and fusion: what a node costs beside its work.",
    "gpu_training": "On a card (`benchmarks/gpu.sh`): a training step with AdamW that takes its batch from the host "
    "and brings the loss back, against PyTorch with CUDA graphs and, where its column is there, torch.compile (of the "
    "network, mode reduce-overhead). Storage is float32 here; PyTorch's bf16 is autocast, and its channels lie last in "
    "one of its ways where there are images. "
    "Both take batches from page-locked memory; `plain`: ours from any array. MB: the most memory of the card, ours as "
    "planned, PyTorch's as its allocator says of a step without graph. again: the same some minutes later.",
    "gpu_inference": "On a card: a forward pass from arrays of the host to arrays of the host, in page-locked memory "
    "on both sides (`Session.staged`; `plain`: ours from and to any arrays), against PyTorch with CUDA graphs, for "
    "images with channels last too (`forward_last`).",
    "gpu_kernels": "On a card: bandwidth of kernels on operands of 256 MB as a share of a copy's (the ratio is its "
    "inverse), and what a node of a captured chain costs.",
    "gpu_steps": "On a card: what the ops of a training step take by the card's clock, beside the least that a model "
    "of the card predicts from their bytes and operations (`benchmarks/gpu_model.py`); times: the one divided by the "
    "other.",
    "gpu_traffic": "Without a card (`benchmarks/gpu_traffic.py`): what a training step with AdamW moves through a "
    "card's memory and how often it launches, counted from its plans: each operand of a step is read once, each result "
    "written once. Networks are as PyTorch exports them, batch norm has fixed statistics, and values wait for backward "
    "in float32 where no other dtype is named. predicted: by `benchmarks/gpu_model.py`, the least that they take "
    "on a card with the peaks of its data sheet; nothing of it is measured.",
    "startup": "Import and size on disk.",
    "planner": "Peak memory against the largest live set (bound), no model above it; known instances, which an exact "
    "solver packs into their capacity.",
}
SETS = {"": "", ", AVX2": ".avx2"}  # of instructions: what a title and a file's name say of them
# The README's rows: of which records, what, beside whom.
MEANS = (
    (("light", "light, AVX2"), "inference, nine convolutional networks and BERT", "ONNX Runtime"),
    (("quantized", "quantized, AVX2"), "inference, quantized models of 8, 7 and 4 bits", "ONNX Runtime"),
    (("tokens", "tokens, AVX2"), "a token of a decoder", "ONNX Runtime"),
    (("loading",), "from a file to its first result", "ONNX Runtime"),
    (("memory",), "memory of inference, beyond weights", "ONNX Runtime"),
    (("training",), "a training step with AdamW", "the better of PyTorch and JAX"),
    (("training_memory",), "memory of a training step, beyond weights and moments", "the least of PyTorch and JAX"),
)
MARKED = re.compile(r"(?<=<!-- benchmarks/table.py -->\n).*?(?=<!-- end -->)", re.DOTALL)  # in README.md
BESIDE = "The same where the processor has AVX2 and not AVX-512."
INTRO = """# Benchmarks

`benchmarks/run.sh` runs them, makes an environment for the competitors from `benchmarks/requirements.txt`, writes
`benchmarks/results/*.json` and makes this page of those. No code path knows a model or a size of them
(`tests/test_benchmarks.py`).

Each competitor is measured in the same run, taking turns; each turn begins with a rest and a step that does not count,
since the threads of whoever came before still spin. Figures are medians over the rounds, and the ratio is the median of
the rounds' ratios (ours divided by the best competitor's, less is better). The machines are shared and noisy: absolute
times drift between minutes, so only ratios count. Under `chrt -r 1` two spinning threads don't share a core.

Beside a figure stand its floors: `arithmetic ms`, the operations that the ops declare at the rate of our fastest
matrix product on this machine (Winograd's convolutions need fewer, so they may be below it), and `bytes ms`, weights,
inputs and results once (in training weights and moments read and written) at the rate of a copy. A goal is met at its
ratio or at 1.10 of the larger floor; `goal` is the larger of the two. `dataflow bench MODEL` shows the same by op.
"""


def main() -> None:
    records = recorded()
    parts = [INTRO, *_missed(records)]
    for name, record in records.items():
        machine = record["machine"]
        versions = ", ".join(f"{k} {record[k]}" for k in ("onnxruntime", "card", "tree") if k in record)
        above = name.split(",")[0]  # the same of processors with AVX-512
        text = ORDER[above] if name == above or above not in records else BESIDE
        parts.append(f"## {name}\n\n{text}\n\n{record['date']}, {machine['processor']}, {machine['cores']} "
                     f"cores, Python {machine['python']}{', ' + versions if versions else ''}\n")  # fmt: skip
        rows = [_shown(row) for row in record["results"]]
        keys = list(dict.fromkeys(key for row in rows for key in row))
        parts.append("| " + " | ".join(k.replace("_", " ") for k in keys) + " |\n|" + " --- |" * len(keys))
        parts += ["| " + " | ".join(_short(row.get(key, "")) for key in keys) + " |" for row in rows]
        parts.append("")
    (HERE.parent / "docs/benchmarks.md").write_text("\n".join(parts))
    readme = HERE.parent / "README.md"
    readme.write_text(MARKED.sub(lambda _: means(records), readme.read_text()))


def recorded() -> dict[str, Any]:
    """The records in ``results``, by the titles of their sections."""
    files = {f"{name}{beside}": HERE / f"results/{name}{file}.json" for name in ORDER for beside, file in SETS.items()}
    return {name: json.loads(path.read_text()) for name, path in files.items() if path.exists()}


def means(records: Mapping[str, Any]) -> str:
    """The README's table: of each kind of work the geometric mean and the range of the ratios, when and where."""
    lines = ["| what | beside | ratio, mean | best to worst | measured |", "| --- | --- | --- | --- | --- |"]
    for names, what, peer in MEANS:
        for name in names:
            if name not in records:
                continue
            record = records[name]
            ratios = [row["ratio"] for row in record["results"] if "ratio" in row and "mean" not in row["what"]]
            mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
            where = f"{record['date']}, {record['machine']['processor'].removesuffix(' Processor')}"
            lines.append(f"| {what}{name.removeprefix(names[0])} | {peer} | {mean:.2f} | {min(ratios):.2f} to "
                         f"{max(ratios):.2f} of {len(ratios)} | {where.replace('(R)', '')} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def _missed(records: Mapping[str, Any]) -> list[str]:
    """A section with the rows whose goal is not met."""
    rows = [(name, row) for name, record in records.items() for row in record["results"] if _met(row) == "no"]
    lines = [f"- {name}: {row['what']}: {row['ratio']:.3g}, goal {row['goal']:.3g}" for name, row in rows]
    return ["## What is not reached\n", *lines, ""] if lines else []


def _met(row: Mapping[str, Any]) -> str:
    return "" if "goal" not in row else "yes" if row["ratio"] <= row["goal"] else "no"


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of the page: without minima, which the JSON has."""
    shown = {key: value for key, value in row.items() if not key.endswith("_min_ms") and key != "floor_ratio"}
    return shown | ({"met": _met(row)} if "goal" in row else {})


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()

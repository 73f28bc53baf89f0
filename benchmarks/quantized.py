"""Inference of models that onnxruntime's tools quantized to 8 and 4 bits, against onnxruntime on the same file."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from engines import onnxruntime_session, rested
from light import fresh
from onnx import version_converter
from onnxruntime import quantization as tools
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from report import geometric, interleaved, row, said, write

import dataflow as df

GOAL = 0.9
FAR = 0.2  # of the mean result: rounding to 8 bits amplifies what two engines add in other orders
IMAGES, TEXT = ("resnet50", "densenet121", "inception_v1", "shufflenet", "squeezenet"), ("bert",)

Feeds = Mapping[str, np.ndarray]


class Batches(tools.CalibrationDataReader):
    """The one batch whose ranges are taken."""

    def __init__(self, feeds: Feeds) -> None:
        self._left: Iterator[dict[str, np.ndarray]] = iter([dict(feeds)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def static(bits: int) -> Callable[[str, str, Feeds], None]:
    """QDQ, weights by channel; of 7 bits what doesn't saturate where pairs of products are added in 16."""
    types = {7: tools.QuantType.QUInt8, 8: tools.QuantType.QInt8}  # of activations

    def quantize(path: str, to: str, feeds: Feeds) -> None:
        how = {"activation_type": types[bits], "weight_type": tools.QuantType.QInt8, "per_channel": True}
        tools.quantize_static(path, to, Batches(feeds), reduce_range=bits == 7, **how)

    return quantize


def dynamic(path: str, to: str, feeds: Feeds) -> None:
    """Weights of 7 bits, activations by the range that they have."""
    tools.quantize_dynamic(path, to, weight_type=tools.QuantType.QInt8, reduce_range=True)


def by_blocks(path: str, to: str, feeds: Feeds) -> None:
    """Weights of 4 bits in blocks of 32."""
    made = MatMulNBitsQuantizer(onnx.load(path), block_size=32, is_symmetric=True)
    made.process()
    onnx.save(made.model.model, to)


WAYS = {
    "QDQ, 7 bits": (static(7), (*IMAGES, *TEXT)),
    "QDQ, 8 bits": (static(8), (*IMAGES, *TEXT)),
    "dynamic": (dynamic, TEXT),
    "4 bits": (by_blocks, TEXT),
}


def stored(name: str, path: str) -> Feeds:
    """Writes a model with random weights, up to its logits, in an opset that the quantizer knows; gives an input."""
    model, logits, feeds = fresh(name)
    if model.graph.output[0].name != logits:  # after Softmax a difference may not be seen
        kept = [node for node in model.graph.node if node.op_type != "Softmax"]
        del model.graph.node[:], model.graph.output[:]
        model.graph.node.extend(kept)
        model.graph.output.append(onnx.helper.make_tensor_value_info(logits, onnx.TensorProto.FLOAT, None))
    model.ir_version = max(model.ir_version, 8)  # tensors needn't be inputs
    onnx.save(version_converter.convert_version(model, 17), path)
    return feeds


def measured(what: str, path: str, feeds: Feeds, rounds: int, threads: int) -> dict[str, object]:
    ours, theirs = df.Session(df.load(path), devices=["cpu"], threads=threads), onnxruntime_session(path, threads)
    expected = theirs.run(None, dict(feeds))
    found = [*ours.run(feeds).values()]
    off = max(float(np.abs(a - b).mean() / np.abs(b).mean()) for a, b in zip(found, expected, strict=True))
    assert off <= FAR, f"{what}: the results differ by {off:.2g}"
    runs = {"dataflow": lambda: ours.run(feeds), "onnxruntime": lambda: theirs.run(None, dict(feeds))}
    times = interleaved(rounds, {name: rested(run) for name, run in runs.items()})
    return said(row(f"{what}, {threads} threads", times, GOAL, off=off))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="*", choices=(*IMAGES, *TEXT), help="these instead of all; writes no results")
    parser.add_argument("--threads", nargs="*", type=int, default=[2, 1])
    options = parser.parse_args()
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        files: dict[tuple[str, str], tuple[str, Feeds]] = {}
        for name in options.only or (*IMAGES, *TEXT):
            path = str(Path(folder) / f"{name}.onnx")
            feeds = stored(name, path)
            for way, (quantize, names) in WAYS.items():
                if name in names:
                    to = str(Path(folder) / f"{name}.{len(files)}.onnx")
                    quantize(path, to, feeds)
                    files[way, name] = to, feeds
        for threads in options.threads:
            rows = [measured(f"{n}, {way}", *file, options.rounds, threads) for (way, n), file in files.items()]
            found += [*rows, geometric(f"geometric mean, {threads} threads", rows, GOAL)]
    write("quantized", found, keep=bool(options.only), onnxruntime=onnxruntime.__version__)


if __name__ == "__main__":
    main()

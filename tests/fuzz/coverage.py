"""Coverage-guided fuzzing of the reader and the wire format, by atheris: ``python -m tests.fuzz coverage``.

Each target runs in a process of its own, since atheris instruments what is imported after it. An exception that is
allowed is nothing; another one is a finding, and fuzzing goes on; a process that dies leaves its last input, and a new
one takes its place. Inputs that reached something new are kept in one compressed file beside this one.
"""

from __future__ import annotations

import json
import lzma
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from .campaign import Report
from .corpus import PATH, archive, unpack
from .findings import ROOT, Finding, allowed, finding_of

KEPT = PATH.with_name("reached.xz")
MOST_KEPT = 600  # inputs per target
MOST_BYTES = 4000  # of one
TARGETS = ("wire", "reader")


def cover(minutes: float, seed: int, keep: bool = False) -> Report:
    """Fuzzes each target for its part of the time.

    Args:
        minutes: in all.
        seed: of libFuzzer.
        keep: enter inputs that reached something new into the file beside this one.
    """
    report = Report("coverage", seed)
    kept = dict(unpack(KEPT)) if KEPT.exists() else {}
    begin = time.monotonic()
    for number, name in enumerate(TARGETS):
        end = begin + 60 * minutes * (number + 1) / len(TARGETS)
        with tempfile.TemporaryDirectory(prefix="fuzz-") as text:
            folder = Path(text)
            (folder / "corpus").mkdir()
            started = [data for _, data in unpack(PATH)] + [d for n, d in kept.items() if n.startswith(name)]
            for index, data in enumerate(started):
                (folder / "corpus" / str(index)).write_bytes(data)
            _fuzz(report, name, folder, seed, max(end - time.monotonic(), 1))
            while time.monotonic() < end - 5 and report.counts:  # it died
                _fuzz(report, name, folder, seed, end - time.monotonic())
            if keep:
                kept = {n: d for n, d in kept.items() if not n.startswith(name)} | _reached(name, folder)
    if keep:
        KEPT.write_bytes(lzma.compress(archive(kept), preset=9))
    report.seconds = time.monotonic() - begin
    return report


def _fuzz(report: Report, name: str, folder: Path, seed: int, seconds: float) -> None:
    """One process of libFuzzer, until its time is over or it dies."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    options = [f"-max_total_time={max(int(seconds), 1)}", f"-seed={seed}", "-timeout=10", "-rss_limit_mb=4096",
               f"-max_len={MOST_BYTES}", f"-artifact_prefix={folder}/died-", "-print_final_stats=1"]  # fmt: skip
    done = _run(name, folder, [str(folder / "corpus"), *options])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report.cpu_seconds += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    counts = folder / "counts.json"
    if counts.exists():
        found = json.loads(counts.read_text())
        report.counts.update(Counter({f"{name} {word}": n for word, n in found["words"].items()}))
        for kind, where, text in found["findings"]:
            report.enter(0, Finding(kind, where, text), {})
        counts.unlink()
    else:
        report.enter(0, Finding("crash", f"{name}: nothing ran", done[-2000:]), {})
    for path in folder.glob("died-*"):
        kind = "hang" if "timeout" in path.name else "memory" if "oom" in path.name else "crash"
        target = ROOT / "build/fuzz" / f"{name}-{path.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        report.enter(0, Finding(kind, f"{name}: {_last_frame(done)}", f"input {target}: {done[-300:]}"), {})
        path.unlink()


def _run(name: str, folder: Path, arguments: list[str]) -> str:
    command = [sys.executable, "-m", "tests.fuzz.coverage", name, str(folder), *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.stdout.decode(errors="replace")


def _last_frame(text: str) -> str:
    frames = [line.strip() for line in text.splitlines() if line.strip().startswith(("#0 ", "#1 ", "File "))]
    return frames[-1][:80] if frames else "unknown"


def _reached(name: str, folder: Path) -> dict[str, bytes]:
    """The smallest inputs that together reach what all do."""
    (folder / "merged").mkdir()
    _run(name, folder, ["-merge=1", str(folder / "merged"), str(folder / "corpus")])
    own = {data for _, data in unpack(PATH)}
    found = [path.read_bytes() for path in (folder / "merged").iterdir()]
    found = sorted({data for data in found if data not in own and len(data) <= MOST_BYTES}, key=len)[:MOST_KEPT]
    return {f"{name}{index}": data for index, data in enumerate(found)}


# ---- in the process of its own -------------------------------------------------------------------------


def _wire(data: bytes) -> str:
    """What is walked without decoding must be what protobuf decodes."""
    import onnx
    from google.protobuf.message import DecodeError

    from dataflow_onnx.file import wire

    wire.WORTH_SHARING = 8
    content = wire.content_of(data)
    assert content.to_bytes() == data, "the chunks are not all of the model"
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        return "undecodable"
    small = onnx.ModelProto.FromString(content.small)
    for index, array in content.large.items():
        tensor = small.graph.initializer[index]
        assert not tensor.raw_data, "large data lie twice"
        tensor.raw_data = array.tobytes()
    assert small.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True), "another model"
    return "shared" if content.large else "small"


def _reader(data: bytes) -> str:
    """Reading gives a model or one of our errors."""
    from dataflow_onnx.loading import load_bytes

    load_bytes(data)
    return "read"


def _process(name: str, folder: Path, arguments: list[str]) -> None:
    """Runs libFuzzer in this process; never returns."""
    import atheris

    with atheris.instrument_imports(include=["dataflow_onnx"]):
        pass
    check: Callable[[bytes], str] = {"wire": _wire, "reader": _reader}[name]
    words: Counter[str] = Counter()
    findings: dict[str, list[str]] = {}
    written = 0.0

    def once(data: bytes) -> None:
        nonlocal written
        try:
            words[check(data)] += 1
        except Exception as error:
            words["refused" if allowed(error) else "foreign"] += 1
            if not allowed(error):
                found = finding_of(error, name)
                if found.where not in findings:
                    findings[found.where] = [found.kind, found.where, f"{found.text}: {data[:2000].hex()}"]
                    written = 0.0
        if time.monotonic() - written > 0.5:
            written = time.monotonic()
            (folder / "counts.tmp").write_text(json.dumps({"words": words, "findings": [*findings.values()]}))
            (folder / "counts.tmp").rename(folder / "counts.json")

    os.environ["DATAFLOW_CUDA"] = "off"
    atheris.Setup([sys.argv[0], *arguments], once)
    atheris.Fuzz()


if __name__ == "__main__":
    _process(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])

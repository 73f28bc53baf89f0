"""Coverage-guided fuzzing of the wire format, the reader and what follows it: ``python -m tests.fuzz coverage``.

Each target runs in processes of its own, since atheris instruments what is imported after it. An exception that is
allowed is nothing; another one is a finding, and fuzzing goes on; a process that dies leaves its last input, and a new
one takes its place. Inputs that reached something new are kept in one compressed file beside this one.

``wire`` gets bytes as libFuzzer mutates them; ``reader`` and ``runs`` get models that our own mutations change too, and
``runs`` runs what it loads and compares with the reference.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import random as standard
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .campaign import CPU_SECONDS, Report
from .corpus import PATH, archive, unpack
from .findings import ROOT, Finding, allowed, finding_of

KEPT = PATH.with_name("reached.xz")
MOST_KEPT = 600  # inputs per target
MOST_BYTES = 4000  # of one
TARGETS = ("wire", "reader", "runs")
SLEEPS = 300  # seconds in which a busy machine gives CPU_SECONDS to a process: one that needs more waits for something


def cover(minutes: float, seed: int, keep: bool = False, jobs: int = 1) -> Report:
    """Fuzzes each target for its part of the time.

    Args:
        minutes: in all.
        seed: of libFuzzer.
        keep: enter inputs that reached something new into the file beside this one.
        jobs: processes beside each other, each with a seed of its own.
    """
    report = Report("coverage", seed)
    kept = dict(unpack(KEPT)) if KEPT.exists() else {}
    begin = time.monotonic()
    before = _cpu_seconds()
    for number, name in enumerate(TARGETS):
        end = begin + 60 * minutes * (number + 1) / len(TARGETS)
        started = [data for _, data in unpack(PATH)] + [d for n, d in kept.items() if n.startswith(name)]
        with tempfile.TemporaryDirectory(prefix="fuzz-") as text:
            folders = [Path(text) / str(job) for job in range(jobs)]
            with ThreadPoolExecutor(jobs) as pool:
                every = [pool.submit(_until, end, name, folder, seed + i, started) for i, folder in enumerate(folders)]
            for one in every:
                _join(report, one.result())
            if keep:
                kept = {n: d for n, d in kept.items() if not n.startswith(name)} | _reached(name, folders)
    if keep:
        KEPT.write_bytes(lzma.compress(archive(kept), preset=9))
    report.seconds = time.monotonic() - begin
    report.cpu_seconds = _cpu_seconds() - before
    return report


def _cpu_seconds() -> float:
    """Of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _join(report: Report, other: Report) -> None:
    report.counts.update(other.counts)
    for name, entry in other.findings.items():
        if name in report.findings:
            report.findings[name]["count"] += entry["count"]
        else:
            report.findings[name] = entry


def _until(end: float, name: str, folder: Path, seed: int, started: list[bytes]) -> Report:
    """One process after another, while each that died had begun."""
    report = Report("coverage", seed)
    (folder / "corpus").mkdir(parents=True)
    for index, data in enumerate(started):
        (folder / "corpus" / str(index)).write_bytes(data)
    _fuzz(report, name, folder, seed, max(end - time.monotonic(), 1))
    while time.monotonic() < end - 5 and report.counts:
        seed += 1000
        _fuzz(report, name, folder, seed, end - time.monotonic())
    return report


def _fuzz(report: Report, name: str, folder: Path, seed: int, seconds: float) -> None:
    """One process of libFuzzer, until its time is over or it dies."""
    options = [f"-max_total_time={max(int(seconds), 1)}", f"-seed={seed}", f"-timeout={SLEEPS}", "-rss_limit_mb=4096",
               f"-max_len={MOST_BYTES}", f"-artifact_prefix={folder}/died-", "-print_final_stats=1"]  # fmt: skip
    done = _run(name, folder, [str(folder / "corpus"), *options])
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


def _reached(name: str, folders: list[Path]) -> dict[str, bytes]:
    """The smallest inputs that together reach what all do."""
    merged = folders[0] / "merged"
    merged.mkdir()
    _run(name, folders[0], ["-merge=1", str(merged), *(str(folder / "corpus") for folder in folders)])
    own = {data for _, data in unpack(PATH)}
    found = [path.read_bytes() for path in merged.iterdir()]
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


def _runs(data: bytes) -> str:
    """What runs gives the reference's results."""
    from .files import check

    outcome = check(data, standard.Random(len(data)))
    for finding in outcome.findings:
        raise Found(finding)
    return outcome.word


class Found(Exception):
    """A finding that is no exception."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


def _mutated(data: bytes, most: int, seed: int) -> bytes:
    """A model that our own mutations change, or bytes that libFuzzer's do."""
    import atheris
    import onnx
    from google.protobuf.message import DecodeError

    from .corpus import corpus
    from .mutations import mutate

    random = standard.Random(seed)
    try:
        model = onnx.ModelProto.FromString(data)
        others = [onnx.ModelProto.FromString(random.choice(corpus())[1])]
        for _ in range(random.choice((1, 1, 2, 3))):
            mutate(random, model, others)
        found = model.SerializeToString()
    except (DecodeError, ValueError, TypeError, IndexError):  # bytes, or a value that the field can't hold
        found = b""
    return found if 0 < len(found) <= most else bytes(atheris.Mutate(data, most))


def _process(name: str, folder: Path, arguments: list[str]) -> None:
    """Runs libFuzzer in this process; never returns."""
    import atheris

    os.environ["DATAFLOW_CUDA"] = "off"
    check: Callable[[bytes], str] = {"wire": _wire, "reader": _reader, "runs": _runs}[name]
    how = {} if name == "wire" else {"custom_mutator": _mutated}
    once = _counted(name, check, folder)
    # Most modules are imported when they are first used, so this lasts as long as the process.
    with atheris.instrument_imports(include=["dataflow_onnx", *(["dataflow"] if name == "runs" else [])]):
        for _, data in list(unpack(PATH))[::8]:  # an import takes seconds, which are no input's
            with contextlib.suppress(Exception):
                check(data)
        atheris.Setup([_launcher(name, folder), *arguments], once, **how)
        atheris.Fuzz()


def _launcher(name: str, folder: Path) -> str:
    """A program that begins such a process: libFuzzer merges in processes that it begins itself, by argument 0."""
    path = folder / "again"
    command = shlex.join([sys.executable, "-m", "tests.fuzz.coverage", name, str(folder)])
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o700)
    return str(path)


def _counted(name: str, check: Callable[[bytes], str], folder: Path) -> Callable[[bytes], None]:
    """``check``, whose words and findings lie in a file every half second: the process ends without a word."""
    words: Counter[str] = Counter()
    findings: dict[str, list[str]] = {}
    written = 0.0

    def enter(found: Finding, data: bytes) -> None:
        nonlocal written
        if found.where not in findings:
            findings[found.where] = [found.kind, found.where, f"{found.text}: {data.hex()}"]
            written = 0.0

    def once(data: bytes) -> None:
        nonlocal written
        begin = time.process_time()
        try:
            words[check(data)] += 1
        except Found as found:
            words[found.finding.kind] += 1
            enter(found.finding, data)
        except Exception as error:
            words["refused" if allowed(error) else "foreign"] += 1
            if not allowed(error):
                enter(finding_of(error, name), data)
        if (spent := time.process_time() - begin) > CPU_SECONDS:
            enter(Finding("hang", name, f"{spent:.0f} s of CPU"), data)
        if time.monotonic() - written > 0.5:
            written = time.monotonic()
            (folder / "counts.tmp").write_text(json.dumps({"words": words, "findings": [*findings.values()]}))
            (folder / "counts.tmp").rename(folder / "counts.json")

    return once


if __name__ == "__main__":
    _process(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])

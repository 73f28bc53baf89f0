"""Tasks of the kit in child processes: one that crashes, hangs or leaves is named, and the rest go on."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import pickle
import resource
import select
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NoReturn

from .._runtime import lib
from ..errors import DataflowError
from .outcome import Outcome, Task
from .process_state import ADDRESS_SANITIZER, flush, resident_bytes

_PIPE = 200  # number of the file descriptor by which a child speaks: one that a kernel doesn't meet by chance
_SIZE = 8  # bytes that say how long a message is
_SHOWN = 2000  # characters of what a child wrote before it ended
_GROWTH = 1 << 30  # bytes by which a child may grow, e.g. by what devices compile and keep, before another goes on
_UNDEFINED = "runtime error: "  # how UndefinedBehaviorSanitizer begins


def run_isolated(device: str, make: Callable[[], list[Task]], limit: float = 60.0) -> Iterator[Outcome]:
    """The outcomes of all tasks, each run in a child of this process; another follows one that ends or that has grown.

    Args:
        device: its id or a plugin's name, for outcomes.
        make: makes the tasks, the same in each child, so that this process opens no device and asks no kernel.
        limit: seconds that one trial, or making the tasks, may take.

    Raises:
        DataflowError: as ``make``.
    """
    begin = 0
    while True:
        child = _Child(make, begin)
        last, op, name, stage = -1, "", f"what {device} accepts", "plain"
        following = None
        try:
            for kind, *message in child.messages(limit):
                if kind == "outcome":
                    yield message[0]
                elif kind == "begin":
                    last, op, name, stage = message
                elif kind == "error":
                    raise message[0]
                elif kind == "done":
                    (following,) = message
        finally:
            end = child.end()
        if end is not None:
            yield Outcome(device, op, name, stage, "failed", end)
            following = last + 1 if last >= begin else None  # else it ends where tasks are made, and would again
        if following is None:
            return
        begin = following


class _Child:
    """A forked process that runs tasks one after the other, and what it says.

    Args:
        make: makes all of them.
        begin: the first that it runs.
    """

    def __init__(self, make: Callable[[], list[Task]], begin: int) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by end()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        read, write = os.pipe()
        flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads stay behind: the native pool begins anew
            self._process = os.fork()
        if self._process == 0:
            os.close(read)
            _serve(make, begin, write, self._output, self._errors)
        with contextlib.suppress(OSError):  # it did it itself, or has ended
            os.setpgid(self._process, self._process)
        os.close(write)
        self._read = read
        self._done = False
        self._expired = 0.0

    def messages(self, limit: float) -> Iterator[tuple[Any, ...]]:
        """What the child says, until it is done, ends, or is silent for ``limit`` seconds."""
        heard = b""
        while True:
            while len(heard) >= _SIZE and len(heard) >= (end := _SIZE + int.from_bytes(heard[:_SIZE], "little")):
                message, heard = pickle.loads(heard[_SIZE:end]), heard[end:]
                self._done = message[0] == "done"
                yield message
                if self._done:
                    return
            if not select.select([self._read], [], [], limit)[0]:
                self._expired = limit
                return
            more = os.read(self._read, 1 << 16)
            if not more:
                return
            heard += more

    def end(self) -> str | None:
        """Ends the child; why it didn't do all tasks, or None."""
        if not self._done:
            # One that was heard no more but for a closed pipe may still run.
            deadline = time.monotonic() + (0.0 if self._expired else 0.5)
            while time.monotonic() < deadline and not _has_ended(self._process):
                time.sleep(0.01)
        ended = _has_ended(self._process)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)  # with what its kernels started
        _, status = os.waitpid(self._process, 0)
        os.close(self._read)
        try:
            return None if self._done else self._cause(status, ended)
        finally:
            self._output.close()
            self._errors.close()

    def _cause(self, status: int, ended: bool) -> str:
        """Why a child wasn't done; ``ended``: by itself, before it was killed."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()[-_SHOWN:]
        note = f": {said}" if said else ""
        if self._expired:
            return f"no result after {self._expired:g} s: it hangs{note}"
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and ended:
            return f"the process was ended by SIGKILL, as the system does that has no memory left{note}"
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            return f"the process was ended by {signal.Signals(os.WTERMSIG(status)).name}{note}"
        if os.WIFEXITED(status):
            return f"the process was left with status {os.WEXITSTATUS(status)}{note}"
        return f"the process says nothing more: its file descriptors were closed{note}"


def _has_ended(process: int) -> bool:
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _serve(make: Callable[[], list[Task]], begin: int, pipe: int, output: IO[bytes], errors: IO[bytes]) -> NoReturn:
    """Runs tasks in a child, and ends it."""
    status = 1
    try:
        with contextlib.suppress(OSError):  # the parent did it
            os.setpgid(0, 0)
        faulthandler.disable()  # what it prints is about this kit's own frames
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        os.dup2(pipe, _PIPE)
        os.close(pipe)
        if not ADDRESS_SANITIZER:
            lib.df_guard_report(2)
        try:
            tasks = make()
        except DataflowError as error:
            _say("error", error)
            raise
        _say("done", _run(tasks, begin, output, errors))
        status = 0
    except BaseException as error:  # a broken pipe too, where a kernel closed it
        os.write(2, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(status)


def _run(tasks: Sequence[Task], begin: int, output: IO[bytes], errors: IO[bytes]) -> int | None:
    """Runs tasks; the first that is left for another child, or None."""
    written, wrong, most = 0, 0, resident_bytes() + _GROWTH
    for index in range(begin, len(tasks)):
        task = tasks[index]
        device = ""
        _say("begin", index, task.op, task.name, "plain")
        for outcome in task.run(functools.partial(_say, "begin", index, task.op, task.name)):
            device = outcome.device
            _say("outcome", outcome)
        flush()
        text = _since(output, written)
        if text:
            written += len(text)
            message = f"it writes to standard output: {_shown(text)}"
            _say("outcome", Outcome(device, task.op, task.name, "process", "failed", message))
        text = _since(errors, wrong)
        wrong += len(text)
        if _UNDEFINED in text.decode(errors="replace"):
            _say("outcome", Outcome(device, task.op, task.name, "process", "failed", _shown(text)))
        if resident_bytes() > most and index + 1 < len(tasks):
            return index + 1
    return None


def _since(file: IO[bytes], begin: int) -> bytes:
    """What was written to a file behind ``begin``."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size - begin, begin) if size > begin else b""


def _shown(text: bytes) -> str:
    return text.decode(errors="replace").strip()[:_SHOWN]


def _say(*message: Any) -> None:
    """A message to the parent."""
    data = pickle.dumps(message)
    data = len(data).to_bytes(_SIZE, "little") + data
    while data:
        data = data[os.write(_PIPE, data) :]

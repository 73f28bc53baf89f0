"""Collectives: what the processes of a job do together, and which of them there are.

Gradients are sums over samples (see ``losses``), so those of the shares add up to those of the batch, whatever the
number of processes: losses and weights are the same up to the order of the sums. Every process holds all weights and
takes the same optimizer step; the one of rank 0 writes and shows.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any, Literal, NoReturn, Protocol, Union, runtime_checkable

from ...errors import InputError
from ...execute.execution import thread_count
from ...host import checks
from ...ir.types import Array

BUCKET = 1 << 20  # bytes of a message: caches hold them, and 32 MiB were summed in half the time of one message
_JOBS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")  # what launchers of MPI say about the job
_THREADS = ("DATAFLOW_NUM_THREADS", "OMP_NUM_THREADS")

_log = logging.getLogger("dataflow")


@runtime_checkable
class Collectives(Protocol):
    """What the processes of a job do together; every one of them must call each method the same number of times.

    Attributes:
        rank: number of this process, from 0.
        size: of the job.
        local: processes of the job on this machine.
    """

    rank: int
    size: int
    local: int

    def sum(self, array: Array) -> None:
        """Replaces an array by the sum over all processes, with the same bits in each.

        Args:
            array: contiguous, of float32 or float64, of one shape and dtype in all of them.
        """

    def gather(self, text: str) -> list[str]:
        """The texts of all processes, by rank."""

    def abort(self, error: BaseException) -> NoReturn:
        """Ends all processes of the job, and says why."""


@runtime_checkable
class Sharding(Collectives, Protocol):
    """Collectives for which the processes may share out the optimizer's state."""

    def sum_to(self, array: Array, rank: int) -> None:
        """As ``sum``, but the process ``rank`` alone gets it; what the others have afterwards is undefined."""

    def send(self, array: Array, rank: int) -> None:
        """Replaces an array of bytes by that of the process ``rank``.

        Args:
            array: contiguous, of uint8, of one shape in all of them.
            rank: whose it becomes.
        """


class MPI:
    """The job that ``mpirun`` or ``mpiexec`` began, through mpi4py.

    Raises:
        InputError: mpi4py isn't installed, or its library of MPI can't be loaded.
    """

    def __init__(self) -> None:
        try:
            mpi: Any = importlib.import_module("mpi4py.MPI")
        except (ImportError, RuntimeError) as error:
            raise InputError(
                f"parallel='data' needs mpi4py and a library of MPI ({error}); install dataflow-engine[mpi]"
            ) from None
        if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
            raise InputError("parallel='data': this library of MPI can't be called by several threads in turn")
        self._world, self._adding = mpi.COMM_WORLD, mpi.SUM
        self.rank, self.size = int(self._world.Get_rank()), int(self._world.Get_size())
        shared = self._world.Split_type(mpi.COMM_TYPE_SHARED)
        self.local = int(shared.Get_size())
        shared.Free()
        before = sys.excepthook

        def ended(kind: Any, error: BaseException, trace: Any) -> None:
            before(kind, error, trace)
            self.abort(error)  # the others wait for this process for ever

        if self.size > 1:
            sys.excepthook = ended

    def sum(self, array: Array) -> None:
        """MPI_Allreduce of messages of ``BUCKET`` bytes."""
        flat = array.reshape(-1)
        step = max(1, BUCKET // array.itemsize)
        for begin in range(0, flat.size, step):
            message = flat[begin : begin + step]
            self._world.Allreduce(message.copy(), message)

    def sum_to(self, array: Array, rank: int) -> None:
        """MPI_Reduce."""
        self._world.Reduce(array.copy(), array if rank == self.rank else None, self._adding, rank)

    def send(self, array: Array, rank: int) -> None:
        """MPI_Bcast."""
        self._world.Bcast(array, rank)

    def gather(self, text: str) -> list[str]:
        """MPI_Allgather of pickled texts."""
        found: list[str] = self._world.allgather(text)
        return found

    def abort(self, error: BaseException) -> NoReturn:
        """MPI_Abort."""
        sys.stderr.write(f"rank {self.rank} of {self.size} failed: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
        self._world.Abort(1)
        raise SystemExit(1)


Parallel = Union[Literal["data"], Collectives, None]
"""How a Trainer shares its batches out: through MPI, through other collectives, or not at all."""


def collectives_of(parallel: Parallel) -> Collectives | None:
    """What ``parallel=`` stands for; None where there is one process.

    Raises:
        InputError: another value, or there is no MPI.
    """
    if parallel is None:
        return None
    if isinstance(parallel, str):
        if parallel != "data":
            raise InputError(f"parallel is {parallel!r}; expected 'data', an object with the collectives, or None")
        parallel = MPI()
    elif not isinstance(parallel, Collectives):
        raise InputError(f"parallel is {checks.shown(parallel)}; expected 'data', or an object with the collectives")
    return parallel if parallel.size > 1 else None


def report_job(collectives: Collectives) -> None:
    """Logs, in rank 0, which process is which: of one that is killed the launcher tells its number alone."""
    found = collectives.gather(f"{os.getpid()} on {socket.gethostname()}")
    if collectives.rank == 0:
        listed = ", ".join(f"rank {rank} is process {text}" for rank, text in enumerate(found))
        _log.info("training in %d processes: %s", collectives.size, listed)


def in_job() -> bool:
    """Whether a launcher of MPI began this process with others."""
    return any(os.environ.get(name, "1").isdigit() and int(os.environ.get(name, "1")) > 1 for name in _JOBS)


def threads_of(collectives: Collectives | None, threads: int | None) -> int | None:
    """The number of threads of this process: its share of the machine's where nobody says a number."""
    if collectives is None or threads is not None or any(os.environ.get(name) for name in _THREADS):
        return threads
    return max(1, thread_count(None) // collectives.local)


def check_alike(collectives: Collectives, settings: Mapping[str, Any]) -> None:
    """Raises InputError where the processes don't train the same model in the same manner."""
    for name, value in settings.items():
        texts = collectives.gather(str(value))
        other = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
        if other is not None:
            shown = f"{texts[0][:200]} in rank 0, {texts[other][:200]} in rank {other}"
            raise InputError(f"parallel: the processes differ in their {name}: {shown}")

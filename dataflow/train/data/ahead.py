"""Threads that read ahead: a batch is ready when the step wants it, in an order that doesn't depend on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(tasks: Iterable[Callable[[], T]], workers: int, depth: int) -> Generator[T]:
    """The results of the tasks, in their order; what one raises is raised in its turn.

    The threads are joined when the iterator ends or is closed; tasks that were not begun are dropped.

    Args:
        tasks: each may run in any thread, several at a time.
        workers: threads; 0: each task runs where its result is wanted.
        depth: results that may wait.
    """
    if not workers:
        for task in tasks:
            yield task()
        return
    pool = ThreadPoolExecutor(workers, "dataflow-data")
    waiting: deque[Future[T]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(task))
            if len(waiting) >= max(depth, workers):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

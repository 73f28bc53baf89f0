"""Limits of memory and time for models that are not trusted.

A public call enters a scope; whatever it calls takes bytes and looks at the time through the scope of its thread, so
that no stage hands limits on. Without limits there is no scope, and looking for it is all that it costs.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import Cancelled, InputError, LimitExceeded
from .fork import renew_in_child
from .weak import WeakList


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a model may take; what it would take beyond them is refused with ``LimitExceeded``.

    Attributes:
        bytes: of memory, in all memories together. Loading: the file, its external data and what is decoded of them.
            A session or trainer: weights that it copies, prepacked weights, state, scratch of every run in progress,
            results, and constants while they are folded. Each step's temporaries on the NumPy device come on top.
        seconds: of one call: a load, a plan, a run (with the plan that it makes), a training step. Kernels look at
            it between their tasks, so that a call ends at most some milliseconds late.
    """

    bytes: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None and (isinstance(self.bytes, bool) or not isinstance(self.bytes, int)):
            raise InputError(f"Limits: bytes is {self.bytes!r}; expected a whole number, or None")
        if self.bytes is not None and self.bytes < 0:
            raise InputError(f"Limits: bytes is {self.bytes}; expected at least 0")
        if self.seconds is None:
            return
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, (int, float)):
            raise InputError(f"Limits: seconds is {self.seconds!r}; expected a number, or None")
        if not 0 < self.seconds < math.inf:
            raise InputError(f"Limits: seconds is {self.seconds}; expected a number above 0")


class Charged(Protocol):
    """Memory that is charged to an account until it is freed."""

    @property
    def bytes(self) -> int:
        """Its size in bytes."""


class Account:
    """The bytes that a session, trainer or load has taken of its limits.

    Attributes:
        limits: the most.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._used = 0
        self._lock = threading.Lock()
        self._charged: WeakList[Charged] = WeakList()
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: a new lock."""
        self._lock = threading.Lock()

    @property
    def left(self) -> int | None:
        """Bytes that can still be taken; None without a limit."""
        if self.limits.bytes is None:
            return None
        return self.limits.bytes - self._used - sum(item.bytes for item in self._charged.alive())

    def require(self, count: int, what: object) -> None:
        """Refuses ``count`` bytes more than can be taken."""
        left = self.left
        if left is not None and count > left:
            raise LimitExceeded(
                f"{_text(what)}: {count} bytes are needed, and {max(left, 0)} of the limit of {self.limits.bytes} "
                "bytes are left; raise Limits(bytes=...) if the model is to be trusted with them"
            )

    def take(self, count: int, what: object) -> None:
        """Counts ``count`` bytes as taken.

        Raises:
            LimitExceeded: there are not so many left.
        """
        with self._lock:
            self.require(count, what)
            self._used += count

    def charge(self, item: Charged, what: str) -> None:
        """Counts the bytes of a buffer as taken, as long as it lives.

        Raises:
            LimitExceeded: there are not so many left.
        """
        with self._lock:
            self.require(item.bytes, what)
            self._charged.add(item)

    def give(self, count: int) -> None:
        """Gives bytes back that were taken."""
        with self._lock:
            self._used -= count


def account_of(limits: Limits | None) -> Account | None:
    """A new account; None where nothing is limited.

    Raises:
        InputError: ``limits`` are something else.
    """
    if limits is None:
        return None
    if not isinstance(limits, Limits):
        raise InputError(f"limits={limits!r}: expected dataflow.Limits(bytes=..., seconds=...), or None")
    return Account(limits)


class Scope:
    """A public call: its deadline, and bytes that it holds until it returns."""

    def __init__(self, account: Account | None, what: str, cancel: Any = None, outer: Scope | None = None) -> None:
        self._account, self._what, self._cancel = account, what, cancel
        self._held = 0
        seconds = None if account is None else account.limits.seconds
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._outer = outer

    @property
    def seconds_left(self) -> float | None:
        """Until the deadline, at least 0; None without one."""
        outer = None if self._outer is None else self._outer.seconds_left
        if self._deadline is None:
            return outer
        own = max(self._deadline - time.monotonic(), 0.0)
        return own if outer is None else min(own, outer)

    def poll(self, where: object) -> None:
        """See ``dataflow.host.limits.poll``."""
        if self._cancel is not None and self._cancel[0]:
            raise Cancelled(f"{_text(where)}: cancelled")
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise self.expired(_text(where))
        if self._outer is not None:
            self._outer.poll(where)

    def expired(self, where: str) -> LimitExceeded:
        """The error of a deadline that passed."""
        if self._deadline is None and self._outer is not None:
            return self._outer.expired(where)
        assert self._account is not None
        return LimitExceeded(
            f"{self._what} takes more than {self._account.limits.seconds:g} seconds; stopped in {where}; raise "
            "Limits(seconds=...) if the model is to be trusted with more"
        )

    def hold(self, count: int, what: object) -> None:
        """See ``dataflow.host.limits.hold``."""
        if self._account is not None:
            self._account.take(count, what)
            self._held += count
        if self._outer is not None:
            self._outer.hold(count, what)

    def close(self) -> None:
        """Gives back what it holds."""
        if self._account is not None:
            self._account.give(self._held)
        self._held = 0


def _text(where: object) -> str:
    return str(where.describe()) if hasattr(where, "describe") else str(where)


_current: ContextVar[Scope | None] = ContextVar("dataflow_limits", default=None)


def current() -> Scope | None:
    """The scope of the call that this thread is in; None where nothing is limited."""
    return _current.get()


_NOTHING = nullcontext()


def limited(account: Account | None, what: str, cancel: Any = None) -> AbstractContextManager[None]:
    """A call inside which an account's limits hold, those of calls around it too.

    Args:
        account: None: only those around it hold.
        what: the call, for messages: "the run".
        cancel: an ``int32_t *`` that ends the call when it is set.
    """
    return _NOTHING if account is None and cancel is None else _limited(account, what, cancel)


@contextmanager
def _limited(account: Account | None, what: str, cancel: Any) -> Iterator[None]:
    outer = _current.get()
    scope = Scope(account, what, cancel, outer)
    try:  # from before it is set: Ctrl-C may come in between
        _current.set(scope)
        yield
    finally:
        _current.set(outer)
        scope.close()


def poll(where: object) -> None:
    """Raises when the call's deadline has passed or it was cancelled; for loops whose length depends on the model.

    Args:
        where: a node, or text, for messages.

    Raises:
        LimitExceeded: the deadline has passed.
        Cancelled: the run was cancelled.
    """
    scope = _current.get()
    if scope is not None:
        scope.poll(where)


def hold(count: int, what: object) -> None:
    """Counts bytes that the call needs until it returns.

    Args:
        count: below 0: gives bytes back before.
        what: a node, or text, for messages.

    Raises:
        LimitExceeded: there are not so many left.
    """
    scope = _current.get()
    if scope is not None:
        scope.hold(count, what)

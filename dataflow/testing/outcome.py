"""What the kit does and says: tasks, and the outcomes of their trials."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import InputError

Status = Literal["passed", "failed", "not claimed", "untested"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one sample, in one variant, on a device."""

    device: str
    op: str
    sample: str
    variant: str
    status: Status
    text: str = ""

    def __str__(self) -> str:
        command = f"  again: dataflow plugin test {self.device} --sample '{self.sample}'"
        return f"{self.status}: {self.sample} ({self.variant}) {self.text}{command if self.status == 'failed' else ''}"


Report = Callable[[str], None]
"""Called with the variant of each trial before it, so that one that ends the process is known."""


@dataclass(frozen=True, slots=True)
class Task:
    """A sample on a device, or what is checked of one kernel record: what one child process is given at a time.

    Attributes:
        op: name of its op.
        name: of the sample.
        run: the outcomes.
        always: whatever is selected.
    """

    op: str
    name: str
    run: Callable[[Report], Iterator[Outcome]]
    always: bool = False


def selected(tasks: Sequence[Task], name: str | None) -> list[Task]:
    """The tasks of an op of this name, else those whose names begin with it; all without one.

    Raises:
        InputError: there is none.
    """
    if not name:
        return [*tasks]
    found = [task for task in tasks if task.op == name] or [task for task in tasks if task.name.startswith(name)]
    if not found:
        near = difflib.get_close_matches(name, {known for task in tasks for known in (task.op, task.name)}, 3)
        hint = f"; near: {', '.join(near)}" if near else ""
        raise InputError(f"{name!r} is no op, and begins the name of no sample, of {len(tasks)} that there are{hint}")
    return [*found, *(task for task in tasks if task.always and task not in found)]

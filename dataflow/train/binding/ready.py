"""What runs for the sizes of one batch: a program of its own, or one plan of a series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ...errors import Cancelled
from ...execute.bound import Stages
from ...execute.program import Program
from ...execute.series import SeriesMember
from ...ir.types import Array

Ready: TypeAlias = "Program | SeriesMember"


def call(
    program: Ready,
    arguments: Mapping[str, Array],
    results: Mapping[str, Array],
    *,
    interruptible: bool = True,
    stage: Stages | None = None,
) -> None:
    """Runs a program, or some of its ranges; see ``Program.run``.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    try:
        program.run(arguments, results, interruptible=interruptible, stage=stage)
    except Cancelled as error:
        raise KeyboardInterrupt(str(error)) from None

"""What a case gives: a word that is counted, and what is wrong; and which exceptions are allowed."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import dataflow as df

ROOT = Path(__file__).parents[2]
_PACKAGES = tuple(str(ROOT / name) for name in ("dataflow", "plugins", "importers"))


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not happen.

    Attributes:
        kind: ``crash``, ``hang``, ``foreign`` (an exception that isn't ours), ``memory``, ``different`` or ``plan``.
        where: groups findings of one cause: the exception and its innermost frame in our code, or the ops at fault.
        text: for people.
    """

    kind: str
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A counted word (``ran``, ``refused``, ...) and the findings of one case."""

    word: str
    findings: tuple[Finding, ...] = field(default=())


def allowed(error: BaseException) -> bool:
    """True for what may leave a public call: a DataflowError but for a wrong plan, an OSError, a sized MemoryError."""
    from dataflow.planning.verify import PlanViolation

    if isinstance(error, MemoryError):
        return bool(re.search(r"\d", str(error)))
    return isinstance(error, (df.DataflowError, OSError)) and not isinstance(error, PlanViolation)


def finding_of(error: BaseException, doing: str) -> Finding:
    """The finding that an exception is."""
    from dataflow.planning.verify import PlanViolation

    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(_PACKAGES)]
    last = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside"
    kind = "plan" if isinstance(error, PlanViolation) else "foreign"
    where = f"{type(error).__name__} at {last}" if kind == "foreign" else re.sub(r"[\d']+", "#", str(error))[:80]
    return Finding(kind, where, f"{doing}: {type(error).__name__}: {str(error)[:300]}")


def ended_by(error: BaseException, doing: str, word: str = "refused") -> Outcome:
    """What comes of a case that an exception ends: ``word`` where it may, else a finding."""
    return Outcome(word) if allowed(error) else Outcome("failed", (finding_of(error, doing),))


def different(what: str, graph: df.Graph, text: str) -> Outcome:
    """The outcome of a graph that gives something else; those with the same ops are of one cause."""
    names = " ".join(sorted({node.op.name for node in graph.nodes}))
    return Outcome("different", (Finding("different", f"{what} | {names}", f"{text}\n{graph}"),))

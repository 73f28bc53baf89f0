"""Graphs of one kind are lowered once for all sizes that decide alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Cancelled, LimitExceeded
from ..ir.graph import Graph, Initializer
from ..ir.lowered import Lowered
from ..ir.tracing import Trace
from .template import Template

log = logging.getLogger("dataflow")

LowerGraph = Callable[[Graph], tuple[Lowered, dict[str, Initializer]]]
_KINDS = 32  # of which templates are kept
_KEPT = 4  # templates of a kind
_FIRST_WAIT = 2  # sizes that are lowered by themselves after a template fitted none


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """A graph for some sizes.

    Attributes:
        kind: the same for the graphs that differ in sizes alone.
        sizes: by name, all on which the graph depends.
        make: makes it for these sizes, or for the same ones traced.
    """

    kind: Hashable
    sizes: Mapping[str, int]
    make: Callable[[Mapping[str, Any]], Graph]


class _Kind:
    """What is known of the graphs of one kind.

    Attributes:
        templates: the one that fitted last comes first.
        seen: how many sizes were lowered.
        wait: of how many more no template is made.
        waits: of how many none is made when the next one fits none.
    """

    def __init__(self) -> None:
        self.templates: list[Template] = []
        self.seen, self.wait, self.waits = 0, 0, _FIRST_WAIT


class Templates:
    """Lowers graphs for sizes: the second of a kind is traced, and those behind it get their numbers where they can."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Kind] = {}

    def clear(self) -> None:
        """Forgets all of them."""
        self._kinds.clear()

    def lowered(self, sized: Sized, how: Hashable, lower: LowerGraph) -> tuple[Lowered, dict[str, Initializer]]:
        """What a graph is lowered to, and the first data of what it stores.

        Args:
            sized: the graph.
            how: tells what else ``lower`` depends on.
            lower: lowers one; its sizes may be traced.
        """
        key = sized.kind, how
        kind = self._kinds.pop(key, None) or _Kind()
        self._kinds[key] = kind  # the most recently used one
        while len(self._kinds) > _KINDS:
            del self._kinds[next(iter(self._kinds))]

        def data() -> dict[str, Initializer]:
            return lower(sized.make(sized.sizes))[1]

        for template in kind.templates:
            found = template.at(sized.sizes, data)
            if found is not None:
                kind.templates.remove(template)
                kind.templates.insert(0, template)
                kind.waits = _FIRST_WAIT
                return found
        kind.seen += 1
        if kind.seen > 1 and sized.sizes and not kind.wait:
            made = _traced(sized, lower)
            if kind.seen > 2:
                kind.wait, kind.waits = kind.waits, 2 * kind.waits
            if made is not None:
                kind.templates = [made, *kind.templates][:_KEPT]
                first, made.first = made.first, None
                assert first is not None
                return first
        kind.wait = max(kind.wait - 1, 0)
        return lower(sized.make(sized.sizes))


def _traced(sized: Sized, lower: LowerGraph) -> Template | None:
    """The template of a graph; None where it can't be made."""
    trace = Trace()
    try:
        with trace:
            lowered, initial = lower(sized.make({name: trace.size(name, n) for name, n in sized.sizes.items()}))
        return Template(trace, lowered, initial)
    except (Cancelled, LimitExceeded):
        raise
    except Exception as why:  # whatever it is, it is said of the graph without a trace too, or nothing is wrong with it
        log.debug("no template for %s: %s", sized.sizes, why)
        return None

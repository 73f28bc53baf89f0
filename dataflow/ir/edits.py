"""What was changed in a graph after a file gave it: a format writes the file again with these changes alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one name.

    Attributes:
        old: a value of the graph before.
        new: what it is called then.
        readers: these follow; without, they read what is called ``old`` afterwards, which an added node computes.
        added: the file doesn't have the value, its nodes may read it.
    """

    old: str
    new: str
    readers: bool = False
    added: bool = False


@dataclass(frozen=True, slots=True)
class Edited:
    """A source, and the changes since; what a Model of an edited graph has as its source.

    Attributes:
        source: what the format keeps for saving; None of a model built by hand, whose graph says all.
        edits: in order.
        added: values that nodes of the graph compute, or that are stored, and the file doesn't have.
        reduced: the graph lacks outputs of the file, or has others.
    """

    source: object
    edits: tuple[Edit, ...] = ()
    added: frozenset[str] = frozenset()
    reduced: bool = False


def edited(
    source: object, edits: Iterable[Edit] = (), added: Iterable[str] = (), *, reduced: bool = False
) -> Edited | None:
    """The source of a graph that was changed once more; None of one built by hand.

    Args:
        source: of the model before.
        edits: see ``Edited``.
        added: likewise.
        reduced: likewise.
    """
    if source is None:
        return None
    before = source if isinstance(source, Edited) else Edited(source)
    made = tuple(edits)
    all_added = _renamed(before.added, made) | frozenset(added)
    of_file = tuple(
        replace(edit, added=edit.old in before.added) for edit in made if edit.readers or edit.old not in before.added
    )
    return Edited(before.source, before.edits + of_file, all_added, before.reduced or reduced)


def dropped(source: object, name: str, taken: Collection[str]) -> str:
    """What a value of this name is called in the file when the graph has another in its stead.

    Args:
        source: of the model before.
        name: of the value.
        taken: names of the graph.
    """
    used = {edit.new for edit in source.edits} if isinstance(source, Edited) else set()
    made = f"{name}.replaced"
    while made in used or made in taken:
        made += "'"
    return made


def _renamed(names: frozenset[str], edits: Iterable[Edit]) -> frozenset[str]:
    for edit in edits:
        if edit.old in names:
            names = names - {edit.old} | {edit.new}
    return names

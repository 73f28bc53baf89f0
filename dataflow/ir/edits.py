"""What was changed in a graph after a file gave it: a format writes the file again with these changes alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ..errors import ModelError
from .graph import Graph


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one name.

    Attributes:
        old: a value of the graph before.
        new: what it is called then.
        readers: these follow; without, they read what is called ``old`` afterwards, which an added node computes.
        added: the file doesn't have the value, its nodes may read it.
        keeps: the value keeps its name, as an output too; its readers alone follow, to what an added node computes.
    """

    old: str
    new: str
    readers: bool = False
    added: bool = False
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Edited:
    """A source, and the changes since; what a Model of an edited graph has as its source.

    Attributes:
        source: what the format keeps for saving; None of a model built by hand, whose graph says all.
        edits: in order.
        added: values that nodes of the graph compute, or that are stored, and the file doesn't have.
        reduced: the graph lacks outputs of the file, or has others.
        form: a graph that computes the same, whose nodes a file has for the added values that both know; None: the
            graph's own.
    """

    source: object
    edits: tuple[Edit, ...] = ()
    added: frozenset[str] = frozenset()
    reduced: bool = False
    form: Graph | None = None


def edited(
    source: object, edits: Iterable[Edit] = (), added: Iterable[str] = (), *, reduced: bool = False
) -> Edited | None:
    """The source of a graph that was changed once more; None of one built by hand.

    Args:
        source: of the model before.
        edits: see ``Edited``.
        added: likewise.
        reduced: likewise.

    Raises:
        ModelError: an edit renames a value of ``Edited.form``.
    """
    if source is None:
        return None
    before = source if isinstance(source, Edited) else Edited(source)
    made = tuple(edits)
    all_added = _renamed(before.added, made) | frozenset(added)
    of_file = tuple(
        replace(edit, added=edit.old in before.added) for edit in made if edit.readers or edit.old not in before.added
    )
    if before.form is not None:
        of_form = {value.name for value in before.form.producers()} & before.added
        renamed = [edit.old for edit in made if not edit.keeps and edit.old in of_form]
        if renamed:
            raise ModelError(
                f"{renamed[0]!r} can't be changed: a file has another form of it than the model computes, after "
                "straight_through; save the model and load it, then change it"
            )
    return Edited(before.source, before.edits + of_file, all_added, before.reduced or reduced, before.form)


def in_form(source: object, form: Graph, copied: Graph, changed: Graph) -> tuple[object, Graph]:
    """The source and the graph of a model that computes what another did, by nodes that a file isn't to have.

    Args:
        source: of the model before.
        form: its graph, whose nodes a file has.
        copied: the graph that computes the same, with all stored tensors of that.
        changed: the same without what nothing reads; what nodes of the file do comes back.
    """
    if not isinstance(source, Edited) or not source.added or source.form is not None:
        return source, changed
    unread = {value: data for value, data in copied.initializers.items() if value.name in source.added}
    return replace(source, form=form), replace(changed, initializers={**changed.initializers, **unread})


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
        if edit.old in names and not edit.keeps:
            names = names - {edit.old} | {edit.new}
    return names

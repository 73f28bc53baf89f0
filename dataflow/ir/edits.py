"""What was changed in a graph after a file gave it: a format writes the file again with these changes alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ..errors import ModelError
from .graph import Graph, with_data_of


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
        anew: where the file can't have the changes, the graph is written without it.
    """

    source: object
    edits: tuple[Edit, ...] = ()
    added: frozenset[str] = frozenset()
    reduced: bool = False
    form: Graph | None = None
    anew: bool = False


def is_by_hand(source: object) -> bool:
    """Whether this is the source of a model that no file gave."""
    return source is None or (isinstance(source, Edited) and source.source is None)


def edited(
    source: object,
    edits: Iterable[Edit] = (),
    added: Iterable[str] = (),
    *,
    reduced: bool = False,
    anew: bool = False,
) -> Edited | None:
    """The source of a graph that was changed once more; None of one built by hand.

    Args:
        source: of the model before.
        edits: see ``Edited``.
        added: likewise.
        reduced: likewise.
        anew: likewise.

    Raises:
        ModelError: an edit renames a value of ``Edited.form``.
    """
    if is_by_hand(source):
        return None
    before = source if isinstance(source, Edited) else Edited(source)
    made = tuple(edits)
    all_added = _renamed(before.added, made) | frozenset(added)
    of_file, computed = [], {*before.added}
    for edit in made:
        if edit.readers or edit.old not in before.added:
            of_file.append(replace(edit, added=edit.old in computed))
        computed.update(() if edit.readers else (edit.old,))  # by an added node, from here on
    if before.form is not None:
        of_form = {value.name for value in before.form.producers()} & before.added
        renamed = [edit.old for edit in made if not edit.keeps and edit.old in of_form]
        if renamed:
            raise ModelError(
                f"{renamed[0]!r} can't be changed: a file has another form of it than the model computes, after "
                "straight_through; save the model and load it, then change it"
            )
    anew = before.form is None and (before.anew or anew)  # a form lacks what is changed behind it
    return Edited(before.source, (*before.edits, *of_file), all_added, before.reduced or reduced, before.form, anew)


def in_form(source: object, form: Graph, copied: Graph, changed: Graph) -> tuple[object, Graph]:
    """The source and the graph of a model that computes what another did, by nodes that a file isn't to have.

    Args:
        source: of the model before.
        form: its graph, whose nodes a file has.
        copied: the graph that computes the same, with all stored tensors of that.
        changed: the same without what nothing reads; what nodes of the file do comes back.
    """
    if source is None:
        return Edited(None, form=form, anew=True), changed
    if not isinstance(source, Edited) or not source.added or source.form is not None:
        return source, changed
    unread = {value: data for value, data in copied.initializers.items() if value.name in source.added}
    return replace(source, form=form), replace(changed, initializers={**changed.initializers, **unread})


def in_file(source: object, graph: Graph) -> tuple[object, Graph]:
    """The source and the graph of a model as nodes of a file compute it, see ``in_form``; as given without a form.

    Args:
        source: of the model.
        graph: of the model, with the data that the other has too.
    """
    if not isinstance(source, Edited) or source.form is None or not source.anew:
        return source, graph
    types = {value.name: value.type for value in graph.initializers}
    if any(types.get(value.name, value.type) != value.type for value in source.form.initializers):
        return source, graph  # a replaced head
    return replace(source, form=None) if source.source is not None else None, with_data_of(source.form, graph)


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

"""``df.dropout``: a model whose layers drop a share of their results in training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import InputError
from ..host import checks
from ..ir.edits import Edit, edited
from ..model import Model
from ..passes.random_keys import has_dropout, insert_dropout
from .layers import constants_of, end_of, layers_of
from .targets import chosen


def dropout(model: Model, p: float, at: Sequence[str] | str) -> Model:
    """A model with dropout nodes behind layers: inactive, but in training with ``Trainer(dropout=True)``.

    Every export in evaluation mode lacks them. A file that is saved has them as nodes, inactive too.

    Args:
        model: it is not changed.
        p: the share of the results that is dropped, from 0 to less than 1.
        at: see ``sites``.

    Raises:
        InputError: ``p`` or a pattern doesn't fit.
    """
    checks.instance("model", model, Model)
    ratios = dict.fromkeys(sites(model, at, "at"), checks.number("p", p, 0.0, 1.0))
    graph, renamed = insert_dropout(model.graph_with_data(), ratios)
    source = edited(model.source, [Edit(old, new) for old, new in renamed.items()], renamed)
    return Model(graph, aliases=model.aliases, source=source, metadata=model.metadata)


def sites(model: Model, at: Sequence[str] | str, option: str) -> list[str]:
    """Names of the values that patterns choose: results of layers, their bias included, or inner values themselves.

    Args:
        model: any.
        at: patterns over the names of layers, see ``targets.chosen``, and exact names of values.
        option: what the user calls them, for messages.

    Raises:
        InputError: a pattern matches nothing, or a value is not one of floats that a node computes.
    """
    graph = model.graph
    given = checks.texts(option, at)
    computed = {value.name: value for value in graph.producers()}
    exact = [name for name in given if name in computed]
    floats = [name for name in exact if computed[name].type.dtype.is_float]
    if len(floats) < len(exact):
        raise InputError(f"{option}: {next(n for n in exact if n not in floats)!r} is no value of floats")
    rest = [pattern for pattern in given if pattern not in computed]
    if not given:
        raise InputError(f"{option} is empty; expected patterns of layers or names of values")
    if rest:
        readers, constants = graph.readers(), constants_of(graph)
        for layer in chosen(graph, layers_of(graph, model.aliases), rest, option):
            ends = (end_of(graph, layer, use, readers, constants)[0].outputs[0] for use in layer.uses)
            floats += [end.name for end in ends if end is not None]
    return list(dict.fromkeys(floats))


def dropout_sites(model: Model, dropout: bool | float, at: Sequence[str] | str | None) -> dict[str, float]:
    """Where a Trainer drops beside the model's own dropout nodes: the share by the name of the value.

    Raises:
        InputError: the options don't fit each other or the model.
    """
    if isinstance(dropout, (bool, np.bool_)):
        if at is not None:
            raise InputError(f"dropout_at is given with dropout={dropout}; expected the share, as in dropout=0.1")
        if not dropout:
            return {}
        if not has_dropout(model.graph):
            raise InputError(
                "dropout=True: the model has no dropout node; exporters leave it out in inference mode: "
                "dropout=0.1, dropout_at=[...] drops behind layers"
            )
        return {}
    ratio = checks.number("dropout", dropout, 0.0, 1.0)
    if at is None:
        raise InputError(f"dropout={ratio:g} needs dropout_at=, the layers behind which it drops")
    return dict.fromkeys(sites(model, at, "dropout_at"), ratio) if ratio else {}

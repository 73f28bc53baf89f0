"""The ONNX format: models are imported into graphs and written back with what changed.

``onnx`` itself is imported when a file is read or written, not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dataflow.plugin import Converter, Exporter, Format, Model, hookimpl


def load(path: str, *, converters: Sequence[Converter] = (), **options: Any) -> Model:
    """The model in an ONNX file.

    Args:
        path: of the file; external data lies in its folder.
        converters: what plugins offer for operators.
        options: ``outputs``: names of values; only what they need is imported. ``batch="free"``: a fixed first size of
            all inputs becomes free, also where it is baked into constants; accepted only if batches of two and three
            give what single runs give. It is saved free, too. ``mode="inference"``: nodes of a file in training mode
            are as in inference, when it is saved too: batch norms take the running statistics, dropout drops nothing.

    Raises:
        ModelError: the file is damaged, unsafe or uses operators that are not known; lists all of them.
        PluginError: a plugin offers a converter of an operator that this package converts.
    """
    from .loading import load_file, table_with

    return load_file(path, table=table_with(tuple(converters)), **options)


def save(model: Model, path: str, *, exporters: Mapping[str, Exporter] | None = None, **options: Any) -> None:
    """Writes a model: an imported one as it was but for what changed, one built by hand in a plain form.

    Args:
        model: what to write.
        path: of the file; appears whole or not at all.
        exporters: by name of the op what plugins offer for a model built by hand.
        options: ``overwrite=True`` replaces an existing file. ``inputs`` and ``outputs``: of an imported model, the
            subgraph between these values, see ``file.subgraph.keep_subgraph``.
    """
    from .file.writer import save_file

    save_file(model, path, exporters=exporters or {}, **options)


def refused(converter: Converter) -> str | None:
    """Why a plugin's converter isn't used, or None: this package converts the operator itself.

    Its converters are imported only where the domain is one of theirs: they take a second.
    """
    from .converters import DOMAINS
    from .file.records import plain_domain

    if plain_domain(converter.domain) not in DOMAINS:
        return None
    from .operators import STANDARD

    return STANDARD.refuses(converter)


@hookimpl
def dataflow_formats() -> Iterable[Format]:
    """Files with suffix .onnx."""
    return [Format(".onnx", load, save, converts=True, exports=True, replaces=True, refuses=refused)]

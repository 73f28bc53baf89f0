"""Drawings of memory plans as a page: what lies where in each arena, and when."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

_WIDTH, _HEIGHT = 1100, 420

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 2em; color: #222; }}
svg {{ border: 1px solid #999; background: #fafafa; }}
rect {{ stroke: #fff; stroke-width: 0.5; }} rect:hover {{ stroke: #000; stroke-width: 1.5; }}
line {{ stroke: #000; stroke-width: 2; stroke-dasharray: 6 3; }}
td, th {{ text-align: left; padding: 2px 12px 2px 0; }} pre {{ background: #f4f4f4; padding: 1em; }}
</style></head><body><h1>{title}</h1>
<table>{figures}</table>
{arenas}
<h2>Steps</h2><pre>{text}</pre>
</body></html>
"""


class Row(NamedTuple):
    """A rectangle: bytes at an offset, from the step ``start`` to before ``stop``."""

    name: str
    start: int
    stop: int
    offset: int
    bytes: int


def page(
    title: str,
    figures: Mapping[str, str],
    arenas: Iterable[tuple[str, Sequence[Row]]],
    text: str,
    times: Mapping[int, str] = MappingProxyType({}),
) -> str:
    """An HTML page without scripts: figures, a drawing per arena (time to the right, offset upwards) and a text.

    ``times`` are steps before which a line is drawn, with what it means.
    """
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{v}</td></tr>" for k, v in figures.items())
    drawn = "\n".join(f"<h2>{html.escape(name)}</h2>" + _drawing(drawn_rows, times) for name, drawn_rows in arenas)
    return _PAGE.format(title=html.escape(title), figures=rows, arenas=drawn, text=html.escape(text))


def _drawing(rows: Sequence[Row], times: Mapping[int, str]) -> str:
    """An SVG with a rectangle per value: [start, stop) by [offset, offset + bytes); and a line per time."""
    steps = max((row.stop for row in rows), default=1)
    size = max((row.offset + row.bytes for row in rows), default=1)
    shapes = []
    for number, (name, start, stop, offset, nbytes) in enumerate(rows):
        x, width = _WIDTH * start / steps, _WIDTH * (stop - start) / steps
        height = _HEIGHT * nbytes / max(size, 1)
        y = _HEIGHT - _HEIGHT * offset / max(size, 1) - height
        label = f"{name}: {nbytes:,} bytes at {offset:,}, steps {start} to {stop - 1}"
        color = f"hsl({number * 137 % 360} 60% 62%)"  # the golden angle keeps neighbours apart
        shapes.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{color}">'
            f"<title>{html.escape(label)}</title></rect>"
        )
    for time, meaning in times.items():
        x = _WIDTH * min(time / steps, 1)
        shapes.append(
            f'<line x1="{x:.2f}" y1="0" x2="{x:.2f}" y2="{_HEIGHT}"><title>{html.escape(meaning)}</title></line>'
        )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">{"".join(shapes)}</svg>'

"""A plan as a page: what lies where in each arena, and when."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ..ir.plan import Plan
from .offsets import Lifetime

_WIDTH, _HEIGHT = 1100, 420

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 2em; color: #222; }}
svg {{ border: 1px solid #999; background: #fafafa; }}
rect {{ stroke: #fff; stroke-width: 0.5; }} rect:hover {{ stroke: #000; stroke-width: 1.5; }}
td, th {{ text-align: left; padding: 2px 12px 2px 0; }} pre {{ background: #f4f4f4; padding: 1em; }}
</style></head><body><h1>{title}</h1>
<table>{figures}</table>
{arenas}
<h2>Steps</h2><pre>{text}</pre>
</body></html>
"""

Placed = tuple[str, Lifetime, int]  # name, lifetime, offset


def plan_page(plan: Plan, title: str) -> str:
    """An HTML page without scripts: figures, a drawing per arena (time to the right, offset upwards) and the steps."""
    figures = {
        "peak": f"{plan.peak_bytes:,} bytes",
        "lower bound": f"{plan.lower_bound_bytes:,} bytes",
        "ratio": f"{plan.peak_bytes / max(plan.lower_bound_bytes, 1):.4f}",
        **{f"memory {name}": f"{size:,} bytes" for name, size in plan.memory.items()},
    }
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{v}</td></tr>" for k, v in figures.items())
    arenas = "\n".join(
        f"<h2>{html.escape(plan.arenas[index].name)} in {html.escape(plan.arenas[index].memory)}</h2>"
        + _drawing(placed)
        for index, placed in plan.lifetimes.items()
    )
    return _PAGE.format(title=html.escape(title), figures=rows, arenas=arenas, text=html.escape(str(plan)))


def _drawing(placed: Sequence[Placed]) -> str:
    """An SVG with a rectangle per value: [start, stop) by [offset, offset + bytes)."""
    steps = max((life.stop for _, life, _ in placed), default=1)
    size = max((offset + life.bytes for _, life, offset in placed), default=1)
    shapes = []
    for number, (name, life, offset) in enumerate(placed):
        x, width = _WIDTH * life.start / steps, _WIDTH * (life.stop - life.start) / steps
        height = _HEIGHT * life.bytes / max(size, 1)
        y = _HEIGHT - _HEIGHT * offset / max(size, 1) - height
        label = f"{name}: {life.bytes:,} bytes at {offset:,}, steps {life.start} to {life.stop - 1}"
        color = f"hsl({number * 137 % 360} 60% 62%)"  # the golden angle keeps neighbours apart
        shapes.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{color}">'
            f"<title>{html.escape(label)}</title></rect>"
        )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">{"".join(shapes)}</svg>'

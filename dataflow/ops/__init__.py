"""The ops, one declaration each."""

from __future__ import annotations

from dataflow.op import Op

ALL: tuple[Op, ...] = ()

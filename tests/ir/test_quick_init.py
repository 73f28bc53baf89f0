"""Frozen dataclasses that are made in less time."""

import copy
import dataclasses
import inspect
import pickle

import pytest

from dataflow.host.quick_init import quick_init


@quick_init
@dataclasses.dataclass(frozen=True, slots=True)
class Quick:
    first: int
    second: tuple[int, ...] = (1, 2)
    third: str = "text"


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    first: int
    second: tuple[int, ...] = (1, 2)
    third: str = "text"


def test_it_is_made_read_copied_and_refused_as_any_other():
    assert dataclasses.astuple(Quick(3)) == dataclasses.astuple(Plain(3)) == (3, (1, 2), "text")
    assert inspect.signature(Quick) == inspect.signature(Plain)
    one = Quick(3, third="other")
    assert dataclasses.replace(one, first=4) == Quick(4, (1, 2), "other")
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    for wrong in ((), (1, 2, 3, 4)):
        with pytest.raises(TypeError):
            Quick(*wrong)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.first = 5

"""The numbers that stand for strings in memory."""

import numpy as np
import pytest

import dataflow as df
from dataflow.host.strings import known_strings, numbers_of, strings_of, strings_of_a_run
from dataflow.testing import check_device


class Word(str):
    """A string of another class."""


def texts(*values):
    return np.array(values, object)


def test_numbers_of_several_arrays_are_mixed():
    with strings_of_a_run():
        a, b, c = (numbers_of(texts(*given)) for given in (("a", "ä", "a"), ("b",), ("", "c")))
        mixed = np.concatenate([c, a, np.zeros(2, np.uint64), b, a[::-2], c])
        assert strings_of(mixed).tolist() == ["", "c", "a", "ä", "a", "", "", "b", "a", "a", "", "c"]
        assert strings_of(mixed.reshape(3, 4).T).tolist() == strings_of(mixed).reshape(3, 4).T.tolist()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3), (1, 1)])
def test_shapes(shape):
    with strings_of_a_run():
        given = np.full(shape, "text", object)
        found = strings_of(numbers_of(given))
        assert found.shape == shape and found.dtype == object and (found == given).all()
    assert strings_of(np.zeros(shape, np.uint64)).tolist() == np.full(shape, "", object).tolist()


def test_a_changed_array_changes_no_string_of_a_run():
    with strings_of_a_run():
        given = texts("a", "b")
        numbers = numbers_of(given)
        given[:] = "c"
        assert strings_of(numbers).tolist() == ["a", "b"]
        found = strings_of(numbers)
        found[:] = "d"
        assert strings_of(numbers).tolist() == ["a", "b"]


def test_elements_are_str_itself_or_refused():
    with strings_of_a_run():
        found = strings_of(numbers_of(texts("a", Word("b"), np.str_("c"))))
        assert found.tolist() == ["a", "b", "c"] and {*map(type, found)} == {str}
        with pytest.raises(df.InputError, match="element 1 of an array of strings is None; expected a str"):
            numbers_of(texts("a", None))


def test_numbers_of_a_run_end_with_it_and_inner_runs_end_first():
    before = known_strings()
    with strings_of_a_run():
        outer = numbers_of(texts("a", "b"))
        with strings_of_a_run():
            inner = numbers_of(texts("c"))
        assert strings_of(outer).tolist() == ["a", "b"]
        with pytest.raises(KeyError):
            strings_of(inner)
    assert known_strings() == before


def test_constants_may_lie_in_a_slice_of_a_buffer():
    found = list(check_device("numpy", select="string_concat-str-2x3-str-3"))
    assert found and all(str(check).startswith("passed") for check in found)

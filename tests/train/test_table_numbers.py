"""Numbers that cells of tables hold, exactly or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dataflow as df

LARGE = 2**53 + 1  # which float64 rounds


def passed_on(dtype: df.DType = df.int64, width: int = 1) -> df.Model:
    g = df.GraphBuilder()
    g.output("y", df.ops.copy(g.input("x", dtype, ("batch", width))))
    return df.Model(g.build())


def written(path: Path, *lines: str) -> str:
    (path / "table.csv").write_text("\n".join(lines) + "\n")
    return str(path / "table.csv")


@pytest.mark.parametrize("cells", [(LARGE, 3), (-LARGE, LARGE), (2**63 - 1, -(2**63)), (LARGE, *range(40_000))])
def test_integers_beyond_float64_keep_all_digits(tmp_path: Path, cells: tuple[int, ...]) -> None:
    found = df.predict(passed_on(), written(tmp_path, "x", *map(str, cells)))["y"]
    np.testing.assert_array_equal(found[:, 0], np.array(cells, np.int64))


@pytest.mark.parametrize("cell", ["inf", "1e300", "0.5"])
def test_columns_of_floats_stay_so_whatever_their_first_rows_have(tmp_path: Path, cell: str) -> None:
    """Blocks of rows are read by themselves."""
    table = df.Dataset(written(tmp_path, "x", *[str(LARGE)] * 20_000, cell))
    with pytest.raises(df.InputError, match=r"column 'x'"):
        df.predict(passed_on(), table)


def test_side_by_side_with_floats_they_are_exact_too(tmp_path: Path) -> None:
    table = written(tmp_path, "a,b", f"{LARGE},1.0", f"{LARGE + 2},2.0")
    found = df.predict(passed_on(width=2), df.Dataset(table, columns=["a", "b"]))["y"]
    np.testing.assert_array_equal(found, [[LARGE, 1], [LARGE + 2, 2]])


@pytest.mark.parametrize("cell", ["1.0", ""])
def test_what_would_be_rounded_is_refused_for_an_input_of_integers(tmp_path: Path, cell: str) -> None:
    table = df.Dataset(written(tmp_path, "x,z", f"{LARGE},1", f"{cell},2"), columns=["x"], missing="drop")
    with pytest.raises(df.InputError, match=r"line 2, column 'x': 9007199254740992.0: .* 2\^53 aren't exact"):
        df.predict(passed_on(), table)
    assert df.predict(passed_on(df.float32), table)["y"][0, 0] == np.float32(LARGE)


def test_texts_with_underscores_are_no_numbers(tmp_path: Path) -> None:
    """As in pandas: digits are grouped so in Python's source alone."""
    with pytest.raises(df.InputError, match="'1_0' is no number"):
        df.predict(passed_on(), written(tmp_path, "x", "1_0", "2"))
    g = df.GraphBuilder()
    w = g.parameter("w", np.zeros((1, 2), np.float32))
    g.output("y", df.ops.matmul(g.input("x", df.float32, ("batch", 1)), w))
    with df.Trainer(df.Model(g.build())) as trainer:
        trainer.fit(written(tmp_path, "x,labels", "1,1_1", "2,1_2", "3,1_1"), epochs=1, progress=False)
        assert trainer.model.classes == ("1_1", "1_2")

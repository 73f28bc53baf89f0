"""CSV, Parquet, JSON lines and DataFrames: columns become inputs and labels, and what is wrong says where."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow.ir.types import TensorType
from dataflow.train.data.batch import Request
from tests.train.data_models import classifier

ROWS = [(5.1, 3.5, 1.4, 0.2, "setosa"), (7.0, 3.2, 4.7, 1.4, "versicolor"), (6.3, 3.3, 6.0, 2.5, "virginica")] * 4
NAMES = ("a", "b", "c", "d")
WANTED = Request({"x": TensorType(df.float32, (df.Dim("batch"), 4))}, ("labels",))


def csv_file(folder: Path, text: str | None = None, name: str = "iris.csv") -> Path:
    lines = [",".join((*NAMES, "species")), *(",".join(map(str, row)) for row in ROWS)]
    path = folder / name
    path.write_text("\n".join(lines) + "\n" if text is None else text)
    return path


def arrays(dataset: df.Dataset, wanted: Request = WANTED) -> dict[str, np.ndarray]:
    (batch,) = dataset.bound(wanted).batches(1000)
    return dict(batch.arrays)


def expected() -> dict[str, np.ndarray]:
    return {"x": np.array([row[:4] for row in ROWS], np.float32), "labels": np.array([0, 1, 2] * 4)}


def check(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray] | None = None) -> None:
    wanted = expected() if wanted is None else wanted
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], array)


def test_columns_of_a_csv_file_are_features_and_labels(tmp_path: Path) -> None:
    path = csv_file(tmp_path)
    dataset = df.Dataset(path, label="species").bound(WANTED)
    check(arrays(df.Dataset(str(path), label="species")))
    assert dataset.classes == {"labels": ["setosa", "versicolor", "virginica"]}
    check(arrays(df.Dataset(path, label="species", columns=["a", "b", "c", "d"])))
    given = arrays(df.Dataset(path, label="species", classes=["virginica", "versicolor", "setosa"]))
    assert given["labels"].tolist() == [2, 1, 0] * 4
    tabs = csv_file(tmp_path, path.read_text().replace(",", "\t"), "iris.tsv")
    check(arrays(df.Dataset(tabs, label="species")))
    check(arrays(df.Dataset(csv_file(tmp_path, path.read_text().replace(",", ";")), label="species", delimiter=";")))


def test_several_columns_are_labels_side_by_side(tmp_path: Path) -> None:
    """Features are the other columns; a model learns by them what it learns by arrays."""
    text = "a,t1,b,t2,c,d\n" + "".join(f"{a},{a * 2},{b},{i % 2},{c},{d}\n" for i, (a, b, c, d, _) in enumerate(ROWS))
    path = csv_file(tmp_path, text)
    x = np.array([row[:4] for row in ROWS], np.float32)
    labels = np.stack([2 * x[:, 0], np.arange(len(x)) % 2], 1).astype(np.float32)
    for label in (["t1", "t2"], ("t1", "t2")):
        check(arrays(df.Dataset(path, label=label)), {"x": x, "labels": labels})
    dropped = csv_file(tmp_path, text.replace(",0,", ",,", 1), "some.csv")
    with pytest.raises(df.InputError, match=r"some\.csv.*line 2, column 't2': a number is missing"):
        arrays(df.Dataset(dropped, label=["t1", "t2"]))
    check(arrays(df.Dataset(dropped, label=["t1", "t2"], missing="drop")), {"x": x[1:], "labels": labels[1:]})
    with pytest.raises(df.InputError, match="column 'species': 'setosa' is no number"):
        arrays(df.Dataset(csv_file(tmp_path, None, "iris2.csv"), label=["a", "species"], columns=["a", "b", "c", "d"]))
    with pytest.raises(df.InputError, match="label: no column is named"):
        df.Dataset(path, label=[])

    found = []
    for data in (df.Dataset(path, label=["t1", "t2"]), {"x": x, "labels": labels}):
        g = df.GraphBuilder("linear")
        w = g.parameter("w", np.ones((4, 2), np.float32), trainable=True)
        g.output("y", df.ops.matmul(g.input("x", df.float32, ("batch", 4)), w))
        with df.Trainer(df.Model(g.build()), "mse", "sgd:lr=0.01,momentum=0", devices=["numpy"]) as trainer:
            trainer.fit(data, epochs=1, batch_size=12, progress=False)
            found.append(trainer.model.parameters["w"].array)
    slope = 2 * x.T @ (x.sum(1, keepdims=True) - labels) / labels.size
    for array in found:
        np.testing.assert_allclose(array, 1 - 0.01 * slope, rtol=1e-5)


def test_names_of_columns_begin_and_end_without_spaces(tmp_path: Path) -> None:
    text = csv_file(tmp_path).read_text()
    names, rows = text.split("\n", 1)
    check(arrays(df.Dataset(csv_file(tmp_path, names.replace(",", " , ") + " \n" + rows), label="species")))
    one = csv_file(tmp_path, "a;b\n1\n2\n")
    assert df.Dataset(one, delimiter=",", columns=["a;b"]).known_length == 2


def test_parquet_json_lines_and_frames_give_what_csv_gives(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = dict(zip((*NAMES, "species"), map(list, zip(*ROWS, strict=True)), strict=True))
    parquet.write_table(pyarrow.table(columns), tmp_path / "iris.parquet")
    lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in ROWS]
    (tmp_path / "iris.jsonl").write_text("\n".join(lines))
    for data in (tmp_path / "iris.parquet", tmp_path / "iris.jsonl", pyarrow.table(columns)):
        check(arrays(df.Dataset(data, label="species")))
    coded = pyarrow.table({**columns, "species": pyarrow.array(columns["species"]).dictionary_encode()})
    parquet.write_table(coded, tmp_path / "coded.parquet")
    check(arrays(df.Dataset(tmp_path / "coded.parquet", label="species")))


class Frame:
    """As much of a DataFrame as is read."""

    class Column:
        def __init__(self, values: np.ndarray) -> None:
            self.values = values

        def to_numpy(self) -> np.ndarray:
            return self.values

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.columns = list(columns)
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[self.columns[0]])

    def __getitem__(self, name: str) -> Frame.Column:
        return Frame.Column(self._columns[name])

    def to_numpy(self) -> None:
        raise AssertionError("columns have names")


def test_frames_and_their_missing_values() -> None:
    species = np.array([row[4] for row in ROWS], object)
    numbers = {name: np.array([row[i] for row in ROWS]) for i, name in enumerate(NAMES)}
    check(arrays(df.Dataset(Frame({**numbers, "species": species}), label="species")))
    numbers["b"][2] = np.nan
    with pytest.raises(df.InputError, match="Frame: row 2, column 'b': a number is missing"):
        arrays(df.Dataset(Frame({**numbers, "species": species}), label="species"))
    dropped = arrays(df.Dataset(Frame({**numbers, "species": species}), label="species", missing="drop"))
    assert dropped["labels"].tolist() == [0, 1] + [0, 1, 2] * 3
    filled = arrays(df.Dataset(Frame({**numbers, "species": species}), label="species", missing=-1))
    assert filled["x"][2, 1] == -1
    species[4] = None
    with pytest.raises(df.InputError, match="row 4, column 'species': the label is missing"):
        arrays(df.Dataset(Frame({**numbers, "species": species}), label="species", missing=0))


def test_only_features_are_filled_and_labels_are_none_of_them(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "a,b,c,d,label,sample_weight\n1,2,3,4,0,1\n1,,3,4,,1\n1,2,3,4,1,\n")
    with pytest.raises(df.InputError, match="line 3, column 'label': the label is missing"):
        arrays(df.Dataset(path, missing=0))
    assert arrays(df.Dataset(path, missing="drop"))["sample_weight"].tolist() == [1]
    complete = csv_file(tmp_path, "a,b,c,d,label\n1,2,3,4,0\n1,,3,4,5\n", "complete.csv")
    found = arrays(df.Dataset(complete, missing=7), Request(WANTED.inputs))
    np.testing.assert_array_equal(found["x"], [[1, 2, 3, 4], [1, 7, 3, 4]])


@pytest.mark.parametrize("cell", ["", "NA", "N/A", "nan", "NULL", "None"])
def test_labels_that_are_numbers_stay_numbers_where_one_is_missing(tmp_path: Path, cell: str) -> None:
    path = csv_file(tmp_path, f"a,b,c,d,labels\n1,2,3,4,10\n5,{cell},7,8,2\n1,2,3,4,{cell}\n9,8,7,6,1\n5,5,5,5,9\n")
    found = arrays(df.Dataset(path, missing="drop"))
    np.testing.assert_array_equal(found["labels"], [10, 1, 9])  # as texts they would be classes 1, 0 and 2
    np.testing.assert_array_equal(found["x"], [[1, 2, 3, 4], [9, 8, 7, 6], [5, 5, 5, 5]])
    with pytest.raises(df.InputError, match="line 4, column 'labels': the label is missing"):
        arrays(df.Dataset(path, missing=0))
    named = csv_file(tmp_path, "a,b,c,d,labels\n1,2,3,4,cat\n1,2,3,4,None\n", "named.csv")
    assert df.Dataset(named).bound(WANTED).classes == {"labels": ["None", "cat"]}


def line(name: str = "y") -> df.Model:
    g = df.GraphBuilder("line")
    x = g.input("x", df.float32, ("batch", 4))
    g.output(name, df.ops.matmul(x, g.parameter("w", np.array([[1], [2], [0], [0]], np.float32))))
    return df.Model(g.build())


def test_differences_from_texts_are_refused_unless_classes_are_given(tmp_path: Path) -> None:
    lines = ["1,0,0,0,2.5", "0,1,0,0,1 230", "0,0,1,0,7"]
    path = csv_file(tmp_path, "\n".join(["a,b,c,d,price", *lines]))
    for loss in ("mse", "mae", "huber", "smooth_l1", "poisson_nll"):
        with pytest.raises(df.InputError, match="line 3, column 'price': '1 230' is no number"):
            df.evaluate(line(), df.Dataset(path, label="price"), loss)
    given = df.Dataset(path, label="price", classes=["7", "2.5", "1 230"])
    assert df.evaluate(line(), given, "mse", [])["loss"] == 0.0  # classes 1, 2 and 0, which the line gives
    with df.Trainer(line(), "mse", "sgd:lr=0,momentum=0") as trainer:  # they hold for validation data too
        plain = df.Dataset(path, label="price")
        found = trainer.fit(given, epochs=1, batch_size=3, validation=plain, progress=False)
        assert found["val_loss"] == [0.0] and trainer.evaluate(plain)["loss"] == 0.0
    path.write_text(path.read_text().replace("1 230", ""))
    found = df.evaluate(line(), df.Dataset(path, label="price", missing="drop"), "mse", [])["loss"]
    assert found == pytest.approx((1.5**2 + 7**2) / 2)
    yes = csv_file(tmp_path, "a,b,c,d,labels\n1,0,0,0,yes\n0,1,0,0,no\n", "yes.csv")
    found = df.evaluate(line(), yes, "binary_cross_entropy", [])["loss"]
    assert found == pytest.approx((np.log1p(np.exp(-1)) + np.log1p(np.exp(2))) / 2, rel=1e-6)


def test_lists_in_cells_are_vectors(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "v.jsonl"
    lines = [{"x": [float(i), 1, 2, 3], "labels": i, "other": [[1, 2], [3, 4]]} for i in range(3)]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = arrays(df.Dataset(path))
    check(found, {"x": np.array([[i, 1, 2, 3] for i in range(3)], np.float32), "labels": np.arange(3)})
    path.write_text("".join(json.dumps({"x": [], "labels": i}) + "\n" for i in range(2)))
    with pytest.raises(df.InputError, match="wants 4 numbers per sample, and 'x' have 0"):
        arrays(df.Dataset(path, missing="drop"))
    lines[1]["x"] = [1.0]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(df.InputError, match=r"'x': row 1: its list has shape \(1,\), that of row 0 \(4,\)"):
        arrays(df.Dataset(path))


def test_several_inputs_are_columns_or_said_by_name(tmp_path: Path) -> None:
    batch = df.Dim("batch")
    wanted = Request({"id": TensorType(df.int64, (batch,)), "x": TensorType(df.float32, (batch, 2))}, ("labels",))
    path = csv_file(tmp_path, "id,u,v,labels\n7,1,2,0.5\n8,3,4,1.5\n")
    found = arrays(df.Dataset(path, columns={"id": "id", "x": ["u", "v"]}), wanted)
    check(found, {"id": np.array([7, 8]), "x": np.array([[1, 2], [3, 4]], np.float32), "labels": np.array([0.5, 1.5])})
    with pytest.raises(df.InputError, match=r"name the columns of each in columns=; there are the columns 'id', 'u'"):
        arrays(df.Dataset(path), wanted)
    path = csv_file(tmp_path, "id,x,labels,sample_weight\n7.5,1,0,2\n8,3,1,1\n")
    with pytest.raises(
        df.InputError, match=r"line 2, column 'id': 7\.5 is no whole number, and the input 'id' is int64"
    ):
        arrays(df.Dataset(path, columns={"id": "id", "x": ["x", "x"]}), wanted)
    found = arrays(df.Dataset(path, columns={"x": ["x", "labels"], "id": "labels"}), wanted)
    assert found["sample_weight"].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no header"),
        (
            "a;b;c;d;labels\n1;2;3;4;0\n",
            r"one column is called 'a;b;c;d;labels'; with delimiter=';' \(--delimiter ';'\)",
        ),
        ("a\tlabels\n1\t0\n", r"with delimiter='\\t' \(--delimiter '\\t'\) the cells are apart"),
        ("a,b,c,d,labels\n", "a header and no rows"),
        ("a,a,c,d,labels\n1,2,3,4,0\n", "two columns are called 'a'"),
        ("a,b,c,d,labels\n1,2,3,4,0\n1,2,3\n", "line 3 has 3 cells; the header has 5"),
        ("a,b,c,d,labels\n1,2,3,4,0\n1,2,,4,0\n", "line 3, column 'c': a number is missing"),
        ("a,b,c,d,labels\n1,2,3,4,0\n1,2,inf,4,0\n", "line 3, column 'c': a number is infinite"),
        ("a,b,c,d,labels\n1,2,3,4,0\n1,2,1e300,4,0\n", "line 3, column 'c': a number is beyond what float32 holds"),
        ("a,b,c,d,labels\n1,2,3,4,0\n1,2,3,4,\n", "line 3, column 'labels': the label is missing"),
        ("a,b,c,d,y\n1,2,3,4,0\n", "there is no column 'labels'; there are 'a', 'b', 'c', 'd', 'y'"),
        ("a,b,c,labels\n1,2,3,0\n", "wants 4 numbers per sample, and 'a', 'b', 'c' have 3"),
        ('a,b,c,d,labels\n1,2,3,4,"0\n', "unexpected end of data"),
        ("a,b,c,d,labels\n" + "1" * 200_000 + ",2,3,4,0\n", "line 2: field larger than field limit"),
    ],
)
def test_bad_csv_says_where(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(df.InputError, match=r"iris\.csv.*" + says):
        arrays(df.Dataset(csv_file(tmp_path, text)))


def test_integers_that_the_input_cannot_hold_are_refused(tmp_path: Path) -> None:
    """A cast would give other numbers, 2^32 + 5 that of row 5 and 2^63 the least one."""
    for dtype, number in ((df.int32, 2**32 + 5), (df.int64, 2**63)):
        wanted = Request({"id": df.TensorType(dtype, ("n",))}, ("labels",))
        with pytest.raises(df.InputError, match=f"line 3, column 'id': a number is beyond what {dtype} holds"):
            arrays(df.Dataset(csv_file(tmp_path, f"id,labels\n7,0\n{number},1\n")), wanted)
    found = arrays(df.Dataset(csv_file(tmp_path, f"id,labels\n7,0\n{2**32 + 5},1\n")), wanted)
    assert found["id"].tolist() == [7, 2**32 + 5]


def test_a_column_of_mixed_types_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a,b,c,d,labels\n" + "1,2,3,4,0\n" * 4 + "1,x,3,4,0\n"
    chosen = {"columns": ["a", "b", "c", "d"]}
    with pytest.raises(df.InputError, match=r"iris\.csv: line 2, column 'b'|line 6, column 'b': 'x' is no number"):
        arrays(df.Dataset(csv_file(tmp_path, text), **chosen))
    monkeypatch.setattr("dataflow.train.data.csv_file._ROWS", 2)
    with pytest.raises(df.InputError, match="column 'b': line 6: 'x' is no number, as there are in the lines before"):
        arrays(df.Dataset(csv_file(tmp_path, text), **chosen))
    with pytest.raises(df.InputError, match="wants 4 numbers per sample, and 'a', 'c', 'd' have 3"):
        arrays(df.Dataset(csv_file(tmp_path, text)))
    check(arrays(df.Dataset(csv_file(tmp_path), label="species")))


def test_bad_files_say_what_they_are(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "l.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    with pytest.raises(df.InputError, match=r"l\.csv: is no text in UTF-8"):
        df.Dataset(tmp_path / "l.csv")
    (tmp_path / "p.parquet").write_bytes(b"PAR1 truncated")
    with pytest.raises(df.InputError, match=r"p\.parquet: can't be read as Parquet"):
        df.Dataset(tmp_path / "p.parquet")
    (tmp_path / "j.jsonl").write_text('{"x": 1}\n{"x": "two"}\n')
    with pytest.raises(df.InputError, match=r"j\.jsonl: can't be read as JSON lines: .*changed from number to string"):
        df.Dataset(tmp_path / "j.jsonl")
    (tmp_path / "n.jsonl").write_text('{"x": [1, 2, 3, 4], "labels": 1}\n{"x": [1, 2, 3, 4]}\n')
    with pytest.raises(df.InputError, match=r"n\.jsonl: row 1, column 'labels': the label is missing"):
        arrays(df.Dataset(tmp_path / "n.jsonl"))
    with pytest.raises(df.InputError, match=r"no such file or folder"):
        df.Dataset(tmp_path / "none.csv")
    (tmp_path / "x.doc").write_text("")
    with pytest.raises(df.InputError, match=r"ends in \.npz, \.csv"):
        df.Dataset(tmp_path / "x.doc")
    with pytest.raises(df.InputError, match=r"columns= is no option of npz files; it has none"):
        np.savez(tmp_path / "d.npz", x=np.ones(3))
        df.Dataset(tmp_path / "d.npz", columns=["x"])


@pytest.mark.parametrize(
    "options", [{"missing": "keep"}, {"delimiter": "::"}, {"columns": [3]}, {"label": 3}, {"classes": 7}]
)
def test_options_that_do_not_fit(tmp_path: Path, options: dict) -> None:
    with pytest.raises(df.InputError, match=next(iter(options))):
        df.Dataset(csv_file(tmp_path), **options)


def test_a_model_trains_on_a_csv_file_and_validates_with_the_same_classes(tmp_path: Path) -> None:
    validation = csv_file(tmp_path, "a,b,c,d,species\n6.3,3.3,6.0,2.5,virginica\n", "val.csv")
    with df.Trainer(classifier(), devices=["numpy"]) as trainer:
        history = trainer.fit(
            df.Dataset(csv_file(tmp_path), label="species"),
            df.Dataset(validation, label="species"),
            epochs=2,
            batch_size=5,
            progress=False,
        )
        assert trainer.classes == {"labels": ["setosa", "versicolor", "virginica"]}
        assert len(history["val_loss"]) == 2
        (batch,) = trainer._dataset(df.Dataset(validation, label="species")).batches(8)
        assert batch.arrays["labels"].tolist() == [2]
        other = csv_file(tmp_path, "a,b,c,d,species\n6.3,3.3,6.0,2.5,rose\n", "other.csv")
        with pytest.raises(df.InputError, match=r"line 2, column 'species': 'rose' is none of the classes 'setosa'"):
            trainer.evaluate(df.Dataset(other, label="species"))


def test_columns_may_be_mapped(tmp_path: Path) -> None:
    def summed(row: dict) -> dict:
        return {"x": [row["a"] + row["b"], row["c"], row["d"], len(str(row["species"]))], "labels": 1}

    found = arrays(df.Dataset(csv_file(tmp_path)).map(summed))
    np.testing.assert_allclose(found["x"][:3], [[8.6, 1.4, 0.2, 6], [10.2, 4.7, 1.4, 10], [9.6, 6.0, 2.5, 9]])
    few = df.Dataset(csv_file(tmp_path), label="species").filter(lambda row: row["a"] > 6)
    assert arrays(few)["labels"].tolist() == [1, 2] * 4


def test_columns_of_text_that_leave_too_few_numbers_are_named(tmp_path: Path) -> None:
    text = "a,b,c,d,labels\n1,2,x,3,0\n4,5,y,6,1\n"
    with pytest.raises(df.InputError, match=r"wants 4 numbers per sample, and 'a', 'b', 'd' have 3; no numbers.*: 'c'"):
        arrays(df.Dataset(csv_file(tmp_path, text)))

"""Operators of ai.onnx.ml against ONNX Runtime, and files of trees that are none."""

import itertools

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow.cli.main import commands
from dataflow.passes.autodiff import vjp_graph
from dataflow.passes.bind_shapes import bind
from dataflow_numpy.evaluate import evaluate
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

KINDS = {"O": TensorProto.STRING, "f4": TensorProto.FLOAT, "f8": TensorProto.DOUBLE, "i8": TensorProto.INT64}
LABELS = (("y", TensorProto.INT64), ("z", TensorProto.FLOAT))
WORDS = (("y", TensorProto.STRING), ("z", TensorProto.FLOAT))
SCORE = (("z", TensorProto.FLOAT),)


def serialized(op, feeds, outputs, version=3, **attributes):
    kinds = [KINDS["O" if a.dtype.kind == "O" else a.dtype.str[1:]] for a in feeds.values()]
    shapes = [(n, kind, (f"{n} rows", *a.shape[1:])) for kind, (n, a) in zip(kinds, feeds.items(), strict=True)]
    node = helper.make_node(op, [*feeds], [name for name, _ in outputs], domain="ai.onnx.ml", **attributes)
    inputs = [helper.make_tensor_value_info(*s) for s in shapes]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", version)]
    graph = helper.make_graph([node], "g", inputs, results)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def same(op, feeds, outputs, version=3, tolerance=1e-6, **attributes):
    """Runs the operator here and in ONNX Runtime."""
    feeds = feeds if isinstance(feeds, dict) else {"x": feeds}
    data = serialized(op, feeds, outputs, version, **attributes)
    expected = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)
    found = df.Session(load_bytes(data)).run(feeds)
    for (name, _), y in zip(outputs, expected, strict=True):
        assert found[name].shape == y.shape and found[name].dtype == y.dtype
        if y.dtype.kind == "f":
            np.testing.assert_allclose(found[name], y, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(found[name], y)
    return found


def refused(match, op, feeds=None, outputs=SCORE, version=3, **attributes):
    feeds = {"x": np.zeros((1, 2), np.float32)} if feeds is None else feeds
    with pytest.raises(df.ModelError, match=match):
        load_bytes(serialized(op, feeds, outputs, version, **attributes))


@pytest.fixture
def random():
    return np.random.default_rng(5)


def floats(random, *shape):
    return random.standard_normal(shape).astype(np.float32)


# ---- features -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm, random):
    x = np.concatenate([floats(random, 4, 3), np.zeros((1, 3), np.float32)])
    same("Normalizer", x, SCORE, norm=norm)
    graph = bind(load_bytes(serialized("Normalizer", {"x": x}, SCORE, norm=norm)).graph, {"x rows": 5})
    y = np.ones((5, 3), np.float32)
    gradient = evaluate(vjp_graph(graph, graph.inputs), {"x": x, "grad.z": y})  # of the row of zeros too
    assert all(np.isfinite(array).all() for array in gradient.values())


def test_scaler_imputer_binarizer_and_extractor(random):
    x = floats(random, 4, 3)
    same("Scaler", x, SCORE, scale=[2.0, 3.0, 0.5], offset=[1.0, -1.0, 0.25])
    same("Scaler", np.arange(6).reshape(2, 3), SCORE, scale=[2.0], offset=[0.5])
    same("Binarizer", x, SCORE, threshold=0.1)
    x[1, 2] = x[3, 0] = np.nan
    nan = float("nan")
    same("Imputer", x, SCORE, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=nan)
    same("Imputer", np.arange(6).reshape(2, 3), (("z", TensorProto.INT64),), imputed_value_int64s=[7],
         replaced_value_int64=4)  # fmt: skip
    feeds = {"x": x[:, ::-1].copy(), "i": np.array([2, 0, 0])}
    same("ArrayFeatureExtractor", feeds, SCORE)
    same("FeatureVectorizer", {"a": x[1:2], "b": floats(random, 1, 2)}, SCORE, inputdimensions=[3, 2])
    refused("2 numbers for 3 features", "Scaler", {"x": x}, scale=[1.0, 2.0])
    refused("no imputed values", "Imputer", {"x": x})


@pytest.mark.parametrize("keys", ["floats", "int64s", "strings"])
@pytest.mark.parametrize("values", ["floats", "int64s", "strings"])
def test_label_encoder(keys, values):
    of = {"floats": [2.5, float("nan"), -1.0], "int64s": [7, 3, 5], "strings": ["b", "é", ""]}
    x = {"floats": np.array([[-1.0, 2.5, np.nan, 4.0]], np.float32), "int64s": np.array([[3, 4, 7, 5]])}
    x["strings"] = np.array([["", "c", "b", "é"]], object)
    kinds = {"floats": TensorProto.FLOAT, "int64s": TensorProto.INT64, "strings": TensorProto.STRING}
    given = {f"keys_{keys}": of[keys], f"values_{values}": of[values][::-1]}
    same("LabelEncoder", x[keys], (("y", kinds[values]),), 4, **given)  # of opset 2 ONNX Runtime finds no NaN
    if (keys, values) == ("int64s", "floats"):
        tensors = {"keys_tensor": np.array([7, 3, 5]), "values_tensor": np.array([1.5, 2.5, -1.0])}
        tensors["default_tensor"] = np.array([9.0])
        tensors = {name: numpy_helper.from_array(a, name) for name, a in tensors.items()}
        same("LabelEncoder", x[keys], (("y", TensorProto.DOUBLE),), 4, **tensors)


def test_encoders():
    words, numbers = np.array([["b"], ["é"], ["x"]], object), np.array([[3], [9], [5]])
    same("LabelEncoder", words, (("y", TensorProto.INT64),), 1, classes_strings=["é", "b"], default_int64=-3)
    same("CategoryMapper", words, (("y", TensorProto.INT64),), 1, cats_strings=["é", "b"], cats_int64s=[9, 3])
    same("CategoryMapper", numbers, (("y", TensorProto.STRING),), 1, cats_strings=["é", "b"], cats_int64s=[9, 3])
    same("OneHotEncoder", words, SCORE, cats_strings=["é", "b"])
    same("OneHotEncoder", numbers, SCORE, cats_int64s=[9, 3])
    same("OneHotEncoder", numbers.astype(np.float32) + 0.5, SCORE, cats_int64s=[9, 3])
    strict = load_bytes(serialized("OneHotEncoder", {"x": words}, SCORE, cats_strings=["é", "b"], zeros=0))
    np.testing.assert_array_equal(df.Session(strict).run({"x": words[:2]})["z"].reshape(2, 2), [[0, 1], [1, 0]])
    with pytest.raises(df.InputError, match="outside"):
        df.Session(strict).run({"x": words})
    refused("two values", "LabelEncoder", {"x": numbers}, SCORE, 2, keys_int64s=[1, 1], values_floats=[1.0, 2.0])
    refused("one length", "LabelEncoder", {"x": numbers}, SCORE, 2, keys_int64s=[1, 2], values_floats=[1.0])
    refused("one type", "LabelEncoder", {"x": words}, SCORE, 2, keys_int64s=[1], values_floats=[1.0])
    refused("one of each", "LabelEncoder", {"x": words}, SCORE, 2, keys_int64s=[1], keys_strings=["a"])
    refused("all of them different", "OneHotEncoder", {"x": words}, SCORE, cats_strings=["a", "a"])


# ---- lists of maps ------------------------------------------------------------------------------------


def zip_map(nodes, output, rank=2, **labels):
    """A file with a matrix x, a vector or a sequence of matrices, and a list of maps."""
    key = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    nodes = [*nodes, helper.make_node("ZipMap", ["p"], ["z"], domain="ai.onnx.ml", **labels)]
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    x = helper.make_tensor_type_proto(TensorProto.FLOAT, ("rows", 3)[-rank:] if rank else ("rows", 3))
    inputs = [helper.make_value_info("x", x if rank else helper.make_sequence_type_proto(x))]
    results = [helper.make_value_info(output, helper.make_sequence_type_proto(kind))]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph(nodes, "g", inputs, results)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [7, -1, 3]}, {"classlabels_strings": ["b", "", "é"]}])
def test_maps(labels, random):
    softmax = [helper.make_node("Softmax", ["x"], ["p"])]
    for rank, given in ((2, [floats(random, n, 3) for n in (4, 0)]), (1, [floats(random, 3)])):
        data = zip_map(softmax, "z", rank, **labels)
        theirs, session = onnxruntime.InferenceSession(data), df.Session(load_bytes(data))
        for x in given:
            (expected,), (found,) = theirs.run(None, {"x": x}), session.run({"x": x}).values()
            assert [row.keys() for row in found] == [row.keys() for row in expected]
            keys = session.model.maps["z"]
            for own, other in zip(found, expected, strict=True):
                np.testing.assert_allclose([own[k] for k in keys], [other[k] for k in keys], rtol=1e-6)
                assert list(own) == list(keys) and {type(value) for value in own.values()} == {float}
    matrix = np.empty((1, 3), np.float32)
    assert session.run({"x": x}, out={"z": matrix})["z"] is matrix  # as training and plans see it
    np.testing.assert_array_equal(matrix, [[*row.values()] for row in found])


def test_maps_of_what_is_made_for_its_inputs(random):
    first = helper.make_node("SequenceAt", ["x", "zero"], ["p"])
    zero = helper.make_node("Constant", [], ["zero"], value_int=0)
    data = zip_map([zero, first], "z", 0, classlabels_strings=["a", "b", "c"])
    x = floats(random, 2, 3)
    expected = onnxruntime.InferenceSession(data).run(None, {"x": [x]})
    assert [*df.Session(load_bytes(data)).run({"x": [x]}).values()] == expected


def test_the_command_line_writes_maps_as_a_matrix(tmp_path):
    path, x, z = tmp_path / "model.onnx", tmp_path / "x.npy", tmp_path / "z.npy"
    softmax = [helper.make_node("Softmax", ["x"], ["p"])]
    path.write_bytes(zip_map(softmax, "z", classlabels_strings=["a", "b", "c"]))
    np.save(x, np.zeros((2, 3), np.float32))
    assert "as a list of maps" in CliRunner().invoke(commands, ["inspect", str(path)]).output
    done = CliRunner().invoke(commands, ["run", str(path), "--input", str(x), "--output", str(z)])
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(np.load(z), np.full((2, 3), 1 / 3), rtol=1e-6)


def test_maps_that_are_none():
    refused("both types", "ZipMap")
    refused("both types", "ZipMap", classlabels_int64s=[0, 1], classlabels_strings=["a", "b"])
    refused("3 keys", "ZipMap", classlabels_int64s=[0, 1, 2])
    refused("are equal", "ZipMap", classlabels_int64s=[1, 1])
    nodes = [helper.make_node("Softmax", ["x"], ["p"]), helper.make_node("Neg", ["p"], ["y"])]
    with pytest.raises(df.ModelError, match="'y' is a list of maps; expected one that a ZipMap gives"):
        load_bytes(zip_map(nodes, "y", classlabels_int64s=[0, 1, 2]))


# ---- linear models and support vectors ----------------------------------------------------------------


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_linear_classifiers(transform, random):
    x = floats(random, 9, 4)
    for classes, kind in ((2, "ints"), (3, "ints"), (3, "strings")):
        names = [5, 2, 9][:classes] if kind == "ints" else ["b", "a", "c"]
        of = {"coefficients": floats(random, classes * 4).tolist(), "intercepts": [0.1, 0.2, -0.3][:classes]}
        of |= {f"classlabels_{kind}": names, "post_transform": transform}
        same("LinearClassifier", x, LABELS if kind == "ints" else WORDS, 1, **of)
        if classes == 3:
            del of[f"classlabels_{kind}"]
            same("LinearRegressor", x, SCORE, 1, targets=3, **of)
    one = {"coefficients": floats(random, 4).tolist(), "intercepts": [0.1], "post_transform": transform}
    if transform in ("NONE", "LOGISTIC"):
        same("LinearClassifier", x, LABELS, 1, classlabels_ints=[4, 7], **one)
    else:
        refused("no agreed meaning", "LinearClassifier", {"x": x}, LABELS, 1, classlabels_ints=[4, 7], **one)


def test_linear_models_that_do_not_fit_are_refused():
    of = {"coefficients": [1.0, 2.0, 3.0], "intercepts": [0.0, 0.0], "classlabels_ints": [0, 1]}
    refused("3 coefficients for 2", "LinearClassifier", outputs=LABELS, **of)
    refused(
        "2 labels for 3",
        "LinearClassifier",
        outputs=LABELS,
        **of | {"intercepts": [0.0] * 3, "coefficients": [1.0] * 6},
    )
    refused("'post_transform' is 'SOFT'", "LinearRegressor", coefficients=[1.0, 2.0], post_transform="SOFT")


def test_gradients_of_linear_models_flow(random):
    data = serialized("LinearRegressor", {"x": floats(random, 3, 2)}, SCORE, 1, coefficients=[2.0, -3.0])
    graph = load_bytes(data).graph
    made = vjp_graph(graph, [*graph.inputs])
    feeds = {v.name: floats(random, 3, 2) if v.name == "x" else np.ones((3, 1), np.float32) for v in made.inputs}
    (dx,) = [a for a in evaluate(made, feeds).values() if a.shape == (3, 2)]
    np.testing.assert_allclose(dx, [[2.0, -3.0]] * 3)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vector_machines(kernel, random):
    x = floats(random, 9, 3) * 2 + 5
    for classes, probable in [(2, False), (4, False), *[(2, True), (3, True)] * (kernel == "RBF")]:
        count, pairs = 4 * classes, classes * (classes - 1) // 2
        of = {"support_vectors": (floats(random, count * 3) * 2 + 5).tolist(), "vectors_per_class": [4] * classes}
        of |= {"coefficients": floats(random, count * (classes - 1)).tolist(), "rho": floats(random, pairs).tolist()}
        of |= {"kernel_type": kernel, "kernel_params": [0.05, 0.5, 2.0], "classlabels_ints": [3, 1, 2, 7][:classes]}
        if probable:
            of |= {"prob_a": floats(random, pairs).tolist(), "prob_b": floats(random, pairs).tolist()}
        same("SVMClassifier", x, LABELS, 1, 2e-5, **of)
        if classes > 2:
            same("SVMClassifier", x, LABELS, 1, 2e-5, post_transform="SOFTMAX", **of)
    of = {"coefficients": floats(random, 5).tolist(), "support_vectors": floats(random, 15).tolist(), "n_supports": 5}
    of |= {"kernel_type": kernel, "kernel_params": [0.05, 0.5, 2.0], "rho": [0.3]}
    for one in (0, 1):
        same("SVMRegressor", x, SCORE, 1, 2e-5, one_class=one, **of)


@pytest.mark.parametrize("far", [np.inf, -np.inf, 1e30])
def test_vectors_infinitely_far_from_all_support_vectors_have_scores(far, random):
    x = floats(random, 5, 3)
    x[1, 0], x[2] = far, [far, 1.0, -far]
    of = {"coefficients": floats(random, 5).tolist(), "support_vectors": floats(random, 15).tolist(), "n_supports": 5}
    of |= {"kernel_type": "RBF", "kernel_params": [0.05, 0.5, 2.0], "rho": [0.3]}
    for one in (0, 1):
        same("SVMRegressor", x, SCORE, 1, 2e-5, one_class=one, **of)


def test_support_vector_machines_that_do_not_fit_are_refused():
    of = {"support_vectors": [1.0] * 4, "vectors_per_class": [1, 1], "coefficients": [1.0, 2.0], "rho": [0.0]}
    of |= {"classlabels_ints": [0, 1], "kernel_type": "LINEAR"}
    refused("expected 1 x 2", "SVMClassifier", outputs=LABELS, **of | {"coefficients": [1.0]})
    refused("2 support vectors", "SVMClassifier", outputs=LABELS, **of | {"support_vectors": [1.0] * 3})
    refused("2 numbers where 1", "SVMClassifier", outputs=LABELS, **of | {"rho": [0.0, 0.0]})
    refused("vectors of each", "SVMClassifier", outputs=LABELS, **of | {"vectors_per_class": [1, -1]})
    refused("kernel_params", "SVMClassifier", outputs=LABELS, **of | {"kernel_type": "RBF"})


# ---- trees --------------------------------------------------------------------------------------------

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def forest(random, trees, depth, features, ids, per_leaf, prefix, positive=False):
    """Attributes of random trees, with ``prefix`` of the entries of leaves."""
    rows, entries = [], []

    def grow(tree, level, counter):
        node = next(counter)
        if level == depth or (level and random.random() < 0.2):
            rows.append((tree, node, 0, "LEAF", 0.0, 0, 0, 0))
            for i in random.permutation(ids)[:per_leaf]:
                weight = random.random() if positive else random.standard_normal()
                entries.append((tree, node, int(i), float(np.float32(weight))))
            return node
        yes, no = grow(tree, level + 1, counter), grow(tree, level + 1, counter)
        threshold = float(np.float32(np.round(random.standard_normal(), 1)))
        rows.append((tree, node, int(random.integers(features)), str(random.choice(MODES)), threshold, yes, no,
                     int(random.integers(2))))  # fmt: skip
        return node

    for tree in range(trees):
        grow(tree, 0, itertools.count())
    rows.sort(key=lambda row: row[:2])
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids",
             "missing_value_tracks_true")  # fmt: skip
    found = {f"nodes_{name}": list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    columns = zip(("treeids", "nodeids", "ids", "weights"), zip(*entries, strict=True), strict=True)
    return found | {f"{prefix}_{name}": list(column) for name, column in columns}


def rows_with_gaps(random, *shape):
    x = np.round(floats(random, *shape), 1)
    x[random.random(shape) < 0.1] = np.nan
    return x


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_tree_regressors(aggregate, targets, random):
    of = forest(random, 7, 5, 4, range(targets), targets, "target")
    of |= {"n_targets": targets, "aggregate_function": aggregate}
    same("TreeEnsembleRegressor", rows_with_gaps(random, 40, 4), SCORE, **of)
    base = floats(random, targets).tolist()
    same("TreeEnsembleRegressor", rows_with_gaps(random, 40, 4).astype(np.float64), SCORE, base_values=base, **of)


def test_nodes_in_any_order_and_with_any_numbers(random):
    """They give what they do in order; and a tree of 3,000 levels, each of which ends in a leaf."""
    x, of = rows_with_gaps(random, 40, 4), forest(random, 7, 5, 4, range(3), 3, "target")
    expected = df.Session(load_bytes(serialized("TreeEnsembleRegressor", {"x": x}, SCORE, n_targets=3, **of))).run(x)
    trees = random.permutation(range(-3, 4)) * 1_000_003
    numbers = random.permutation(200) * 7_919 - 50_000
    for name, given in of.items():
        if name.endswith("treeids"):
            of[name] = trees[given].tolist()
        elif name.endswith("nodeids"):
            of[name] = numbers[given].tolist()
    for group in ("nodes_", "target_"):
        order = random.permutation(len(of[f"{group}treeids"]))
        of |= {name: [given[i] for i in order] for name, given in of.items() if name.startswith(group)}
    found = df.Session(load_bytes(serialized("TreeEnsembleRegressor", {"x": x}, SCORE, n_targets=3, **of))).run(x)
    np.testing.assert_allclose(found["z"], expected["z"], rtol=1e-6, atol=1e-6)  # summed in another order

    count = 3000
    nodes = {
        "nodes_treeids": [0] * (2 * count + 1), "nodes_nodeids": list(range(2 * count + 1)),
        "nodes_modes": ["BRANCH_LEQ", "LEAF"] * count + ["LEAF"], "nodes_featureids": [0] * (2 * count + 1),
        "nodes_values": [float(i // 2) for i in range(2 * count + 1)],
        "nodes_truenodeids": [i + 1 for i in range(2 * count)] + [0],
        "nodes_falsenodeids": [i + 2 for i in range(2 * count)] + [0],
    }  # fmt: skip
    leaves = [*range(1, 2 * count, 2), 2 * count]
    entries = {"treeids": [0] * len(leaves), "nodeids": leaves, "ids": [0] * len(leaves)}
    weights = {"target_weights": [float(i) for i in range(len(leaves))]}
    steps = np.array([[-5.0], [0.5], [1234.0], [2998.5], [1e9]], np.float32)
    given = {**nodes, **{f"target_{name}": column for name, column in entries.items()}, **weights}
    deep = load_bytes(serialized("TreeEnsembleRegressor", {"x": steps}, SCORE, n_targets=1, **given))
    assert df.Session(deep).run(steps)["z"][:, 0].tolist() == [0.0, 1.0, 1234.0, 2999.0, 3000.0]


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_tree_classifiers(transform, random):
    x = rows_with_gaps(random, 40, 4)
    of = forest(random, 6, 4, 4, range(3), 3, "class")
    base = floats(random, 3).tolist()
    for more in ({"classlabels_int64s": [4, 1, 2]}, {"classlabels_int64s": [4, 1, 2], "base_values": base}):
        same("TreeEnsembleClassifier", x, LABELS, post_transform=transform, **of, **more)
    same("TreeEnsembleClassifier", x, WORDS, post_transform=transform, classlabels_strings=["a", "c", "b"], **of)
    for positive in (False, True):
        of = forest(random, 6, 4, 4, [0], 1, "class", positive) | {"classlabels_int64s": [4, 1]}
        if transform in ("NONE", "LOGISTIC"):
            same("TreeEnsembleClassifier", x, LABELS, post_transform=transform, **of)
            same("TreeEnsembleClassifier", x, LABELS, post_transform=transform, base_values=[0.2], **of)
        else:
            refused("no agreed meaning", "TreeEnsembleClassifier", {"x": x}, LABELS, post_transform=transform, **of)


def test_of_several_weights_for_the_only_target_the_first_counts():
    """As skl2onnx writes ``decision_leaf`` and ``decision_path``: the leaf's number, once for each class."""
    of = {
        "nodes_treeids": [0] * 3,
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0] * 3,
        "nodes_values": [0.5, 0, 0],
    }
    of |= {"nodes_modes": ["BRANCH_LT", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0]}
    of |= {"nodes_falsenodeids": [2, 0, 0], "target_treeids": [0] * 5, "target_nodeids": [2, 1, 2, 1, 2]}
    x = np.array([[0.0], [1.0]], np.float32)
    weights = [5.0, 7.0, 6.0, 7.0, -9.0]
    for how in ("SUM", "AVERAGE", "MIN", "MAX"):
        given = {"target_weights": weights, "aggregate_function": how, "target_ids": [0] * 5}
        assert same("TreeEnsembleRegressor", x, SCORE, n_targets=1, **of, **given)["z"].tolist() == [[7.0], [5.0]]
    given = {"target_weights": weights, "target_ids": [1, 0, 1, 1, 0]}
    assert same("TreeEnsembleRegressor", x, SCORE, n_targets=2, **of, **given)["z"].tolist() == [[7, 7], [-9, 11]]


def test_doubles_of_trees_stay_doubles():
    values = numpy_helper.from_array(np.array([1 + 1e-12, 0.0, 0.0]), "values")
    weights = numpy_helper.from_array(np.array([1.0, 2.0]), "weights")
    of = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3, "n_targets": 1}
    of |= {
        "nodes_modes": ["BRANCH_LT", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
    }
    of |= {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0]}
    x = np.array([[1.0], [1 + 2e-12]])
    found = same(
        "TreeEnsembleRegressor", x, SCORE, nodes_values_as_tensor=values, target_weights_as_tensor=weights, **of
    )
    assert found["z"].tolist() == [[1.0], [2.0]]


def shared(yes, no):
    """Two categories that lead to one node, as converters of LightGBM and XGBoost write a set of them."""
    modes = ["BRANCH_EQ", "BRANCH_EQ", "BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "LEAF"]
    of = {"nodes_treeids": [0] * 8, "nodes_nodeids": list(range(8)), "nodes_featureids": [0, 0, 1, 1, 0, 0, 0, 0]}
    of |= {"nodes_modes": modes, "nodes_values": [2.0, 5.0, 0.3, -0.3, 0.0, 0.0, 0.0, 0.0], "n_targets": 1}
    of |= {"nodes_truenodeids": [*yes, 0, 0, 0, 0], "nodes_falsenodeids": [*no, 0, 0, 0, 0], "target_ids": [0] * 4}
    of |= {"target_treeids": [0] * 4, "target_nodeids": [4, 5, 6, 7], "target_weights": [1.0, 2.0, 4.0, 8.0]}
    return of


def test_nodes_that_follow_several(random):
    x = np.stack([np.tile([2, 5, 7], 6), floats(random, 18)], 1).astype(np.float32)
    found = same("TreeEnsembleRegressor", x, SCORE, **shared([3, 3, 4, 6], [1, 2, 5, 7]))
    assert {*found["z"].ravel()} == {1.0, 2.0, 4.0, 8.0}
    refused("node 3 leads to one that it follows", "TreeEnsembleRegressor", **shared([6, 7, 4, 5], [1, 2, 3, 2]))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"nodes_truenodeids": [0, 0, 0]}, "in a circle"), ({"nodes_truenodeids": [7, 0, 0]}, "leads to node 7"),
        ({"nodes_truenodeids": [2, 0, 0]}, "first node"), ({"nodes_nodeids": [0, 1, 1]}, "one number"),
        ({"nodes_featureids": [-1, 0, 0]}, "negative feature"), ({"target_ids": [0, 3]}, "target 3"),
        ({"target_nodeids": [0, 2]}, "no leaf"), ({"nodes_modes": ["BRANCH_X", "LEAF", "LEAF"]}, "not known: BRANCH_X"),
        ({"nodes_values": [0.0]}, "different lengths"), ({"target_weights": [1.0]}, "different lengths"),
        ({"nodes_featureids": [1 << 40, 0, 0]}, "too large"),
        ({"nodes_modes": ["BRANCH_LT"] * 2 + ["LEAF"], "nodes_truenodeids": [1, 0, 0],
          "nodes_falsenodeids": [2, 2, 0]}, "first node"),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_refused(change, match):
    of = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3, "nodes_values": [0.0] * 3}
    of |= {
        "nodes_modes": ["BRANCH_LT", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
    }
    of |= {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0]}
    refused(match, "TreeEnsembleRegressor", n_targets=1, **of | change)


def test_a_feature_that_rows_do_not_have_is_refused_at_run_time():
    of = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [9] * 3, "nodes_values": [0.0] * 3}
    of |= {
        "nodes_modes": ["BRANCH_LT", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
    }
    of |= {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0]}
    data = serialized("TreeEnsembleRegressor", {"x": np.zeros((1, 2), np.float32)}, SCORE, n_targets=1, **of)
    for device in ("cpu", "numpy"):
        with pytest.raises(df.InputError, match=r"node that is no node|feature lies outside"):
            df.Session(load_bytes(data), devices=[device]).run({"x": np.zeros((1, 2), np.float32)})


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_linear_models_train_and_are_saved_in_their_attributes(kind, tmp_path):
    rng = np.random.default_rng(3)
    x, weight, bias = rng.normal(size=(12, 4)).astype("f4"), rng.normal(size=(3, 4)), rng.normal(size=3)
    given = {"coefficients": weight.ravel().tolist(), "intercepts": bias.tolist()}
    if kind == "classifier":
        more = {"classlabels_ints": [0, 1, 2], "post_transform": "SOFTMAX", "multi_class": 1}
        data, loss = serialized("LinearClassifier", {"x": x}, LABELS, **given, **more), "cross_entropy"
        labels = rng.integers(0, 3, 12)
    else:
        data, loss = serialized("LinearRegressor", {"x": x}, SCORE, targets=3, **given), "mse"
        labels = rng.normal(size=(12, 3))
    model = load_bytes(data)
    named = next(iter(model.outputs))  # of the node's outputs the first
    with df.Trainer(
        model, loss, df.optim.SGD(lr=0.5), output="z", metrics=[],
        trainable=[f"{named}.coefficients", f"{named}.intercepts"], devices=["cpu"],
    ) as trainer:  # fmt: skip
        losses = [trainer.step({"x": x, "labels": labels}) for _ in range(4)]
    for found in losses:
        z = x.astype("f8") @ weight.T + bias
        if kind == "classifier":
            chances = np.exp(z) / np.exp(z).sum(1, keepdims=True)
            assert found == pytest.approx(-np.log(chances[np.arange(12), labels]).mean(), rel=1e-5)
            slope = (chances - np.eye(3)[labels]) / 12
        else:
            assert found == pytest.approx(np.square(z - labels).mean(), rel=1e-5)
            slope = 2 * (z - labels) / 36
        weight, bias = weight - 0.5 * slope.T @ x, bias - 0.5 * slope.sum(0)
    df.save(model, tmp_path / "tuned.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "tuned.onnx"), providers=["CPUExecutionProvider"])
    (z,) = session.run(["z"], {"x": x})
    wanted = x @ weight.T + bias
    if kind == "classifier":
        wanted = np.exp(wanted) / np.exp(wanted).sum(1, keepdims=True)
    np.testing.assert_allclose(z, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(df.load(str(tmp_path / "tuned.onnx"))({"x": x})["z"], z, rtol=1e-5, atol=1e-6)


def test_numbers_that_a_converter_stores_are_no_parameters() -> None:
    """A scaler's: the file has them as attributes, so that what was trained couldn't be written."""
    scaled = helper.make_node("Scaler", ["x"], ["h"], domain="ai.onnx.ml", offset=[1.0, 2.0], scale=[0.5, 3.0])
    linear = helper.make_node(
        "LinearRegressor", ["h"], ["y"], domain="ai.onnx.ml", coefficients=[1.0, -2.0], intercepts=[0.5]
    )
    proto = onnx_model([scaled, linear], [("x", TensorProto.FLOAT, ["N", 2])], domains=["ai.onnx.ml"])
    model = load_bytes(proto.SerializeToString())
    assert list(model.parameters) == ["y.coefficients"]  # the intercept is one number
    with pytest.raises(df.InputError, match=r"'constant' matches no parameter; nearest names: 'y.coefficients'"):
        df.Trainer(model, "mse", trainable=["constant"], devices=["cpu"])

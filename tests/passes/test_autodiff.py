"""The walker and the rules of the basic ops: what gets a cotangent, sums, edges, and gradients of gradients."""

import dataclasses

import numpy as np
import pytest

import dataflow as df
from dataflow.ops import activation, arithmetic, linalg, reduce
from dataflow.ops.gather import OPS as GATHER
from dataflow.ops.shape import OPS as SHAPE
from dataflow.passes.autodiff import add_gradients, decompose_for_gradient, vjp_graph
from dataflow.passes.dead_code import eliminate_dead_code
from dataflow.testing import SAMPLES
from dataflow_numpy.evaluate import evaluate

ops = df.ops
BASIC = {op.name for ops_ in (*(f.OPS for f in (activation, arithmetic, linalg, reduce)), GATHER, SHAPE) for op in ops_}
RANDOM = np.random.default_rng(3)


def gradients(function, *arrays, cotangent=None):
    """The gradient of ``sum(cotangent * function(...))`` by each float array, in double precision."""
    g = df.GraphBuilder()
    dtypes = [df.float32 if a.dtype.kind == "f" else a.dtype for a in arrays]
    values = [g.input(f"x{i}", d, a.shape) for i, (d, a) in enumerate(zip(dtypes, arrays, strict=True))]
    y = function(*values)
    g.output("y", y)
    graph = g.build()
    joint = vjp_graph(graph, [v for v in graph.inputs if v.type.dtype.is_float])
    seed = np.ones(y.type.sizes) if cotangent is None else cotangent
    found = evaluate(joint, {**{f"x{i}": a for i, a in enumerate(arrays)}, "grad.y": seed}, dtype=np.float64)
    return [found[f"grad.x{i}"] for i, a in enumerate(arrays) if a.dtype.kind == "f"]


def joint_of(function, *shapes, wrt=None):
    """The builder, its inputs and the cotangents by ``wrt`` of what ``function`` gives, with a seed of ones."""
    g = df.GraphBuilder()
    inputs = [g.input(f"x{i}", df.float32, s) for i, s in enumerate(shapes)]
    y = function(*inputs)
    seed = g.constant(np.ones(y.type.sizes, np.float32))
    return g, inputs, add_gradients(g, {y: seed}, inputs if wrt is None else [inputs[i] for i in wrt])


# ---- the walker ---------------------------------------------------------------------------------------


def test_a_value_that_no_seed_depends_on_gets_none():
    _, (x, z), found = joint_of(lambda x, z: ops.sin(x), (3,), (3,))
    assert list(found) == [x, z] and found[z] is None and found[x].type == x.type


def test_the_seed_is_the_gradient_by_the_value_itself():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3,))
    seed = g.input("seed", df.float32, (3,))
    assert add_gradients(g, {x: seed}, [x]) == {x: seed}
    assert not g.nodes()


def test_cotangents_of_inner_values_and_of_several_seeds_add_up():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3,))
    h = ops.mul(x, x)
    y, z = ops.sin(h), ops.mul(h, 3.0)
    seeds = {v: g.input(n, df.float32, (3,)) for v, n in ((y, "dy"), (z, "dz"), (h, "dh"))}
    found = add_gradients(g, seeds, [h, x])
    g.output("h", found[h])
    g.output("x", found[x])
    feeds = {n: RANDOM.standard_normal(3) for n in ("x", "dy", "dz", "dh")}
    result = evaluate(g.build(), feeds, dtype=np.float64)
    at = feeds["x"] ** 2
    inner = feeds["dy"] * np.cos(at) + 3 * feeds["dz"] + feeds["dh"]
    np.testing.assert_allclose(result["h"], inner, rtol=1e-12)
    np.testing.assert_allclose(result["x"], inner * 2 * feeds["x"], rtol=1e-12)


@pytest.mark.parametrize("uses", [1, 2, 5])
def test_a_value_read_many_times_sums_its_cotangents_once(uses):
    g, (x,), found = joint_of(lambda x: sum((ops.sin(x) for _ in range(uses - 1)), ops.sin(x)), (4,))
    g.output("dx", found[x])
    data = RANDOM.standard_normal(4)
    np.testing.assert_allclose(evaluate(g.build(), {"x0": data}, dtype=np.float64)["dx"], uses * np.cos(data))


def test_one_node_that_reads_a_value_twice():
    (found,) = gradients(lambda x: ops.matmul(x, x), np.eye(3) * 2.0)
    np.testing.assert_allclose(found, np.full((3, 3), 4.0))
    (found,) = gradients(
        lambda x: ops.concat(x, x, x, axis=0), np.ones((2, 2)), cotangent=np.arange(12.0).reshape(6, 2)
    )
    np.testing.assert_allclose(found, [[12.0, 15.0], [18.0, 21.0]])


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4,)), ((3, 4), ()), ((3, 1), (1, 4)), ((2, 1, 4), (3, 1)), ((1,), (5,)), ((0, 4), (4,)), ((1, 1), (1,))],
)
def test_broadcasting_is_undone(a, b):
    x, y = RANDOM.standard_normal(a), RANDOM.standard_normal(b)
    u = RANDOM.standard_normal(np.broadcast_shapes(a, b))

    def down(array, shape):
        lead = array.ndim - len(shape)
        axes = (*range(lead), *(i + lead for i, d in enumerate(shape) if d == 1))
        return array.sum(axis=axes, keepdims=True).reshape(shape)

    dx, dy = gradients(ops.mul, x, y, cotangent=u)
    np.testing.assert_allclose(dx, down(u * y, a), rtol=1e-12)
    np.testing.assert_allclose(dy, down(u * x, b), rtol=1e-12)


def test_batches_of_products_are_summed():
    a, b = RANDOM.standard_normal((2, 1, 3, 4)), RANDOM.standard_normal((5, 4, 2))
    u = RANDOM.standard_normal((2, 5, 3, 2))
    da, db = gradients(ops.matmul, a, b, cotangent=u)
    np.testing.assert_allclose(da, np.einsum("abij,bkj->aik", u, b)[:, None], rtol=1e-12)
    np.testing.assert_allclose(db, np.einsum("aik,abij->bkj", a[:, 0], u), rtol=1e-12)
    flat = RANDOM.standard_normal((4, 2))  # its rule makes one product of the whole batch
    u = RANDOM.standard_normal((2, 1, 3, 2))
    _, found = gradients(ops.matmul, a, flat, cotangent=u)
    np.testing.assert_allclose(found, np.einsum("abik,abij->kj", a, u), rtol=1e-12)


def test_only_what_leads_from_wrt_to_a_seed_gets_nodes():
    g, (x, _), found = joint_of(lambda x, z: ops.add(ops.sin(x), ops.exp(ops.cos(z))), (3,), (3,), wrt=[0])
    added = [n for n in g.nodes() if n.name.startswith("grad/")]
    assert [n.op.name for n in g.nodes()[:4]] == ["sin", "cos", "exp", "add"]
    g.output("dx", found[x])
    assert [n.op.name for n in eliminate_dead_code(g.build()).nodes] == ["cos", "mul"]
    assert not [n for n in added if "exp" in n.name]


def test_a_broadcast_is_not_undone_for_a_value_off_the_path():
    g, _, found = joint_of(lambda x, z: ops.add(ops.sin(x), z), (3,), (1,), wrt=[0])
    assert len(found) == 1 and "reduce_sum" not in [n.op.name for n in g.nodes()]
    g, _, _ = joint_of(lambda x, z: ops.add(ops.sin(x), z), (3,), (1,))
    assert [n.op.name for n in g.nodes()].count("reduce_sum") == 1


def test_integers_and_bools_between_get_no_gradient_and_stop_nothing():
    x, i = RANDOM.standard_normal((4, 3)), np.array([1, 1, -1])
    (dx,) = gradients(ops.gather, x, i)
    np.testing.assert_array_equal(dx, [[0] * 3, [2] * 3, [0] * 3, [1] * 3])
    (dx,) = gradients(lambda x: ops.where(ops.less(x, 0.0), ops.mul(x, 2.0), x), x)
    np.testing.assert_array_equal(dx, np.where(x < 0, 2.0, 1.0))
    (dx,) = gradients(lambda x: ops.mul(x, ops.cast(ops.argmax(x, axis=0), to=df.float32)), x)
    np.testing.assert_array_equal(dx, np.broadcast_to(x.argmax(0), (4, 3)))
    (dx,) = gradients(lambda x: ops.cast(ops.cast(x, to=df.int64), to=df.float32), x)
    np.testing.assert_array_equal(dx, np.zeros((4, 3)))


def test_an_op_without_gradient_off_the_path_is_no_error():
    rough = df.Op("rough", ("x",), lambda x: x)

    def function(x, z):
        return ops.add(ops.sin(x), rough(z))

    _, (x, _), found = joint_of(function, (3,), (3,), wrt=[0])
    assert found[x] is not None
    with pytest.raises(df.GradientError, match=r"rough 'rough' \(test_autodiff.py:\d+\).*'x1'"):
        joint_of(function, (3,), (3,))


def test_a_rule_that_gives_another_dtype_is_refused():
    wrong = df.Op("wrong", ("x",), lambda x: x, gradient=lambda n, dy: ops.cast(dy, to=df.float64))
    with pytest.raises(
        df.GradientError, match=r"wrong 'wrong'.*its rule gave float64\[3\] for 'x0', which is float32\[3\]"
    ):
        joint_of(wrong, (3,))


@pytest.mark.parametrize("perm", [(1, 0), None])
def test_a_rule_that_gives_another_shape_is_refused(perm):
    """Of as many elements too: it isn't what broadcasting the operand gives."""

    def rule(node, dy):
        return ops.transpose(dy, perm=perm) if perm else ops.reduce_sum(dy, axes=(1,), keepdims=True)

    wrong = df.Op("wrong", ("x",), lambda x: x, gradient=rule)
    given = r"\[3, 2\]" if perm else r"\[2, 1\]"
    with pytest.raises(df.GradientError, match=rf"its rule gave float32{given} for 'x0', which is float32\[2, 3\]"):
        joint_of(wrong, (2, 3))


def test_a_rule_may_give_none():
    tail = df.Op("tail", ("x", "z"), lambda x, z: x, gradient=lambda n, dy: (dy, None))
    _, (x, z), found = joint_of(tail, (3,), (3,))
    assert found[x] is not None and found[z] is None
    nothing = df.Op("nothing", ("x",), lambda x: x, gradient=lambda n, dy: None)
    _, (x,), found = joint_of(nothing, (3,))
    assert found[x] is None


def test_a_rule_reads_saved_extras_and_every_cotangent():
    seen = {}

    def rule(node, dy, dz, dstats):
        seen.update(outputs=node.outputs, given=(dy, dz, dstats))
        return ops.mul(dy, node.outputs[2])

    op = df.MultiOp("saves", ("x",), lambda x: (x, x, x), outputs=("y", "z", "+stats"), gradient=rule)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3,))
    y, z = op(x)
    seed = g.input("dy", df.float32, (3,))
    found = add_gradients(g, {y: seed}, [x])
    assert seen["outputs"][:2] == (y, z) and seen["outputs"][2] is not None
    assert seen["given"] == (seed, None, None)
    assert g.nodes()[-1].inputs == (seed, seen["outputs"][2]) and found[x] is g.nodes()[-1].outputs[0]


def test_nodes_of_the_gradient_say_where_they_come_from():
    g, _, _ = joint_of(lambda x: ops.sin(x, name="mine"), (3,))
    added = [n for n in g.nodes() if n.op.name in ("cos", "mul")]
    assert [n.name for n in added] == ["grad/mine/cos", "grad/mine/mul"]
    assert all(n.origin.startswith("gradient of mine, test_autodiff.py:") for n in added)
    assert g.origin == ""


def test_depth_does_not_matter():
    def chain(x):
        for _ in range(5000):
            x = ops.mul(x, 1.0)
        return x

    (found,) = gradients(chain, np.ones(2))
    np.testing.assert_array_equal(found, np.ones(2))


# ---- decompositions -----------------------------------------------------------------------------------


def test_only_what_depends_on_wrt_is_decomposed():
    g = df.GraphBuilder()
    x, z = g.input("x", df.float32, (3,)), g.input("z", df.float32, (3,))
    g.output("y", ops.add(ops.mish(x), ops.gelu(z)))
    graph = g.build()
    found = decompose_for_gradient(graph, graph.inputs[:1])
    names = [n.op.name for n in found.nodes]
    assert "gelu" in names and "mish" not in names and list(found.outputs) == ["y"]
    assert [v.name for v in found.inputs] == ["x", "z"]
    feeds = {"x": RANDOM.standard_normal(3), "z": RANDOM.standard_normal(3)}
    expected = evaluate(graph, feeds, dtype=np.float64)["y"]
    np.testing.assert_allclose(evaluate(found, feeds, dtype=np.float64)["y"], expected, rtol=1e-7)
    graph.check()
    found.check()


def test_a_decomposition_into_composites_is_decomposed_to_the_end():
    g = df.GraphBuilder()
    g.output("y", ops.hard_swish(g.input("x", df.float32, (3,))))
    graph = g.build()
    names = {n.op.name for n in decompose_for_gradient(graph, graph.inputs).nodes}
    assert not names & {"hard_swish", "hard_sigmoid"}


def test_a_graph_with_gradients_of_its_own_is_left_alone():
    g = df.GraphBuilder()
    g.output("y", ops.sin(g.input("x", df.float32, (3,))))
    graph = g.build()
    assert decompose_for_gradient(graph, graph.inputs) is graph


# ---- vjp_graph ----------------------------------------------------------------------------------------


def test_inputs_and_outputs_of_a_vjp():
    g = df.GraphBuilder("net")
    x, i = g.input("x", df.float32, ("n", 3)), g.input("i", df.int64, (2,))
    w = g.parameter("w", np.ones((3, 2), np.float32))
    unused = g.parameter("unused", np.ones((5,), np.float32))
    g.output("y", ops.matmul(x, w))
    g.output("picked", ops.gather(x, i))
    g.output("best", ops.argmax(x, axis=1))
    graph = g.build()
    joint = vjp_graph(graph, [*graph.inputs[:1], w, unused])
    joint.check()
    assert [v.name for v in joint.inputs] == ["x", "i", "grad.y", "grad.picked"]
    assert list(joint.outputs) == ["y", "picked", "best", "grad.x", "grad.w", "grad.unused"]
    assert [joint.outputs[f"grad.{n}"].type for n in ("x", "w", "unused")] == [x.type, w.type, unused.type]
    feeds = {"x": np.ones((4, 3)), "i": np.array([0, 0]), "grad.y": np.ones((4, 2)), "grad.picked": np.ones((2, 3))}
    found = df.Session(joint, devices=["numpy"]).run(
        {k: a.astype(np.float32) if k != "i" else a for k, a in feeds.items()}
    )
    np.testing.assert_array_equal(found["grad.x"], [[4.0] * 3] + [[2.0] * 3] * 3)
    np.testing.assert_array_equal(found["grad.unused"], np.zeros(5))
    assert {v.name: d.role for v, d in joint.initializers.items() if v.name in ("w", "unused")} == {
        "w": "parameter",
        "unused": "parameter",
    }


def test_one_value_under_two_names_gets_both_cotangents():
    g = df.GraphBuilder()
    y = ops.mul(g.input("x", df.float32, (2,)), 3.0)
    g.output("one", y)
    g.output("two", y)
    graph = g.build()
    feeds = {"x": np.ones(2), "grad.one": np.array([1.0, 2.0]), "grad.two": np.array([10.0, 20.0])}
    found = evaluate(vjp_graph(graph, graph.inputs), feeds, dtype=np.float64)
    np.testing.assert_allclose(found["grad.x"], [33.0, 66.0])


def test_a_vjp_by_a_computed_value_is_refused():
    g = df.GraphBuilder()
    h = ops.sin(g.input("x", df.float32, (2,)))
    g.output("y", ops.cos(h))
    with pytest.raises(df.GradientError, match="vjp by 'sin': expected inputs or initializers of the graph"):
        vjp_graph(g.build(), [h])


@pytest.mark.parametrize("axes", [(0,), (0, 1), (1,), (-2,)])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_mean_over_a_named_size_has_a_gradient(axes, keepdims):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 3))
    g.output("y", ops.reduce_mean(ops.mul(x, x), axes=axes, keepdims=keepdims))
    graph = g.build()
    joint = vjp_graph(graph, graph.inputs)
    data = RANDOM.standard_normal((4, 3)).astype(np.float32)
    reduced = (data * data).mean(tuple(a % 2 for a in axes), keepdims=bool(keepdims))
    count = np.prod([data.shape[a] for a in axes])
    for device in ("numpy", "cpu"):
        found = df.Session(joint, devices=[device]).run({"x": data, "grad.y": np.ones_like(reduced)})
        np.testing.assert_allclose(found["grad.x"], 2 * data / count, rtol=1e-6)


# ---- rules at their edges -----------------------------------------------------------------------------


def test_powers_at_zero():
    a, b = np.array([0.0, 0.0, 0.0, 2.0, -3.0]), np.array([0.0, 1.0, 2.0, 0.0, 2.0])
    da, db = gradients(ops.pow, a, b)
    np.testing.assert_allclose(da, [0, 1, 0, 0, -6], atol=1e-12)
    np.testing.assert_allclose(db, [0, 0, 0, np.log(2.0), 0], atol=1e-12)
    (da,) = gradients(lambda x: ops.pow(x, 0.0), a)
    np.testing.assert_array_equal(da, np.zeros(5))


@pytest.mark.parametrize("row", [[2.0, 3.0, 4.0], [0.0, 3.0, 4.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_products_with_zeros(row, keepdims):
    x = np.array([row, [1.0, 5.0, -2.0]])
    (found,) = gradients(lambda x: ops.reduce_prod(x, axes=(1,), keepdims=keepdims), x)
    others = [[np.prod(np.delete(r, i)) for i in range(3)] for r in x]
    np.testing.assert_allclose(found, others, rtol=1e-12, atol=1e-12)


def test_equal_values_share_the_gradient():
    a, b = np.array([1.0, 2.0, 3.0]), np.array([1.0, 5.0, 0.0])
    np.testing.assert_array_equal(gradients(ops.maximum, a, b), [[0.5, 0, 1], [0.5, 1, 0]])
    np.testing.assert_array_equal(gradients(ops.minimum, a, b), [[0.5, 1, 0], [0.5, 0, 1]])
    x = np.array([[3.0, 1.0, 3.0], [2.0, 5.0, 2.0]])
    (found,) = gradients(lambda x: ops.reduce_max(x, axes=(1,)), x)
    np.testing.assert_array_equal(found, [[0.5, 0, 0.5], [0, 1, 0]])
    (found,) = gradients(lambda x: ops.reduce_min(x, axes=(0, 1), keepdims=0), x)
    np.testing.assert_array_equal(found, [[0, 1, 0], [0, 0, 0]])


@pytest.mark.parametrize("name", ["elu", "selu", "celu", "softplus", "mish", "gelu", "sigmoid", "tanh", "leaky_relu"])
def test_gradients_of_activations_stay_finite_far_out(name):
    (found,) = gradients(getattr(ops, name), np.array([-1e4, -50.0, 0.0, 50.0, 1e4]))
    assert np.isfinite(found).all()
    assert found[-1] == pytest.approx({"selu": 1.05070102214813232421875, "sigmoid": 0.0, "tanh": 0.0}.get(name, 1.0))


def test_relu_and_abs_are_flat_at_zero():
    np.testing.assert_array_equal(gradients(ops.relu, np.array([-1.0, 0.0, 2.0])), [[0, 0, 1]])
    np.testing.assert_array_equal(gradients(ops.abs, np.array([-1.0, 0.0, 2.0])), [[-1, 0, 1]])


def test_clipping_passes_the_bounds_themselves():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (5,))
    g.output("y", ops.clip(x, -1.0, 1.0))
    graph = g.build()
    feeds = {"x": np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), "grad.y": np.ones(5)}
    found = evaluate(vjp_graph(graph, graph.inputs), feeds, dtype=np.float64)["grad.x"]
    np.testing.assert_array_equal(found, [0, 1, 1, 1, 0])


def test_gradients_of_nothing_are_empty():
    for function in (
        ops.exp,
        lambda x: ops.reduce_mean(x, axes=(1,)),
        lambda x: ops.reduce_sum(x, axes=(0, 1)),
        ops.gelu,
    ):
        (found,) = gradients(function, np.zeros((0, 3)))
        assert found.shape == (0, 3)


# ---- gradients of gradients ---------------------------------------------------------------------------


def smallest():
    """One gradient-checked sample per basic op: the one with the fewest elements, above one."""
    chosen = {}
    for sample in SAMPLES:
        if sample.gradient and sample.op.name in (*BASIC, "lrn"):
            size = sum(int(np.prod(o.shape)) for o in sample.inputs if o is not None)
            if size > 1 and (sample.op.name not in chosen or size < chosen[sample.op.name][0]):
                chosen[sample.op.name] = (size, sample)
    return [sample for _, sample in chosen.values()]


def recurrent():
    """Every form of a small recurrent layer: states given or not, lengths, in reverse."""
    layers = ("lstm", "gru", "rnn")
    return [s for s in SAMPLES if s.op.name in layers and s.gradient]


@pytest.mark.parametrize("sample", [*smallest(), *recurrent()], ids=lambda s: s.name)
def test_gradient_of_the_gradient(sample):
    """d/dx <v, grad_x <u, f(x)>> along w, by the walker and by differences of the first gradient."""
    graph = sample.build()
    first = vjp_graph(graph, [v for v in graph.inputs if int(v.name[1:]) in sample.gradient])
    wrt = [v for v in first.inputs if v.name[1:] in map(str, sample.gradient)]
    first = decompose_for_gradient(first, wrt)
    builder = df.GraphBuilder()
    new = builder.adopt(first)
    wrt = [new[v] for v in first.inputs if v.name[1:] in map(str, sample.gradient)]
    seeds = {}
    for value in wrt:
        inner = new[first.outputs[f"grad.{value.name}"]]
        seed = builder.input(f"v.{value.name}", value.type.dtype, value.type.shape)
        seeds[inner] = ops.add(seeds[inner], seed) if inner in seeds else seed
    found = add_gradients(builder, seeds, wrt)
    for value in wrt:
        if found[value] is not None:
            builder.output(f"second.{value.name}", found[value])
    random = np.random.default_rng(11)
    feeds = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in sample.feeds().items()}
    feeds |= {
        f"grad.{n}": random.standard_normal(v.type.sizes) for n, v in graph.outputs.items() if v.type.dtype.is_float
    }
    v = {x.name: random.standard_normal(x.type.sizes) for x in wrt}
    w = {x.name: random.standard_normal(x.type.sizes) for x in wrt}
    along = 0.0
    if builder.outputs():
        second = evaluate(builder.build(), feeds | {f"v.{n}": a for n, a in v.items()}, dtype=np.float64)
        along = sum(float((w[n.removeprefix("second.")] * a).sum()) for n, a in second.items())

    def moved(sign, step=1e-6):
        at = {n: a + sign * step * w[n] if n in w else a for n, a in feeds.items()}
        result = evaluate(first, at, dtype=np.float64)
        return sum(float((v[n] * result[f"grad.{n}"]).sum()) for n in v)

    difference = (moved(1) - moved(-1)) / 2e-6
    assert abs(along - difference) <= 1e-5 * max(abs(along), abs(difference), 1.0), (along, difference)


def test_cross_entropy_is_differentiated_thrice():
    """Of two classes it is softplus(-z), z the difference of the logits, with derivatives in closed form."""
    g = df.GraphBuilder()
    x, labels = g.input("x", df.float32, (1, 2)), g.input("labels", df.int64, (1,))
    g.output("d0", ops.softmax_cross_entropy(x, labels)[0])
    graph, feeds = g.build(), {"x": np.array([[0.7, -0.2]]), "labels": np.array([0]), "grad.d0": np.ones(1)}
    p = 1 / (1 + np.exp(-0.9))
    for order, expected in enumerate((p - 1, p * (1 - p), p * (1 - p) * (1 - 2 * p)), 1):
        graph = vjp_graph(graph, [v for v in graph.inputs if v.name == "x"])
        graph = dataclasses.replace(graph, outputs={f"d{order}": graph.outputs["grad.x"]})
        found = evaluate(graph, feeds, dtype=np.float64)[f"d{order}"]
        np.testing.assert_allclose(found, [[expected, -expected]], rtol=1e-12)
        feeds[f"grad.d{order}"] = np.array([[1.0, 0.0]])

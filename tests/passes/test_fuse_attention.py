"""Attention in the forms in which exporters write it: found as one op that equals its decomposition, gradients too."""

import numpy as np
import pytest

import dataflow as df
from tests.support import ops_of

ops = df.ops
LOWEST = float(np.finfo(np.float32).min)
HEADS, SIZE = 4, 6


def halves(k):
    return ops.transpose(k, perm=(0, 1, 3, 2))


def heads_last(y):
    n, heads, rows, size = y.shape
    return ops.reshape(ops.transpose(y, perm=(0, 2, 1, 3)), shape=(n, rows, heads * size))


def attended(scores, v):
    return heads_last(ops.matmul(ops.softmax(scores, axis=-1), v))


def padding(o):
    return ops.where(o.open, np.float32(0), np.float32(LOWEST))


def merged(x):
    """The heads in the batch."""
    return ops.reshape(x, shape=(x.shape[0] * x.shape[1], *x.shape[2:]))


def masked_before_scaling(o):
    return attended(ops.div(ops.add(ops.matmul(o.q, halves(o.k)), padding(o)), 4.0), o.v)


def selected(o):
    """A causal selection, then a mask."""
    scores = ops.where(o.causal, ops.matmul(o.q, halves(o.k)), LOWEST)
    return attended(ops.add(scores, padding(o)), o.v)


def selected_elsewhere(o):
    scores = ops.add(ops.matmul(ops.div(o.q, 2.0), halves(o.k)), ops.transpose(o.bias, perm=(0, 1, 3, 2)))
    return attended(ops.where(ops.logical_not(o.open), LOWEST, scores), o.v)


def capped(o):
    scores = ops.mul(ops.tanh(ops.div(ops.mul(ops.matmul(o.q, halves(o.k)), 0.7), 5.0)), 5.0)
    return attended(ops.add(scores, padding(o)), o.v)


def biased(o):
    """A bias that is broadcast first, and a mask."""
    scores = ops.div(ops.matmul(o.q, halves(o.k)), 4.0)
    bias = ops.broadcast_to(ops.transpose(o.bias, perm=(0, 1, 3, 2)), shape=scores.shape)
    return attended(ops.add(ops.add(scores, bias), padding(o)), o.v)


def scaled_per_head(o):
    """And a mask for windows of the batch, that are split off it and put back."""
    scores = ops.mul(ops.matmul(o.q, halves(o.k)), ops.exp(o.rates))
    n, heads, rows, keys = scores.shape
    windows = ops.add(
        ops.reshape(scores, shape=(1, n, heads, rows, keys)), ops.reshape(padding(o), shape=(1, n, 1, 1, keys))
    )
    return attended(ops.reshape(windows, shape=scores.shape), o.v)


def heads_in_the_batch(o):
    """The scores have three axes, but where the mask is added."""
    n, heads, rows, _ = o.q.shape
    q, kt, v = merged(o.q), ops.transpose(merged(o.k), perm=(0, 2, 1)), merged(o.v)
    slopes = ops.reshape(
        ops.broadcast_to(o.rates, shape=(n, heads, 1, o.k.shape[2])), shape=(n * heads, 1, o.k.shape[2])
    )
    scores = ops.add(ops.mul(ops.matmul(q, kt), 0.5), slopes)
    scores = ops.add(ops.reshape(scores, shape=(n, heads, rows, o.k.shape[2])), padding(o))
    weights = ops.reshape(ops.softmax(scores, axis=-1), shape=(n * heads, rows, o.k.shape[2]))
    return heads_last(ops.reshape(ops.matmul(weights, v), shape=(n, heads, rows, SIZE)))


def bounded(o):
    """A sum of masks may be less than any number; then it is the least."""
    n, heads, rows, _ = o.q.shape
    q, kt, v = merged(o.q), ops.transpose(merged(o.k), perm=(0, 2, 1)), merged(o.v)
    scores = ops.reshape(ops.matmul(q, kt), shape=(n, heads, rows, o.k.shape[2]))
    scores = ops.maximum(ops.add(ops.add(scores, padding(o)), padding(o)), LOWEST)
    weights = ops.softmax(ops.reshape(scores, shape=(n * heads, rows, o.k.shape[2])), axis=-1)
    return heads_last(ops.reshape(ops.matmul(weights, v), shape=(n, heads, rows, SIZE)))


def transposed_weights(o):
    """The result has a column per query."""
    n, heads, rows, _ = o.q.shape
    weights = ops.softmax(ops.add(ops.div(ops.matmul(o.q, halves(o.k)), 2.0), padding(o)), axis=-1)
    y = ops.matmul(halves(o.v), halves(weights))
    return ops.reshape(y, shape=(n, heads * SIZE, rows))


def grouped(o):
    """Two heads of keys and values for four of queries, repeated."""

    def repeated(x):
        n, _, rows, size = x.shape
        some = ops.reshape(
            ops.slice(x, starts=(0, 1, 0, 0), stops=(n, 3, rows, size), steps=(1, 1, 1, 1)), shape=(n, 2, 1, rows, size)
        )
        return ops.reshape(ops.broadcast_to(some, shape=(n, 2, 2, rows, size)), shape=(n, 4, rows, size))

    scores = ops.matmul(ops.mul(o.q, 0.5), ops.mul(halves(repeated(o.k)), 0.5))
    weights = ops.softmax(ops.add(scores, ops.where(o.open, np.float32(0), np.float32(-np.inf))), axis=-1)
    return heads_last(ops.matmul(ops.where(ops.is_nan(weights), 0.0, weights), repeated(o.v)))


def first(x, axis):
    """The first along an axis, everywhere."""
    stops = tuple(1 if other == axis else size for other, size in enumerate(x.shape))
    some = ops.slice(x, starts=(0,) * len(x.shape), stops=stops, steps=(1,) * len(x.shape))
    return ops.broadcast_to(some, shape=x.shape)


def one_query(o):
    """For all rows and heads."""
    return attended(ops.add(ops.matmul(first(first(o.q, 1), 2), halves(o.k)), padding(o)), o.v)


def repeated_features(o):
    """Of queries, keys and values: the product sums what repeats, and the result repeats."""
    scores = ops.matmul(ops.mul(first(o.q, 3), 0.5), halves(first(o.k, 3)))
    return attended(ops.add(scores, padding(o)), first(o.v, 3))


def one_key(o):
    """And one value, for all heads."""
    k, v = (first(first(x, 1), 2) for x in (o.k, o.v))
    return attended(ops.add(ops.matmul(first(o.q, 1), halves(k)), padding(o)), v)


FORMS = [
    one_query, repeated_features, one_key, masked_before_scaling, selected, selected_elsewhere, capped, biased,
    scaled_per_head, heads_in_the_batch, bounded, transposed_weights, grouped,
]  # fmt: skip


class Operands:
    def __init__(self, g, batch, rows, keys=7, *, trained=False):
        shapes = {"q": (batch, HEADS, rows, SIZE), "k": (batch, HEADS, keys, SIZE), "v": (batch, HEADS, keys, SIZE)}
        shapes |= {"bias": (1, HEADS, keys, rows), "rates": (HEADS, 1, 1)}
        random = np.random.default_rng(3)
        self.arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        self.q, self.k, self.v, self.bias, self.rates = (
            g.parameter(name, array) if trained else g.input(name, df.float32, array.shape)
            for name, array in self.arrays.items()
        )
        self.causal = g.constant(np.tri(rows, keys, keys // 2, dtype=bool).reshape(1, 1, rows, keys))
        self.open = g.input("open", df.bool_, (batch, 1, 1, keys))


def opened(batch, keys=7, none=True):
    """Keys that are seen; perhaps in the last entry of several none is."""
    seen = np.random.default_rng(5).random((batch, 1, 1, keys)) < 0.7
    seen[:, ..., 0] = True
    if none and batch > 1:
        seen[-1] = False
    return seen


@pytest.mark.parametrize(("batch", "rows", "keys"), [(2, 5, 7), (1, 5, 7), (3, 1, 7), (HEADS, SIZE, SIZE)])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_form_is_found_and_equals_its_decomposition(form, batch, rows, keys):
    g = df.GraphBuilder()
    operands = Operands(g, batch, rows, keys)
    g.output("y", form(operands))
    graph, given = g.build(), {**operands.arrays, "open": opened(batch, keys)}
    session = df.Session(graph, ["cpu"])
    found = session.run(given)["y"]
    expected = df.Session(graph, ["numpy"], fuse=False).run(given)["y"]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    names = ops_of(session.plan())
    assert "attention" in names
    assert "softmax" not in names
    copies = [name for name in names if name == "copy"]
    assert len(copies) <= (form is transposed_weights)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_gradients_are_those_of_the_decomposition(form):
    """Also where a row is masked throughout; a form that would change them there stays apart."""
    found = []
    for fuse in (True, False):
        g = df.GraphBuilder()
        y = form(Operands(g, 2, 3, trained=True))
        g.output("y", y)
        target = {
            "open": opened(2, none=form is not grouped),  # its decomposition gives NaN there
            "labels": np.random.default_rng(7).standard_normal(y.shape).astype(np.float32),
        }
        with df.Trainer(
            df.Model(g.build()), "mse", df.optim.SGD(lr=2.0), devices=["cpu"], fuse=fuse, metrics=[]
        ) as trainer:
            losses = [trainer.step(target) for _ in range(2)]
            names = {name for plan in trainer.programs.plans().values() for name in ops_of(plan)}
            found.append((losses, {name: p.array.copy() for name, p in trainer.model.parameters.items()}, names))
    (losses, arrays, names), (expected, others, _) = found
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    for name, array in arrays.items():
        np.testing.assert_allclose(array, others[name], rtol=1e-4, atol=2e-6, err_msg=name)
    apart = form in (selected, selected_elsewhere, bounded)
    assert ("attention_grad" in names) == (not apart)


def test_scores_that_are_read_elsewhere_too_stay():
    g = df.GraphBuilder()
    o = Operands(g, 1, 3)
    weights = ops.softmax(ops.matmul(o.q, halves(o.k)), axis=-1)
    g.output("weights", weights)
    g.output("y", ops.matmul(weights, o.v))
    assert "softmax" in ops_of(df.Session(g.build(), ["cpu"]).plan())


@pytest.mark.parametrize(("number", "scale"), [(-2.0, 1.0), (-1e30, 1e-30), (-1e30, -1.0)])
def test_a_number_that_is_no_minus_infinity_is_no_mask(number, scale):
    """A score of which 2 is left where it is not seen counts, also where a scale behind it made it 2."""
    g = df.GraphBuilder()
    o = Operands(g, 1, 3)
    scores = ops.where(o.causal, ops.matmul(o.q, halves(o.k)), number)
    g.output("y", attended(ops.mul(scores, scale), o.v))
    assert "softmax" in ops_of(df.Session(g.build(), ["cpu"]).plan())

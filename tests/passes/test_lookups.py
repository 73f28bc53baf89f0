"""Functions of one 8-bit element as tables, against the same nodes one by one on the reference device."""

import numpy as np
import pytest

import dataflow as df
from tests.support import ops_of

TYPES = df.uint8, df.int8
FUNCTIONS = {
    "sigmoid": df.ops.sigmoid,
    "silu": lambda x: x * df.ops.sigmoid(x),
    "hard_swish": lambda x: x * df.ops.minimum(df.ops.relu(x + 3.0), 6.0) / 6.0,
    "gelu": lambda x: 0.5 * x * (1.0 + df.ops.erf(x * 0.7071067811865475)),
    "where": lambda x: df.ops.where(df.ops.greater(x, 0.0), df.ops.exp(x * 0.1), -x),
    "requantized": lambda x: x,
}


def scalars(g, name, dtype, scale):
    """Scale and zero point, as a file stores them."""
    middle = 131 if dtype == df.uint8 else 3
    return g.initializer(f"{name}_scale", np.float32(scale)), g.initializer(f"{name}_zero", dtype.numpy.type(middle))


def model(function, source=df.uint8, result=df.uint8, shape=(3, 7, 100)):
    """Quantized ``function`` of an 8-bit input."""
    g = df.GraphBuilder()
    first, last = scalars(g, "x", source, 0.043), scalars(g, "y", result, 0.021)
    x = df.ops.dequantize(g.input("x", source, shape), *first)
    g.output("y", df.ops.quantize(function(x), *last))
    return df.Model(g.build())


def every_byte(dtype, shape):
    count = int(np.prod(shape))
    return np.resize(np.arange(256), count).astype(np.uint8).view(dtype.numpy).reshape(shape)


def step_ops(made, x):
    session = df.Session(made, devices=["cpu"])
    return session.run(x)["y"], ops_of(session.plans[0])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("result", TYPES)
def test_a_function_of_a_byte_is_looked_up(name, source, result):
    made = model(FUNCTIONS[name], source, result)
    x = every_byte(source, (3, 7, 100))
    found, ops = step_ops(made, x)
    assert ops == ["lookup"]
    expected = df.Session(made, devices=["numpy"], fold=False, fuse=False).run(x)["y"]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == result.numpy and len(np.unique(found)) > 4


def test_what_is_quantized_between_is_looked_up_with_it():
    """As quantizers write x * sigmoid(x): the result of the sigmoid is quantized too, and read by others as well."""
    g = df.GraphBuilder()
    first, middle, last = (
        scalars(g, name, df.uint8, scale) for name, scale in (("x", 0.05), ("s", 0.004), ("y", 0.03))
    )
    x = g.input("x", df.uint8, (5, 51))
    s = df.ops.quantize(df.ops.sigmoid(df.ops.dequantize(x, *first)), *middle)
    g.output("y", df.ops.quantize(df.ops.dequantize(x, *first) * df.ops.dequantize(s, *middle), *last))
    g.output("s", s)
    made = df.Model(g.build())
    data = every_byte(df.uint8, (5, 51))
    session = df.Session(made, devices=["cpu"])
    found, expected = session.run(data), df.Session(made, devices=["numpy"], fold=False, fuse=False).run(data)
    assert ops_of(session.plans[0]) == ["lookup", "lookup"]
    for key in "ys":
        np.testing.assert_array_equal(found[key], expected[key])


def broadcast(g):
    x = df.ops.dequantize(g.input("x", df.uint8, (4, 1)), *scalars(g, "x", df.uint8, 0.1))
    return df.ops.broadcast_to(x, shape=(4, 3)) + g.initializer("w", np.ones((4, 3), np.float32))


def two_values(g):
    one, other = (
        df.ops.dequantize(g.input(name, df.uint8, (4, 3)), *scalars(g, name, df.uint8, 0.1)) for name in ("x", "z")
    )
    return one * other


def by_channel(g):
    scale, zero = g.initializer("scale", np.float32([0.1, 0.2, 0.3])), g.initializer("zero", np.zeros(3, np.uint8))
    return df.ops.sigmoid(df.ops.dequantize(g.input("x", df.uint8, (4, 3)), scale, zero, axis=1))


def computed_scale(g):
    scale = df.ops.abs(g.input("scale", df.float32, ()))
    x = g.input("x", df.uint8, (4, 3))
    return df.ops.sigmoid(df.ops.dequantize(x, scale, g.initializer("zero", np.uint8(0))))


def along_rows(g):
    x = df.ops.dequantize(g.input("x", df.uint8, (4, 3)), *scalars(g, "x", df.uint8, 0.1))
    return x * df.ops.cumsum(x, axis=1)


@pytest.mark.parametrize("build", [broadcast, two_values, by_channel, computed_scale, along_rows])
def test_other_functions_are_computed(build):
    g = df.GraphBuilder()
    y = build(g)
    g.output("y", df.ops.quantize(y, *scalars(g, "y", df.uint8, 0.02)))
    made = df.Model(g.build())
    feeds = {
        "x": every_byte(df.uint8, made.inputs["x"].sizes),
        "z": every_byte(df.uint8, (4, 3)) + np.uint8(9),
        "scale": np.float32(-0.2),
    }
    feeds = {name: feeds[name] for name in made.inputs}
    session = df.Session(made, devices=["cpu"])
    found = session.run(feeds)["y"]
    assert "lookup" not in ops_of(session.plans[0])
    expected = df.Session(made, devices=["numpy"], fold=False, fuse=False).run(feeds)["y"]
    np.testing.assert_allclose(found.astype(int), expected.astype(int), atol=1)


def test_long_functions_are_taken_apart():
    """Of a chain of more nodes than one table stands for, the rest is computed."""

    def long(x):
        for _ in range(100):
            x = df.ops.sin(x) + 0.1
        return x

    found, ops = step_ops(model(long), every_byte(df.uint8, (3, 7, 100)))
    assert "lookup" not in ops
    assert found.shape == (3, 7, 100)

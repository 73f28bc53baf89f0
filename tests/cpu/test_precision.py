"""Products at each precision on the cpu device: errors against float64 arithmetic, and what is not finite.

On machines without AMX tiles every precision is float32, which meets all the bounds; tests that tell AMX from
float32 say so and are skipped there.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataflow as df
from dataflow.plugin.registry import default_registry
from tests.support import again_on, normal, run

PRECISIONS = ("float32", "bf16x6", "tf32", "bf16")
VERSION = default_registry().devices["cpu"].version
NO_AMX = None if VERSION.endswith("amx") else f"there are no AMX tiles: {VERSION}"
needs_unit = pytest.mark.skipif(NO_AMX is not None, reason=str(NO_AMX))
# By precision: the largest error of a product beside rounding of sums, and additions per 32 steps of k.
LOST = {"float32": (0.0, 32), "bf16x6": (2.0**-23, 6), "tf32": (3 * 2.0**-16, 3), "bf16": (2.0**-7 + 2.0**-16, 1)}
LEAST = 2.0**-126


def product(a, b, precision, threads=2):
    return run(lambda g, x, y: df.ops.matmul(x, y), a, b, precision=precision, threads=threads)


def bound(a, b, precision):
    """The most that elements of a product may be off."""
    a, b = np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))
    k = a.shape[-1]
    lost, additions = LOST[precision]
    tiny = LEAST * (a.sum(axis=-1, keepdims=True) + b.sum(axis=-2, keepdims=True) + 8 * k)
    return (lost + 2.0**-24 * (20 + additions * -(-k // 32) + k // 128)) * (a @ b) + tiny


def check(found, a, b, precision, more=0.0):
    exact = a.astype(np.float64) @ b.astype(np.float64) + more
    assert found.shape == exact.shape
    over = np.abs(found - exact) - bound(a, b, precision) - 2.0**-22 * np.abs(more)
    assert over.max(initial=-1.0) <= 0


SIZES = [
    (1, 1, 1),
    (5, 1, 7),
    (1, 33, 65),
    (16, 16, 32),
    (17, 31, 37),
    (33, 65, 97),
    (64, 64, 1),
    (67, 129, 131),
    (128, 300, 515),
    (300, 40, 1100),
    (1100, 65, 64),
    (40, 1100, 70),
    (0, 5, 7),
    (5, 7, 0),
]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_of_all_sizes(m, n, k, precision):
    random = np.random.default_rng(m * n + k)
    a, b = normal(random, m, k), normal(random, k, n)
    found = product(a, b, precision)
    check(found, a, b, precision)
    check(product(a, b, precision, threads=1), a, b, precision)
    np.testing.assert_array_equal(found, product(a, b, precision))  # the same bits from run to run


@settings(max_examples=40)
@given(
    st.tuples(*[st.integers(1, 90)] * 2, st.integers(1, 600)),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from(PRECISIONS[1:]),
    st.integers(0, 2**32 - 1),
)
def test_products_of_any_size(sizes, transposed, precision, seed):
    m, n, k = sizes
    random = np.random.default_rng(seed)
    a, b = normal(random, m, k), normal(random, k, n)
    given = [np.ascontiguousarray(x.T) if t else x for x, t in zip((a, b), transposed, strict=True)]

    def build(g, *values):
        x, y = (df.ops.transpose(v, perm=(1, 0)) if t else v for v, t in zip(values, transposed, strict=True))
        return df.ops.matmul(x, y)

    check(run(build, *given, precision=precision, threads=2), a, b, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_operands_that_lie_anywhere(precision):
    random = np.random.default_rng(1)
    a, b = normal(random, 139, 402), normal(random, 201, 177)

    def build(g, x, y):
        x = df.ops.slice(x, starts=(138, 401), stops=(-1, -1), steps=(-1, -2))
        return df.ops.matmul(x, df.ops.slice(y, starts=(0, 1), stops=(201, 177), steps=(1, 1)))

    check(run(build, a, b, precision=precision, threads=2), a[::-1, ::-2], b[:, 1:], precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_batches(precision):
    random = np.random.default_rng(2)
    a, b = normal(random, 2, 3, 65, 70), normal(random, 3, 70, 41)
    found = product(a, b, precision)
    for i in np.ndindex(2, 3):
        check(found[i], a[i], b[i[1]], precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n", [19, 64, 200])
def test_biases_and_relu(n, precision):
    random = np.random.default_rng(n)
    a, b, bias = normal(random, 77, 600), normal(random, 600, n), normal(random, n)

    def build(g, x, w, b):
        return df.ops.add(df.ops.matmul(x, w), b)

    found = run(build, a, b, bias, precision=precision, threads=2)
    check(found, a, b, precision, more=bias)
    relu = run(lambda g, *v: df.ops.relu(build(g, *v)), a, b, bias, precision=precision, threads=2)
    np.testing.assert_array_equal(relu, np.maximum(found, 0))


def test_bf16x6_is_as_near_as_float32():
    """Random, badly scaled and cancelling operands: the largest error is at most twice that of float32."""
    random = np.random.default_rng(3)
    for m, n, k in ((64, 64, 64), (96, 80, 1000), (200, 33, 300)):
        a, b = normal(random, m, k), normal(random, k, n)
        rows, columns = (10.0 ** random.uniform(-9, 9, size) for size in (m, n))
        halves = normal(random, m, k // 2), normal(random, k // 2, n)
        near_one = np.float32(1) + np.float32(1e-6) * normal(random, k // 2, n)
        cases = (
            (a, b),
            ((a * rows[:, None]).astype(np.float32), (b * columns).astype(np.float32)),
            (np.hstack([halves[0], -halves[0]]), np.vstack([halves[1], halves[1] * near_one])),
            (np.abs(a), np.abs(b)),
        )
        for x, y in cases:
            exact = x.astype(np.float64) @ y
            scale = np.abs(x).astype(np.float64) @ np.abs(y)
            error = {p: (np.abs(product(x, y, p) - exact) / scale).max() for p in ("float32", "bf16x6")}
            assert error["bf16x6"] <= 2 * error["float32"] + 2.0**-25, (m, n, k, error)


@needs_unit
def test_lower_precisions_are_used():
    random = np.random.default_rng(4)
    a, b = normal(random, 256, 256), normal(random, 256, 256)
    exact = a.astype(np.float64) @ b
    errors = [np.abs(product(a, b, p) - exact).max() for p in ("bf16x6", "tf32", "bf16")]
    assert errors[0] < 2e-5 < errors[1] < 3e-3 < errors[2]


def odd_operands():
    """Operands with something that is not finite, or not ordinary, by name."""
    random = np.random.default_rng(5)
    a, b = normal(random, 70, 300), normal(random, 300, 50)
    most = np.finfo(np.float32).max
    specials = {"inf": np.inf, "-inf": -np.inf, "nan": np.nan, "most": most, "least": 1e-45, "tiny": 2.0**-126}
    for name, value in specials.items():
        for side in (0, 1):
            pair = [a.copy(), b.copy()]
            pair[side][(33, 17) if side == 0 else (17, 33)] = value
            yield f"{name} {side}", *pair
    yield "most, no products above it", np.full_like(a, most), np.eye(300, 50, dtype=np.float32)
    yield "all tiny", a * np.float32(2.0**-120), b * np.float32(2.0**100)
    yield "tiny against huge", a * np.float32(2.0**-60), b * np.float32(2.0**60)
    both = [a.copy(), b.copy()]
    both[0][3, 4], both[1][4, 5] = np.inf, 1e-40  # inf, and not nan: AMX tiles flush the subnormal to zero
    yield "inf times least", *both
    zeros = [a.copy(), b.copy()]
    zeros[0][3, 4], zeros[1][4, 5] = np.inf, 0.0
    yield "inf times zero", *zeros


def check_odd(found, a, b, precision):
    """Infinities and NaN where float32 has them, and the rest within bounds."""
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) @ b.astype(np.float64)
        expected = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isposinf(found), np.isposinf(expected))
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(expected))
    finite = np.isfinite(expected)
    with np.errstate(all="ignore"):
        most = bound(np.where(np.isfinite(a), a, 0), np.where(np.isfinite(b), b, 0), precision)
        assert np.all((np.abs(found - exact) <= most)[finite])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", list(odd_operands()), ids=lambda case: case[0].replace(" ", "-"))
def test_what_is_not_ordinary_gives_what_float32_gives(case, precision):
    _, a, b = case
    check_odd(product(a, b, precision), a, b, precision)


def by_constant(a, b, precision, transposed=False, threads=2):
    """The product with a constant second factor, and the session's plan."""
    g = df.GraphBuilder()
    w = g.parameter("w", np.ascontiguousarray(b.T) if transposed else b)
    g.output(
        "y", df.ops.matmul(g.input("x", df.float32, a.shape), df.ops.transpose(w, perm=(1, 0)) if transposed else w)
    )
    session = df.Session(df.Model(g.build()), devices=["cpu"], threads=threads, precision=precision)
    return session.run({"x": a})["y"].copy(), session.plan()


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize(("m", "n", "k"), [*SIZES, (40, 700, 1500), (1500, 70, 40)])
def test_constant_weights(m, n, k, transposed):
    random = np.random.default_rng(m + n * k)
    a, b = normal(random, m, k), normal(random, k, n)
    for precision in PRECISIONS[1:]:
        found, _ = by_constant(a, b, precision, transposed)
        check(found, a, b, precision)
        check(by_constant(a, b, precision, transposed, threads=1)[0], a, b, precision)


@needs_unit
def test_constant_weights_take_half_the_memory():
    random = np.random.default_rng(6)
    a, b = normal(random, 100, 512), normal(random, 512, 320)
    found, plan = by_constant(a, b, "bf16")
    assert b.nbytes / 2 <= plan.memory["prepacks"] <= b.nbytes / 2 + 4096
    np.testing.assert_array_equal(found, product(a, b, "bf16"))
    assert not by_constant(a, b, "bf16x6")[1].memory.get("prepacks")


@pytest.mark.parametrize("case", list(odd_operands()), ids=lambda case: case[0].replace(" ", "-"))
def test_constant_weights_that_are_not_ordinary(case):
    _, a, b = case
    check_odd(by_constant(a, b, "bf16")[0], a, b, "bf16")


# ---- Convolutions -----------------------------------------------------------------------------------

# AMX tiles; elsewhere any algorithm but Winograd's, whose transforms spread what is not finite.
FORCED = df.Algorithms(
    avoid=("winograd", "pointwise", "few_channels", "padded", "direct", "shifted") if NO_AMX is None else ("winograd",)
)
CONVOLUTIONS = [  # channels, filters, size, kernel, strides, pads, dilations
    (64, 48, (14, 14), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (33, 35, (9, 11), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    (16, 70, (20, 23), (5, 3), (2, 2), (2, 0, 1, 3), (1, 1)),
    (40, 16, (13, 30), (3, 2), (3, 1), (0, 1, 4, 0), (2, 3)),
    (31, 64, (17, 7), (1, 1), (2, 2), (0, 0, 0, 0), (1, 1)),
    (1, 5, (6, 5), (3, 3), (1, 2), (5, 4, 3, 2), (1, 1)),
    (130, 32, (40, 40), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
]


def windows_of(x, kernel, strides, pads, dilations):
    """(images, channels * taps, positions) in double precision, taps innermost."""
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    found = np.lib.stride_tricks.sliding_window_view(x, reach, (2, 3))
    found = found[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    n, c, height, width = found.shape[:4]
    return found.transpose(0, 1, 4, 5, 2, 3).reshape(n, c * kernel[0] * kernel[1], height * width), (height, width)


def convolve(x, w, bias, window, precision, add=None, threads=2, constant=True):
    """What the device gives for relu(conv + add), or conv where there is nothing to add."""
    g = df.GraphBuilder()
    given = {"x": x} if constant else {"x": x, "w": w}
    values = {name: g.input(name, df.float32, a.shape) for name, a in given.items()}
    y = df.ops.conv(values["x"], values.get("w", w), bias, groups=1, **window)
    if add is not None:
        given["add"] = add
        y = df.ops.relu(df.ops.add(y, g.input("add", df.float32, add.shape)))
    g.output("y", y)
    session = df.Session(df.Model(g.build()), ["cpu"], threads=threads, precision=precision, algorithms=FORCED)
    return session.run(given)["y"].copy()


@pytest.mark.parametrize("precision", PRECISIONS[1:])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case, precision):
    c, f, size, kernel, strides, pads, dilations = case
    random = np.random.default_rng(c)
    x, w, bias = normal(random, 3, c, *size), normal(random, f, c, *kernel), normal(random, f)
    window = {"strides": strides, "pads": pads, "dilations": dilations}
    columns, plane = windows_of(x, kernel, strides, pads, dilations)
    rows = w.reshape(f, -1)
    exact = rows.astype(np.float64) @ columns
    add = normal(random, 3, f, *plane)
    most = np.stack([bound(rows, image, precision) for image in columns]) + 2.0**-21 * (1 + np.abs(exact))
    for constant in (True, False):
        found = convolve(x, w, bias, window, precision, constant=constant)
        assert np.all(np.abs(found.reshape(exact.shape) - exact - bias[:, None]) <= most + 2.0**-20)
    np.testing.assert_array_equal(found, convolve(x, w, bias, window, precision, constant=False))
    alone = convolve(x, w, bias, window, precision, threads=1)
    assert np.all(np.abs(alone.reshape(exact.shape) - exact - bias[:, None]) <= most + 2.0**-20)
    joined = convolve(x, w, bias, window, precision, add=add)
    np.testing.assert_allclose(joined, np.maximum(found + add, 0), rtol=0, atol=1e-4)


def gradient(op, values, device, dtype, precision, algorithms=None, **attributes):
    """What a device gives for a gradient of a convolution."""
    g = df.GraphBuilder()
    inputs = [g.input(name, dtype, a.shape) for name, a in values.items()]
    g.output("d", op(*inputs, groups=1, **attributes))
    session = df.Session(df.Model(g.build()), device, precision=precision, algorithms=algorithms, threads=2)
    return session.run(values)["d"].copy()


def check_gradient(op, values, precision, terms, algorithms=None, **attributes):
    """Compares with float64; ``terms``: of a sum."""
    found = gradient(op, values, ["cpu"], df.float32, precision, algorithms, **attributes)
    double = {name: a.astype(np.float64) for name, a in values.items()}
    exact = gradient(op, double, ["numpy"], df.float64, "float32", **attributes)
    sizes = {name: np.abs(a) for name, a in double.items()}
    scale = gradient(op, sizes, ["numpy"], df.float64, "float32", **attributes)
    lost, additions = LOST[precision]
    most = (lost + 2.0**-24 * (30 + additions * (terms // 32 + 1))) * scale + 2.0**-20
    assert np.all(np.abs(found - exact) <= most)
    return found, exact


@pytest.mark.parametrize("precision", PRECISIONS[1:])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_gradients_of_convolutions(case, precision):
    c, f, size, kernel, strides, pads, dilations = case
    random = np.random.default_rng(c + 1)
    x, w = normal(random, 3, c, *size), normal(random, f, c, *kernel)
    window = {"strides": strides, "pads": pads, "dilations": dilations}
    _, plane = windows_of(x, kernel, strides, pads, dilations)
    dy = normal(random, 3, f, *plane)
    terms = f * kernel[0] * kernel[1]
    check_gradient(df.ops.conv_grad_input, {"dy": dy, "w": w}, precision, terms, FORCED, input_shape=x.shape, **window)
    terms = 3 * plane[0] * plane[1]
    check_gradient(df.ops.conv_grad_weight, {"x": x, "dy": dy}, precision, terms, weight_shape=w.shape, **window)


LARGE = [  # AMX tiles compute their weight gradients
    (64, 64, (20, 19), (3, 3), (1, 1), (1, 1, 1, 1)),
    (130, 200, (24, 24), (1, 1), (1, 1), (0, 0, 0, 0)),
    (40, 96, (31, 30), (3, 5), (2, 2), (2, 1, 1, 2)),
    (160, 128, (41, 41), (1, 1), (2, 2), (0, 0, 0, 0)),
]


@pytest.mark.parametrize("case", LARGE)
def test_weight_gradients_on_amx_tiles(case):
    c, f, size, kernel, strides, pads = case
    random = np.random.default_rng(c)
    x = normal(random, 4, c, *size)
    window = {"strides": strides, "pads": pads, "dilations": (1, 1)}
    _, plane = windows_of(x, kernel, strides, pads, (1, 1))
    values = {"x": x, "dy": normal(random, 4, f, *plane)}
    for precision in PRECISIONS[1:]:
        op, shape = df.ops.conv_grad_weight, (f, c, *kernel)
        found, exact = check_gradient(op, values, precision, 4 * plane[0] * plane[1], weight_shape=shape, **window)
        again = gradient(op, values, ["cpu"], df.float32, precision, weight_shape=shape, **window)
        np.testing.assert_array_equal(found, again)
        if NO_AMX is None and precision == "bf16":
            assert np.abs(found - exact).max() > 1e-3 * np.abs(exact).max()  # it is used
    values["x"][1, 2, 4, 4] = np.inf  # then float32 does it
    found, strict = (
        gradient(df.ops.conv_grad_weight, values, ["cpu"], df.float32, p, weight_shape=(f, c, *kernel), **window)
        for p in ("bf16", "float32")
    )
    np.testing.assert_array_equal(found, strict)


@pytest.mark.parametrize("precision", PRECISIONS[1:])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, np.finfo(np.float32).max, 1e-45, 2.0**-100])
@pytest.mark.parametrize("where", ["x", "w", "all x"])
def test_convolutions_of_what_is_not_ordinary(where, value, precision):
    random = np.random.default_rng(8)
    given = {"x": normal(random, 2, 20, 8, 9), "w": normal(random, 37, 20, 3, 3) * np.float32(2.0**-10)}
    if where == "all x":
        given["x"][0] = value
    else:
        given[where][1, 2, 1, 2] = value
    window = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    columns, plane = windows_of(given["x"], (3, 3), (1, 1), (0, 0, 0, 0), (1, 1))
    rows = given["w"].reshape(37, -1).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = (rows @ columns).reshape(2, 37, *plane)
        expected = exact.astype(np.float32)
        found = convolve(given["x"], given["w"], np.zeros(37, np.float32), window, precision)
        if not np.isfinite(value):
            np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
            np.testing.assert_array_equal(np.isposinf(found), np.isposinf(expected))
        finite = np.isfinite(expected) & (np.abs(exact) < 2.0**126)
        zeroed = [np.where(np.isfinite(a), a, 0) for a in (rows, columns)]
        most = np.stack([bound(zeroed[0], image, precision) for image in zeroed[1]]).reshape(exact.shape)
        # Sums in float32, one after the other; terms of numbers at the end of the range are truncated, not rounded.
        most += (LOST[precision][0] + 2.0**-24 * 180) * (np.abs(zeroed[0]) @ np.abs(zeroed[1])).reshape(exact.shape)
        assert np.all((np.abs(found - exact) <= most)[finite])


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_every_precision_is_float32_without_amx(isa):
    """Without AMX tiles every precision is accepted; in float32 they change no bit."""
    code = """
import sys
import numpy as np
import dataflow as df
from dataflow.plugin.registry import default_registry
device = default_registry().devices["cpu"]
if device.unavailable:
    sys.exit(77)
assert device.version.endswith(sys.argv[1]), device.version
random = np.random.default_rng(0)
a, b = (random.standard_normal((200, 200)).astype(np.float32) for _ in "ab")
g = df.GraphBuilder()
g.output("y", df.ops.matmul(g.input("a", df.float32, a.shape), g.input("b", df.float32, b.shape)))
model = df.Model(g.build())
found = {p: df.Session(model, ["cpu"], threads=2, precision=p).run({"a": a, "b": b})["y"] for p in sys.argv[2:]}
for array in found.values():
    np.testing.assert_array_equal(array, found["float32"])
print(np.asarray(found["float32"]).tobytes().hex())
"""

    def ask(isa, *precisions):
        environment = {**os.environ, "DATAFLOW_CPU_ISA": isa}
        command = [sys.executable, "-c", code, isa, *precisions]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 77:
            pytest.skip(f"this machine has no {isa}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = ask(isa, *PRECISIONS)
    if isa == "avx512" and NO_AMX is None:
        assert found == ask("amx", "float32")


@needs_unit
@pytest.mark.parametrize("isa", ["avx512"])
def test_the_bounds_hold_without_the_unit(isa):
    again_on(isa, __file__, but="without_the_unit")

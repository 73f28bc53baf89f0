"""Derivatives of determinants, of singular matrices too, against Leibniz' formula and closed forms."""

import functools
import itertools

import numpy as np
import pytest

import dataflow as df

ops = df.ops


def derivative(function, x, directions):
    """The gradient by x of the derivative of ``function`` along each of the directions in turn, on the CPU."""
    g = df.GraphBuilder()
    g.output("y", function(g.input("x", x.dtype, x.shape)))
    graph = g.build()
    for index, direction in enumerate(directions):
        first = df.value_and_grad(graph, "x")
        g = df.GraphBuilder()
        found = g.adopt(first)[first.outputs["grad.x"]]
        g.output("y", ops.reduce_sum(found * g.constant(direction, f"direction{index}"), axes=(0, 1), keepdims=False))
        graph = g.build()
    return df.Session(df.value_and_grad(graph, "x"), devices=["cpu"]).run({"x": x})["grad.x"]


@functools.cache
def terms(rows):
    """The permutations of Leibniz' formula with their signs."""
    pairs = list(itertools.combinations(range(rows), 2))
    return [(p, (-1) ** sum(p[i] > p[j] for i, j in pairs)) for p in itertools.permutations(range(rows))]


def leibniz(x, elements):
    """The derivative of det(x) by these elements: without a division, so exact for whole numbers."""
    rows = [i for i, _ in elements]
    if len(set(rows)) < len(rows):
        return 0
    rest = [i for i in range(len(x)) if i not in rows]
    chosen = [(p, sign) for p, sign in terms(len(x)) if all(p[i] == j for i, j in elements)]
    return sum(sign * int(np.prod([x[i, p[i]] for i in rest])) for p, sign in chosen)


def of_rank(rank, rows, random):
    """A matrix of small whole numbers."""
    return random.integers(-2, 3, (rows, rank)) @ random.integers(-2, 3, (rank, rows))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize(
    ("rows", "rank"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2), (4, 2), (4, 4), (5, 3), (6, 4)]
)
def test_derivatives_of_determinants_of_singular_and_regular_matrices(rows, rank, order, dtype):
    random = np.random.default_rng(rows)
    x = of_rank(rank, rows, random)
    elements = list(itertools.product(range(rows), repeat=2))
    directions, expected = [], np.zeros((rows, rows))
    along = [[elements[i] for i in random.permutation(len(elements))[:2]] for _ in range(order - 1)]
    for chosen in along:
        directions.append(np.zeros((rows, rows), dtype))
        for element in chosen:
            directions[-1][element] = 1
    for element in elements:
        expected[element] = sum(leibniz(x, [element, *others]) for others in itertools.product(*along))
    found = derivative(ops.det, x.astype(dtype), directions)
    np.testing.assert_allclose(found, expected, rtol=1e-12 if dtype == np.float64 else 1e-5, atol=1e-9)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 12])
def test_the_hessian_of_the_logarithm_of_a_determinant(rows):
    """Along V that is -(Y V Y)^T, with Y the inverse."""
    random = np.random.default_rng(rows)
    half, direction = random.standard_normal((2, rows, rows))
    x = half @ half.T + np.eye(rows)
    found = derivative(lambda x: ops.log(ops.det(x)), x, [direction])
    y = np.linalg.inv(x)
    np.testing.assert_allclose(found, -(y @ direction @ y).T, rtol=1e-8, atol=1e-10)


def test_the_hessian_of_a_density_in_its_covariance():
    """Of log|S| + v^T S^-1 v along V: -Y V Y + Y V Y A Y + Y A Y V Y with A = v v^T, transposed."""
    random = np.random.default_rng(3)
    half, direction = random.standard_normal((2, 4, 4))
    direction = direction + direction.T
    v = random.standard_normal((4, 1))
    s = half @ half.T + np.eye(4)

    def density(s):
        y = ops.inverse(s)
        return ops.log(ops.det(s)) + ops.reduce_sum(v.T @ y @ v, axes=(0, 1), keepdims=False)

    y, a = np.linalg.inv(s), v @ v.T
    moved = y @ direction @ y
    np.testing.assert_allclose(
        derivative(density, s, [direction]), -moved + moved @ a @ y + y @ a @ moved, rtol=1e-9, atol=1e-11
    )


def test_second_derivatives_of_a_large_singular_matrix_are_not_finite():
    x = np.ones((7, 7))
    x[0] = np.arange(7)
    assert not np.isfinite(derivative(ops.det, x, [np.eye(7)])).any()


def test_matrices_of_named_sizes_have_first_derivatives_alone():
    g = df.GraphBuilder()
    g.output("y", ops.reduce_sum(ops.cofactor(g.input("x", df.float32, ("n", "n"))), axes=(0, 1), keepdims=False))
    with pytest.raises(df.GradientError, match=r"cofactor 'cofactor'.*needs matrices of a fixed size.*n, n"):
        df.value_and_grad(g.build(), "x")

"""Quantized operators of onnxruntime's domain: elementwise, pools, products, attention, weights of few bits."""

import numpy as np
import pytest

from tests.importers.microsoft.operator_case import Case, check
from tests.importers.peer_weights import weights

random = np.random.default_rng(2)
KINDS = (np.uint8, np.int8)
STEP = {"gradient": False, "tolerance": (1, 0)}  # onnxruntime rounds ratios of scales
FLOAT = {"gradient": False, "tolerance": (1e-4, 1e-5)}


def q(kind, *shape):
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return random.integers(low, high + 1, shape).astype(kind)


def f(*shape):
    return random.standard_normal(shape).astype(np.float32)


def s(number):
    return np.float32(number)


def quantized(x, scale, zero):
    limits = np.iinfo(zero.dtype)
    return np.clip(np.round(x / scale) + zero, limits.min, limits.max).astype(zero.dtype)


def elementwise(kind):
    scale, zero, result = s(0.03), kind(5), (s(0.05), kind(9))
    x, y = (q(kind, 2, 3, 4), scale, zero), (q(kind, 3, 1), s(0.02), kind(100))
    yield Case("QLinearAdd", [*x, *y, *result], **STEP)
    yield Case("QLinearMul", [*x, *y, *result], shapes={0: ("a", "b", 4)}, **STEP)
    leaky = x[0] * scale * np.where(x[0] < 0, s(0.01), 1)
    without = quantized(leaky, result[0], kind(0))  # onnxruntime aborts
    yield Case("QLinearLeakyRelu", [*x[:2], None, result[0]], expected=lambda *_: [without], **STEP)
    yield Case("QLinearSigmoid", [*x, s(1 / 256), zero], **STEP)
    yield Case("QLinearLeakyRelu", [*x, *result], {"alpha": 0.2}, **STEP)
    yield Case("QLinearSoftmax", [*x, s(1 / 256), kind(np.iinfo(kind).min)], {"axis": 1, "opset": 13}, **STEP)
    yield Case("QLinearSoftmax", [*x, s(1 / 256), kind(0)], {"axis": 1, "opset": 12}, **STEP)
    yield Case("QLinearConcat", [*result, *x, q(kind, 2, 1, 4), s(0.04), kind(7)], {"axis": 1}, **STEP)
    chosen = random.random((2, 3, 4)) < 0.5
    yield Case("QLinearWhere", [chosen, *x, q(kind, 2, 3, 4), *y[1:], *result], stored=(2, 3, 5, 6, 7, 8), **STEP)
    image = (q(kind, 2, 3, 6, 5), scale, zero)
    yield Case("QLinearGlobalAveragePool", [*image, *result], **STEP)
    yield Case("QLinearGlobalAveragePool", [*image, *result], {"channels_last": 1}, **STEP)
    pool = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 1, 1]}
    yield Case("QLinearAveragePool", [*image, *result], pool, **STEP)
    yield Case("QLinearAveragePool", [*image, *result], {**pool, "channels_last": 1, "count_include_pad": 1}, **STEP)
    mean = quantized(((image[0].astype(np.float32) - zero) * scale).mean((2, 3)), *result)
    yield Case(
        "QLinearReduceMean", [*image, *result], {"axes": [2, 3], "keepdims": 0}, expected=lambda *_: [mean], **STEP
    )
    total = image[0].sum(1, keepdims=True, dtype=np.int32)
    yield Case("ReduceSumInteger", [image[0]], {"axes": [1], "keepdims": 1}, expected=lambda *_: [total], **STEP)
    yield Case("QuantizeLinear", [f(3, 4), s(0.05), zero], **STEP)
    yield Case("QuantizeLinear", [f(3, 4), abs(f(4)) + 0.1, q(kind, 4)], {"axis": 1}, **STEP)
    yield Case("DequantizeLinear", [image[0], scale, zero], **FLOAT)
    weight = [weights(random, np.int8, (4, 3, 3, 3)), abs(f(4)) + 0.1, np.zeros(4, np.int8), s(5), zero]
    shift = random.integers(-100, 100, 4).astype(np.int32)
    yield Case(
        "QLinearConv",
        [q(kind, 2, 6, 5, 3), scale, zero, *weight, shift],
        {"pads": [1, 1, 1, 1], "strides": [2, 2], "channels_last": 1},
        stored=(3, 4, 5, 8),
        **STEP,
    )


def products(kind):
    a, b = q(kind, 2, 4, 6), weights(random, kind, (6, 5))
    one, columns = (s(0.02), kind(3)), (abs(f(5)) + 0.1, q(kind, 5))
    yield Case("MatMulIntegerToFloat", [a, b, s(0.1), one[0], kind(7), one[1]], **FLOAT)
    yield Case("MatMulIntegerToFloat", [a, b, s(0.1), columns[0], kind(7), columns[1], f(5)], stored=(1, 3, 5), **FLOAT)
    yield Case("MatMulIntegerToFloat", [a, b, s(0.1), one[0]], **FLOAT)
    yield Case("DynamicQuantizeMatMul", [f(2, 4, 6), b, *one, f(5)], stored=(1,), shapes={0: ("a", "b", 6)}, **FLOAT)
    yield Case("DynamicQuantizeMatMul", [f(2, 4, 6), b, *columns], stored=(1, 2, 3), **FLOAT)
    row = q(kind, 4, 6)
    bias = random.integers(-1000, 1000, 5).astype(np.int32)
    result = (s(3), kind(11))
    yield Case("QGemm", [row, s(0.1), kind(7), b, *one, bias, *result], stored=(3,), **STEP)
    yield Case("QGemm", [row.T.copy(), s(0.1), kind(7), b.T.copy(), *columns], {"transA": 1, "transB": 1}, **FLOAT)
    yield Case("QGemm", [row, s(0.1), kind(7), b, *one, bias], {"alpha": 0.5}, **FLOAT)


def attention():
    x, w = (q(np.uint8, 2, 3, 5), s(0.02), np.uint8(120)), (weights(random, np.int8, (5, 24)), s(0.01), np.int8(0))
    operands = [x[0], w[0], f(24), x[1], w[1], None, x[2], w[2]]
    yield Case("QAttention", operands, {"num_heads": 2}, stored=(1,), **FLOAT)
    keys = np.array([2, 3], np.int32)
    masked = [*operands[:5], keys, *operands[6:], f(2, 2, 2, 2, 4)]
    yield Case("QAttention", masked, {"num_heads": 2, "unidirectional": 1}, outputs=2, stored=(1,), **FLOAT)
    ids = [random.integers(0, n, (2, 3)).astype(np.int32) for n in (7, 2)]
    tables = [q(np.uint8, *shape) for shape in ((7, 8), (6, 8), (2, 8), (8,), (8,))]
    scales, zeros = [s(0.01 * i) for i in range(1, 6)], [np.uint8(100 + i) for i in range(5)]
    yield Case(
        "QEmbedLayerNormalization", [*ids, *tables, np.ones((2, 3), np.int32), *scales, *zeros], outputs=2, **FLOAT
    )


def blocks(bits, rows, size, block=16):
    """Bytes, scales and zero points."""
    count = -(-size // block)
    return q(np.uint8, rows, count, block * bits // 8), abs(f(rows, count)), q(np.uint8, rows, -(-count * bits // 8))


def by_groups(bits):
    """The product where each column has the scale and zero point of its group; onnxruntime leaves out the latter."""

    def product(x, b, scales, zeros, groups, bias=None):
        split = [(array[..., None] >> np.arange(0, 8, bits)) & ((1 << bits) - 1) for array in (b, zeros)]
        elements, zeros = (array.reshape(5, -1).astype(np.float64) for array in split)
        chosen = groups[: x.shape[-1]]
        weight = (elements[:, : x.shape[-1]] - zeros[:, chosen]) * scales[:, chosen]
        return [(x @ weight.T + (0 if bias is None else bias)).astype(np.float32)]

    return product


def in_groups(bits, loose):
    """MatMulNBits whose columns are not in the order of their blocks."""
    order = random.permutation(48).astype(np.int32) // 16
    for size in (40, 48):  # of 40 columns the groups don't fill blocks
        attributes = {"K": size, "N": 5, "block_size": 16, "bits": bits}
        b, scales, zeros = blocks(bits, 5, size)
        operands, how = [f(2, 3, size), b, scales, zeros, order[:size], f(5)], {"stored": (1, 2, 3, 4), **loose}
        yield Case("MatMulNBits", operands, attributes, expected=by_groups(bits), **how)
        if bits == 4:
            yield Case("MatMulNBits", [*operands[:3], None, order[:size]], attributes, stored=(1, 2, 4), **loose)
            in_order = (np.arange(size) // 16).astype(np.int32)
            yield Case("MatMulNBits", [*operands[:3], None, in_order], attributes, stored=(1, 2, 4), **loose)


def few_bits():
    loose = {"tolerance": (1e-3, 1e-4)}
    for bits in (4, 8, 2):
        attributes = {"K": 40, "N": 5, "block_size": 16, "bits": bits}
        b, scales, zeros = blocks(bits, 5, 40)
        yield Case("MatMulNBits", [f(2, 3, 40), b, scales.reshape(-1)], attributes, stored=(1, 2), **loose)
        yield Case("MatMulNBits", [f(2, 3, 40), b, scales, zeros, None, f(5)], attributes, stored=(1, 2, 3), **loose)
        yield Case("MatMulNBits", [f(2, 3, 40), b, scales, zeros], attributes, **loose)
        yield from in_groups(bits, loose)
    b, scales, _ = blocks(4, 5, 40)
    yield Case(
        "MatMulNBits", [f(3, 40), b, scales, f(5, 3)], {"K": 40, "N": 5, "block_size": 16}, stored=(1, 2, 3), **loose
    )
    for kind in (0, 1):
        attributes = {"K": 32, "N": 5, "block_size": 16, "quant_type": kind}
        yield Case("MatMulBnb4", [f(3, 32), q(np.uint8, 80), abs(f(10))], attributes, stored=(1, 2), **loose)
    for bits in (4, 8):
        data, scales, zeros = q(np.uint8, 7, 32 * bits // 8), abs(f(7, 2)), q(np.uint8, 7, 2 * bits // 8)
        ids = random.integers(0, 7, (2, 3))
        attributes = {"bits": bits, "block_size": 16}
        yield Case("GatherBlockQuantized", [data, ids, scales], attributes, stored=(0, 2), gradient=False)
        yield Case("GatherBlockQuantized", [data, ids, scales, zeros], attributes, stored=(0, 2, 3), gradient=False)


CASES = [case for kind in KINDS for case in (*elementwise(kind), *products(kind))]


@pytest.mark.parametrize("case", [*CASES, *attention(), *few_bits()], ids=str)
def test_operator(case):
    check(case)

"""Spectra, complex numbers, gates and rotations of onnxruntime's domain, and what it adds to ONNX's own."""

import numpy as np
import pytest

from tests.importers.microsoft.operator_case import Case, check

random = np.random.default_rng(0)


def f(*shape, dtype=np.float32):
    return random.standard_normal(shape).astype(dtype)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def pairs(x):
    """Complex numbers as pairs along a new last axis."""
    return np.stack([x.real, x.imag], -1).astype(np.float32)


def numbers(x):
    return x[..., 0] + 1j * x[..., 1]


HALF = pairs(np.fft.rfft2(f(2, 3, 6)))
SPECTRA = [
    Case("Rfft", [f(2, 3, 6)], expected=lambda x: [pairs(np.fft.rfft(x))], shapes={0: ("batch", 3, 6)}),
    Case("Rfft", [f(2, 3, 6)], {"signal_ndim": 2}, expected=lambda x: [pairs(np.fft.rfft2(x))]),
    Case("Irfft", [HALF], {"signal_ndim": 1}, expected=lambda x: [np.fft.irfft(numbers(x)).astype(np.float32)]),
    Case("Irfft", [HALF], {"signal_ndim": 2}, expected=lambda x: [np.fft.irfft2(numbers(x)).astype(np.float32)]),
    Case("ComplexMul", [f(2, 3, 2), f(3, 2)], expected=lambda a, b: [pairs(numbers(a) * numbers(b))]),
    Case("ComplexMulConj", [f(2, 3, 2), f(3, 2)], expected=lambda a, b: [pairs(numbers(a) * numbers(b).conj())]),
]


def swiglu(gate, up, alpha=1.0, beta=0.0, limit=np.inf):
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return [gate * sigmoid(alpha * gate) * (up + beta)]


def branches(x, scale=None, count=1):
    rows = x.reshape(*x.shape[:-1], count, -1)
    y = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5)
    return [(y * (1 if scale is None else scale.reshape(-1, rows.shape[-1]))).reshape(x.shape)]


GATES = [
    Case("SwiGLU", [f(2, 3, 4), f(2, 3, 4)], expected=swiglu),
    Case(
        "SwiGLU",
        [3 * f(2, 3, 8)],
        {"activation_alpha": 1.7, "activation_beta": 1.0, "limit": 2.0},
        expected=lambda x: swiglu(x[..., :4], x[..., 4:], 1.7, 1.0, 2.0),
    ),
    Case(
        "LinearAttentionGate",
        [f(2, 3, 4), f(4), f(4), f(2, 3, 4)],
        outputs=2,
        expected=lambda a, bias, scale, b: [scale * np.log1p(np.exp(a + bias)), sigmoid(b)],
    ),
    Case("BranchwiseRMSNorm", [f(2, 3, 8)], expected=branches),
    Case("BranchwiseRMSNorm", [f(2, 3, 8), f(8)], {"num_branches": 2}, expected=lambda x, s: branches(x, s, 2)),
    Case("BranchwiseRMSNorm", [f(2, 3, 8), f(4)], {"num_branches": 2}, expected=lambda x, s: branches(x, s, 2)),
]


def streams(layout, section, half):
    """Which of three positions turns a pair."""
    if not layout:
        return np.repeat(np.arange(3), section)
    return np.array([i % 3 if i % 3 and i < 3 * section[i % 3] else 0 for i in range(half)])


def rotated(x, positions, cos, sin, layout, section, interleaved):
    half = cos.shape[1]
    which, at = streams(layout, section, half), np.arange(half)
    c, s = (t[positions.transpose(1, 2, 0)[..., which], at][:, None] for t in (cos, sin))  # (batch, 1, rows, half)
    heads = x.reshape(*x.shape[:2], -1, 2 * half).transpose(0, 2, 1, 3)
    a, b = (heads[..., 0::2], heads[..., 1::2]) if interleaved else (heads[..., :half], heads[..., half:])
    y = [a * c - b * s, a * s + b * c]
    joined = np.stack(y, -1).reshape(heads.shape) if interleaved else np.concatenate(y, -1)
    return [joined.transpose(0, 2, 1, 3).reshape(x.shape)]


POSITIONS = random.integers(0, 9, (3, 2, 5))
ROTATIONS = [
    Case(
        "MRotaryEmbedding",
        [f(2, 5, 32), POSITIONS, f(9, 8), f(9, 8)],
        {"mrope_section": section, "mrope_layout": layout, "interleaved": interleaved},
        stored=(2, 3),
        shapes={0: ("batch", "rows", 32), 1: (3, "batch", "rows")},
        expected=lambda x, p, c, s, how=(layout, section, interleaved): rotated(x, p, c, s, *how),
    )
    for layout, section, interleaved in ((0, [2, 3, 3], 0), (0, [8, 0, 0], 1), (1, [4, 2, 2], 0))
]


def gemma(emb, q, q_rot, k, k_rot):
    cos, sin = np.cos(emb)[:, None], np.sin(emb)[:, None]
    return [q * cos + q_rot * sin, k * cos + k_rot * sin]


OTHERS = [
    Case("GemmaRotaryEmbedding", [f(2, 3, 4), *(f(2, 2, 3, 4) for _ in range(4))], outputs=2, expected=gemma),
    Case("MemcpyToHost", [f(2, 3)], domain="", expected=lambda x: [x]),
    Case("MemcpyFromHost", [f(2, 3)], domain="", expected=lambda x: [x]),
]


@pytest.mark.parametrize("case", [*SPECTRA, *GATES, *ROTATIONS, *OTHERS], ids=str)
def test_operator(case):
    check(case)


def test_rotations_by_three_positions_are_those_of_onnxruntime():
    half = [x.astype(np.float16) for x in (f(2, 5, 32), f(9, 8), f(9, 8))]
    for layout, section in ((0, [2, 3, 3]), (1, [4, 2, 2])):
        given = [half[0], POSITIONS, *half[1:]]
        attributes = {"mrope_section": section, "mrope_layout": layout, "num_heads": 2}
        check(Case("MRotaryEmbedding", given, attributes, gradient=False, tolerance=(1e-2, 1e-2)))

"""Float operators of onnxruntime's domain: activations, sums, products, norms, convolutions."""

import math

import numpy as np
import pytest

from tests.importers.microsoft.operator_case import Case, check
from tests.importers.peer_weights import weights

random = np.random.default_rng(0)
LEAD = ("batch", "length")


def f(*shape):
    return random.standard_normal(shape).astype(np.float32)


def i(limit, *shape, dtype=np.int32):
    return random.integers(0, limit, shape).astype(dtype)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def erf_gelu(x):
    return (x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))).astype(np.float32)


def group_norm(x, gamma, beta, groups, channels_last, silu, epsilon=1e-5):
    x = np.moveaxis(x, -1, 1) if channels_last else x
    rows = x.reshape(x.shape[0], groups, -1).astype(np.float64)
    y = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + epsilon)
    y = y.reshape(x.shape) * gamma[:, None, None] + beta[:, None, None]
    y = y * sigmoid(y) if silu else y
    return (np.moveaxis(y, 1, -1) if channels_last else y).astype(np.float32)


def rms(x, scale, epsilon=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale


ACTIVATIONS = [
    Case("Gelu", [f(3, 5)]),
    Case("BiasGelu", [f(2, 3, 8), f(8)], stored=(1,), shapes={0: (*LEAD, 8)}),
    Case("FastGelu", [f(2, 3, 8)]),
    Case("FastGelu", [f(2, 3, 8), f(8)], shapes={0: (*LEAD, 8)}),
    Case("QuickGelu", [f(4, 3)]),
    Case("QuickGelu", [f(4, 3)], {"alpha": 1.0}),
    Case("BiasSplitGelu", [f(2, 3, 8), f(8)], expected=lambda x, b: [(x + b)[..., :4] * erf_gelu((x + b)[..., 4:])]),
    Case("ScaledSiLU", [f(4, 3)], {"alpha": 0.5}, expected=lambda x: [0.5 * x * sigmoid(0.5 * x)]),
    Case("ScaledSiLU", [f(4, 3), f(1)], expected=lambda x, s: [s * x * sigmoid(s * x)]),
    Case("BiasAdd", [f(2, 3, 8), f(8), f(2, 3, 8)], expected=lambda x, b, s: [x + b + s]),
    Case("GatedAdd", [f(2, 3, 8), f(2, 3, 8), f(2, 3, 1)], expected=lambda x, y, g: [x + y * g]),
    Case(
        "MulInteger",
        [i(255, 2, 3, dtype=np.uint8), np.uint8(3), i(255, 3, dtype=np.uint8), np.uint8(200)],
        expected=lambda a, s, b, z: [(a.astype(np.int32) - int(s)) * (b.astype(np.int32) - int(z))],
        gradient=False,
        tolerance=(0, 0),
    ),
    Case("BiasDropout", [f(2, 3, 8), f(8), f(2, 3, 8)], outputs=2, expected=lambda x, b, r: [x + b + r, x == x]),
    Case("BitmaskBiasDropout", [f(2, 8), f(8)], expected=lambda x, b: [x + b]),
    Case("BitmaskDropout", [f(2, 8)], expected=lambda x: [x]),
    Case(
        "BiasSoftmax",
        [f(2, 3, 4, 5), f(2, 1, 1, 5)],
        {"axis": 3, "is_inner_broadcast": 1},
        expected=lambda x, b: [np.exp(x + b) / np.exp(x + b).sum(-1, keepdims=True)],
    ),
    Case(
        "BiasSoftmax",
        [f(2, 3, 4, 5), f(3, 4, 5)],
        {"axis": 2, "is_inner_broadcast": 0},
        expected=lambda x, b: [np.exp(x + b) / np.exp(x + b).sum((-2, -1), keepdims=True)],
    ),
]

PRODUCTS = [
    Case("FusedMatMul", [f(2, 3, 4), f(4, 5)], {"alpha": 0.5}, shapes={0: (*LEAD, 4)}),
    Case("FusedMatMul", [f(2, 3, 4), f(2, 5, 4)], {"transB": 1, "alpha": 0.25}),
    Case("FusedMatMul", [f(2, 4, 3), f(2, 5, 4)], {"transA": 1, "transB": 1}),
    Case("FusedMatMul", [f(4), f(5, 4)], {"transB": 1, "transA": 1}),
    Case("FusedMatMul", [f(3, 2, 4), f(4, 2, 5)], {"transBatchA": 1, "transBatchB": 1}),
    Case("FusedMatMul", [f(4, 2, 6, 3), f(5, 2, 6, 4)], {"transA": 1, "transBatchA": 1, "transBatchB": 1, "transB": 1}),
    Case("TransposeMatMul", [f(4, 3), f(4, 5)], {"transA": 1}),
    Case(
        "FusedMatMulActivation",
        [f(3, 4), f(5, 4)],
        {"transB": 1, "activation": "Relu"},
        expected=lambda a, b: [np.maximum(a @ b.T, 0)],
    ),
    Case("FusedGemm", [f(3, 4), f(4, 5), f(5)], {"activation": "Relu"}),
    Case(
        "FusedGemm",
        [f(4, 3), f(5, 4), f(3, 1)],
        {"activation": "Tanh", "transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0},
    ),
    Case("FusedGemm", [f(3, 4), f(4, 5)], {"activation": "LeakyRelu", "activation_alpha": 0.3}),
    Case(
        "GemmFastGelu",
        [f(2, 3, 4), f(4, 5), f(5)],
        expected=lambda x, w, b: [(lambda z: 0.5 * z * (1 + np.tanh(0.7978845608 * (z + 0.044715 * z**3))))(x @ w + b)],
    ),
    Case("CDist", [f(3, 4), f(5, 4)], {"metric": "euclidean"}),
    Case("CDist", [f(3, 4), f(5, 4)]),
]

EMBEDDING = [i(7, 2, 3), i(2, 2, 3), f(7, 8), f(6, 8), f(2, 8), f(8), f(8)]
NORMS = [
    Case("LayerNormalization", [f(2, 3, 8), f(8), f(8)], domain="", opset=12),
    Case("LayerNormalization", [f(2, 3, 8), f(8)], {"epsilon": 0.1}, domain="", opset=16, shapes={0: (*LEAD, 8)}),
    Case("SimplifiedLayerNormalization", [f(2, 3, 8), f(8)], {"epsilon": 0.1}, outputs=2, domain=""),
    Case("SimplifiedLayerNormalization", [f(2, 3, 8), f(3, 8)], {"axis": 1}, domain=""),
    Case("SkipLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)], {"epsilon": 1e-3}, outputs=(0, 3)),
    Case("SkipLayerNormalization", [f(2, 3, 8), f(3, 8), f(8)], stored=(2,), shapes={0: (*LEAD, 8), 1: ("length", 8)}),
    Case("SkipLayerNormalization", [f(2, 3, 8), f(1, 3, 8), f(8), f(8)]),
    Case(
        "SkipSimplifiedLayerNormalization",
        [f(2, 3, 8), f(2, 3, 8), f(8)],
        outputs=(0, 3),
        shapes={0: (*LEAD, 8), 1: (*LEAD, 8)},
    ),
    Case("SkipSimplifiedLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8), f(8)]),
    Case("EmbedLayerNormalization", [*EMBEDDING, i(2, 2, 3)], outputs=3, shapes=dict.fromkeys((0, 1, 7), LEAD)),
    Case(
        "EmbedLayerNormalization",
        [EMBEDDING[0], None, *EMBEDDING[2:4], None, *EMBEDDING[5:]],
        {"epsilon": 1e-3},
        outputs=2,
    ),
    Case("EmbedLayerNormalization", [*EMBEDDING, None, i(6, 2, 3)], outputs=(0, 2), stored=(2, 3, 4, 5, 6)),
    Case("EmbedLayerNormalization", [*EMBEDDING, None, i(6, 1, 3)], outputs=2),
    *(
        Case(
            "GroupNorm",
            [f(2, 4, 6, 4), f(4), f(4)],
            {"channels_last": last, "groups": 2, "activation": last},
            expected=lambda x, g, b, last=last: [group_norm(x, g, b, 2, last, last)],
        )
        for last in (0, 1)
    ),
    *(
        Case(
            "SkipGroupNorm",
            [f(2, 3, 5, 4), f(4), f(4), skip, f(4)],
            {"groups": 2, "activation": 0},
            outputs=2,
            expected=lambda x, g, b, s, d: [
                group_norm(x + s.reshape(2, *s.shape[1:-1] or (1, 1), 4) + d, g, b, 2, 1, 0),
                x + s.reshape(2, *s.shape[1:-1] or (1, 1), 4) + d,
            ],
        )
        for skip in (f(2, 3, 5, 4), f(2, 1, 1, 4), f(2, 4))
    ),
    Case(
        "GatedRMSNorm",
        [f(2, 3, 8), f(4), f(2, 3, 8)],
        {"activation": "sigmoid"},
        expected=lambda x, s, g: [rms(x.reshape(2, 3, 2, 4), s).reshape(x.shape) * sigmoid(g)],
    ),
]


def nhwc(x, w, *more):
    """A convolution with channels last, padded to keep its sizes."""
    height, width = x.shape[1:3]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = (padded[:, i : i + height, j : j + width] @ w[:, :, i, j].T for i in range(3) for j in range(3))
    return sum(windows) + sum(more)


CONVOLUTIONS = [
    Case(
        "FusedConv", [f(2, 3, 6, 6), f(4, 3, 3, 3), f(4)], {"activation": "Relu", "pads": [1, 1, 1, 1]}, gradient=False
    ),
    Case("FusedConv", [f(2, 3, 6, 6), f(4, 3, 3, 3), f(4), f(2, 4, 4, 4)], {"activation": "Relu"}, gradient=False),
    Case(
        "FusedConv", [f(2, 4, 6, 6), f(4, 2, 3, 3)], {"activation": "LeakyRelu", "activation_params": [0.2], "group": 2}
    ),
    Case("FusedConv", [f(2, 3, 6, 6), f(4, 3, 3, 3)], {"activation": "Clip", "activation_params": [-0.5, 1.0]}),
    Case("FusedConv", [f(2, 3, 6, 6), f(4, 3, 3, 3)], {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}),
    Case("FusedConv", [f(2, 3, 6), f(4, 3, 3)], {"activation": "Tanh", "strides": [2]}),
    Case(
        "NhwcConv",  # whose weight has its channels last too
        [f(2, 5, 6, 2), f(4, 3, 3, 2)],
        {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]},
        expected=lambda x, w: [nhwc(x, w.transpose(0, 3, 1, 2))],
    ),
    Case(
        "NhwcFusedConv",
        [f(2, 5, 6, 3), f(4, 3, 3, 3), f(4), f(2, 5, 6, 4)],
        {"pads": [1, 1, 1, 1], "activation": "Tanh"},
        expected=lambda *xs: [np.tanh(nhwc(*xs))],
    ),
    Case(
        "ConvTransposeWithDynamicPads",
        [f(1, 3, 4, 4), f(3, 2, 3, 3), np.array([1, 0, 1, 1]), f(2)],
        {"strides": [2, 2]},
        stored=(2,),
    ),
]


SHAPES = [
    Case("SampleOp", [f(2, 3)]),
    Case("ExpandDims", [f(2, 3), np.array([-1], np.int32)], stored=(1,)),
    Case("Pad", [f(2, 3), np.array([0, 1, 2, 0]), f(1)], stored=(1,), gradient=False),
    Case("Trilu", [f(2, 4, 3), np.array(1)], {"upper": 0}, stored=(1,)),
    Case("Range", [np.float32(1), np.float32(8), np.float32(2.5)], stored=(0, 1, 2), gradient=False),
    Case("Range", [np.array(3), np.array(7)], stored=(0, 1), gradient=False, tolerance=(0, 0)),
    Case("UnfoldTensor", [f(2, 7, 3)], {"dim": 1, "size": 3, "step": 2}),
    Case("GatherND", [f(3, 4, 2), i(3, 2, 2)]),
    Case("TorchEmbedding", [f(7, 3), i(7, 2, 2, dtype=np.int64)], expected=lambda w, ids: [w[ids]]),
    Case(
        "ImageScaler",
        [f(2, 3, 4, 5)],
        {"scale": 0.5, "bias": [1.0, 2.0, 3.0]},
        domain="",
        expected=lambda x: [x * 0.5 + np.arange(1, 4, dtype=np.float32)[:, None, None]],
    ),
    Case("Crop", [f(2, 3, 6, 7)], {"border": [1, 2, 3, 1]}, domain="", expected=lambda x: [x[:, :, 2:5, 1:4]]),
    Case(
        "Crop",
        [f(1, 3, 6, 7)],
        {"border": [1, 2, 0, 0], "scale": [3, 2]},
        domain="",
        expected=lambda x: [x[:, :, 2:5, 1:3]],
    ),
    Case(
        "NhwcMaxPool",
        [i(255, 2, 6, 5, 3, dtype=np.uint8)],
        {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]},
        gradient=False,
        tolerance=(0, 0),
    ),
]

RANDOM_BOXES = np.array([[0.11, 0.21, 0.83, 0.93], [-0.23, 0.31, 1.32, 0.67], [0.91, 0.73, 0.14, 0.26]], np.float32)
SAMPLED = [
    Case("GridSample", [f(2, 3, 4, 5), f(2, 3, 2, 2)], {"mode": "bicubic", "padding_mode": "border"}),
    *(
        Case(
            "CropAndResize",
            [f(2, 3, 6, 5), RANDOM_BOXES, np.array([1, 0, 1], np.int32), np.array(size, np.int32)],
            {"mode": mode, "extrapolation_value": 0.5},
            stored=(1, 2, 3),
            shapes={0: ("batch", 3, "height", 5)},
            gradient=mode == "bilinear",
        )
        for size, mode in (((4, 3), "bilinear"), ((1, 2), "bilinear"), ((3, 4), "nearest"))
    ),
    Case("Unique", [np.array([2.0, 1, 1, 3, 4, 3], np.float32)], outputs=3, gradient=False),
]
OLDER = [  # of ONNX before opset 10
    Case("Affine", [f(3, 4)], {"alpha": 0.5, "beta": 2.0}, domain="", opset=9),
    Case("Scale", [f(3, 4)], {"scale": 0.3}, domain="", opset=9),
    Case("ParametricSoftplus", [f(3, 4)], {"alpha": 0.5, "beta": 2.0}, domain="", opset=9),
    Case("ScaledTanh", [f(3, 4)], {"alpha": 0.5, "beta": 2.0}, domain="", opset=9),
]
MATRICES = [
    Case("Inverse", [f(3, 3) / 4 + 2 * np.eye(3, dtype=np.float32)]),
    Case("Inverse", [f(2, 2, 7, 7) / 4 + 2 * np.eye(7, dtype=np.float32)], shapes={0: ("a", "b", "n", "n")}),
    Case(
        "LinearAttention",
        [f(2, 5, 12), f(2, 5, 6), f(2, 5, 8), f(2, 2, 3, 4), -abs(f(2, 5, 2)), sigmoid(f(2, 5, 2))],
        {"q_num_heads": 4, "kv_num_heads": 2},
        outputs=2,
    ),
    *(  # fewer heads of queries than of values, which share them; and of keys as of values, as of queries, and one
        Case(
            "LinearAttention",
            [f(2, 3, 6), f(2, 3, 3 * keys), f(2, 3, 8), f(2, 4, 3, 2), -abs(f(2, 3, 4)), sigmoid(f(2, 3, 1))],
            {"q_num_heads": 2, "kv_num_heads": 4},
            outputs=2,
        )
        for keys in (4, 2, 1)
    ),
    Case(
        "LinearAttention",
        [f(2, 3, 12), f(2, 3, 3), f(2, 3, 8)],
        {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "linear"},
        outputs=2,
    ),
    Case("CausalConvWithState", [f(2, 4, 6), f(4, 1, 3), f(4), f(2, 4, 2)], {"activation": "silu"}, outputs=2),
]


EXPERTS = {"k": 2, "normalize_routing_weights": 1}
MIXTURES = [
    Case("MoE", [f(6, 8), f(6, 4), f(4, 5, 8), f(4, 5), f(4, 8, 5), f(4, 8)], {"activation_type": "gelu"}),
    Case("MoE", [f(2, 3, 8), f(6, 4), f(4, 5, 8), None, f(4, 8, 5)], {**EXPERTS, "activation_type": "silu"}),
    Case(
        "MoE",
        [f(6, 8), f(6, 4), f(4, 10, 8), f(4, 10), f(4, 8, 5), f(4, 8)],
        {
            **EXPERTS,
            "activation_type": "swiglu",
            "swiglu_fusion": 1,
            "activation_alpha": 1.7,
            "activation_beta": 1.0,
            "swiglu_limit": 7.0,
        },
    ),
    *(
        Case(
            "QMoE",
            [
                f(6, 32),
                f(6, 4),
                i(256, 4, 64, 32 * bits // 8, dtype=np.uint8),
                abs(f(4, 64, *blocks)) / 8,
                f(4, 64),
                i(256, 4, 32, 32 * bits // 8, dtype=np.uint8),
                abs(f(4, 32, *blocks)) / 8,
                f(4, 32),
                *(None,) * 3,
                *zeros,
            ],
            {
                **EXPERTS,
                "activation_type": "swiglu",
                "swiglu_fusion": 1,
                "activation_alpha": 1.7,
                "expert_weight_bits": bits,
                **({"block_size": 16} if blocks else {}),
            },
            stored=(2, 3, 5, 6, 11, 12),
            gradient=False,
        )
        for bits, blocks, zeros in (
            (4, (), ()),
            (4, (2,), ()),
            (4, (2,), (i(256, 4, 64, 1, dtype=np.uint8), i(256, 4, 32, 1, dtype=np.uint8))),
            (8, (), ()),
        )
    ),
]


def lstm(dirs, size, hidden, per_gate=False, kind=np.int8, zero=0, lengths=None, peepholes=False):
    """Integers, scales and zero points of weights, and their operands."""
    shape = (dirs, 4 * hidden) if per_gate else (dirs,)
    integers = [weights(random, kind, (dirs, n, 4 * hidden)) for n in (size, hidden)]
    scales = [(abs(f(*shape)) * 0.002 + 0.002) for _ in integers]
    zeros = [np.full(shape, zero, kind) for _ in integers]
    states = [f(dirs, 2, hidden), f(dirs, 2, hidden), f(dirs, 3 * hidden) if peepholes else None]
    operands = [f(5, 2, size), *integers, f(dirs, 8 * hidden), lengths, *states]
    return [*operands, scales[0], zeros[0], scales[1], zeros[1]]


RECURRENT = [
    Case(
        "DynamicQuantizeLSTM",
        lstm(dirs, 3, 4, **form),
        {"hidden_size": 4, "direction": direction},
        outputs=3,
        stored=(1, 2, 8, 9, 10, 11),
        gradient=False,  # results are steps of inputs and states
        # onnxruntime takes states of 0 behind the end of a sequence, which changes the scale of the others'
        tolerance=(0, 0.02) if "lengths" in form else (1e-4, 1e-5),
    )
    for dirs, direction, form in [
        (1, "forward", {}),
        (1, "reverse", {"kind": np.uint8, "zero": 120}),
        (1, "forward", {"lengths": np.array([5, 3], np.int32)}),
        (2, "bidirectional", {"per_gate": True, "peepholes": True}),
    ]
]


@pytest.mark.parametrize(
    "case",
    [*ACTIVATIONS, *PRODUCTS, *NORMS, *CONVOLUTIONS, *SHAPES, *MIXTURES, *RECURRENT, *SAMPLED, *OLDER, *MATRICES],
    ids=str,
)
def test_operator(case):
    check(case)

"""Hashes, repeated n-grams, residual streams and routers of onnxruntime's domain, against its kernels."""

import hashlib
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.importers.microsoft.operator_case import Case, check, of_onnxruntime
from tests.support import onnx_model

random = np.random.default_rng(0)


def f(*shape):
    return random.standard_normal(shape).astype(np.float32)


def i(high, *shape, dtype=np.int64):
    return random.integers(0, high, shape).astype(dtype)


def router(**attributes):
    return {"top_k": 2, **attributes}


LONG = np.array([0, 1, -1, (1 << 62) + 12345, -(1 << 63)])
HASHES = [
    Case("MurmurHash3", [i(1 << 31, 2, 3, dtype=np.int32)], gradient=False, tolerance=(0, 0)),
    Case("MurmurHash3", [LONG], {"seed": 42, "positive": 0}, gradient=False, tolerance=(0, 0)),
    Case("MurmurHash3", [LONG.astype(np.uint64)], {"seed": (1 << 31) - 1}, gradient=False, tolerance=(0, 0)),
    Case("MurmurHash3", [i(1 << 32, 0, 2, dtype=np.uint32)], gradient=False, tolerance=(0, 0)),
    Case("MurmurHash3", [f(3, 2)], {"positive": 0}, gradient=False, tolerance=(0, 0)),
    Case("MurmurHash3", [f(4).astype(np.float64)], gradient=False, tolerance=(0, 0), shapes={0: ("n",)}),
]


def ngrams(size, *optional, tokens=6, dtype=np.int64, scale=10**6, **attributes):
    heads, count = 3, (size - 1) * 3
    past, offsets, eos, segments = (*optional, *(False,) * 4)[:4]
    operands = [
        i(4, 2, tokens, dtype=dtype),
        i(scale, size, dtype=dtype) * 2 + 1,
        i(90, count, dtype=dtype) + 7,
        i(4, 2, size - 1, dtype=dtype) if past else None,
        i(1000, count, dtype=dtype) if offsets else None,
        np.array(2, dtype) if eos else None,
        np.sort(i(3, 2, tokens, dtype=np.int32)) if segments else None,
    ]
    while operands[-1] is None:
        operands.pop()
    given = {"max_ngram_size": size, "n_head_per_ngram": heads, "pad_id": 1, **attributes}
    shapes = {n: ("batch", "tokens") for n in (0, 6) if n < len(operands)}
    shapes |= {3: ("batch", size - 1)} if past else {}
    return Case("NGramHashMapping", operands, given, 2, gradient=False, tolerance=(0, 0), shapes=shapes)


NGRAMS = [
    ngrams(2),
    ngrams(3, True),
    ngrams(4, False, True),
    ngrams(3, False, False, True),
    ngrams(4, False, False, True, reset_on_eos=1),
    ngrams(3, True, True, True, True, reset_on_eos=1),
    ngrams(4, True, False, False, True),
    ngrams(3, tokens=1),
    ngrams(3, True, dtype=np.int32, scale=1 << 30),
    ngrams(4, scale=1 << 62),
]

REPEATS = [
    Case(
        "NGramRepeatBlock",
        [i(3, 4, 9), f(4, 5)],
        {"ngram_size": size},
        shapes={0: ("batch", "rows"), 1: ("batch", 5)},
        gradient=False,
    )
    for size in (1, 2, 3, 4)
] + [
    Case("NGramRepeatBlock", [i(3, 2, rows), f(2, 4)], {"ngram_size": 3}, shapes={0: (2, "rows")}, gradient=False)
    for rows in (1, 2, 3)
]

WORDS = np.array([[3, 1, 2, 4, 0], [1, 0, 0, 0, 0], [5, 2, 0, 1, 0], [2, 2, 2, 2, 2]], np.int32)
EMBEDDED = [
    Case("WordConvEmbedding", [WORDS, f(3, 1, 2, 4), f(3), f(6, 4)], shapes={0: ("words", 5)}),
    Case("WordConvEmbedding", [WORDS, f(3, 1, 3, 4), f(3), f(6, 4)], {"embedding_size": 3, "conv_window_size": 3}),
    Case("WordConvEmbedding", [WORDS, f(2, 1, 5, 1), f(2), f(6, 1)], {"char_embedding_size": 1}),
]


def written(source, tokens, at, predicted=None, **sizes):
    arrays = [np.array(a) if a is not None else None for a in (source, tokens, [at], predicted)]
    named = {n: (f"n{n}",) for n in (0, 1, 3) if arrays[n] is not None}
    return Case("BifurcationDetector", arrays, sizes, 2, shapes=named, gradient=False, tolerance=(0, 0))


AGGRESSIVE = [
    written([4, 5, 6, 7], [1], 0, [4, 5, 9, 7, 8]),  # unlike from the third on
    written([4, 5, 6, 7], [1], 0, [4, 5, 6, 7, 8]),
    written([4, 5, 6, 7], [1, 2], 4, [6]),
    written([4, 5, 4, 6, 4, 5], [3, 4, 5], 0),  # twice
    written([4, 5, 4, 6, 4, 5], [3, 6, 4], 0, min_ngram_size=1, max_ngram_size=2),
    written([4, 5, 4, 6, 4, 5], [4], 0, min_ngram_size=2, max_ngram_size=3),  # fewer tokens than an n-gram has
    written([4, 5, 4, 6, 4, 5], [1], 2, [4, 6, 5, 5, 5], min_ngram_size=2, max_ngram_size=4),
]

GROUPED = {0: ("batch", "rows", 3, 4), 1: ("batch", "rows", 3)}
STREAMS = [
    Case("HyperConnectionPreMix", [f(2, 5, 3, 4), f(2, 5, 3)], shapes=GROUPED),
    Case("HyperConnectionPreMix", [f(2, 5, 3, 4), f(2, 5, 3, 1)], {"reduction_scale": 0.5}),
    Case("HyperConnectionPreMix", [f(2, 5, 3, 4), f(2, 5, 3, 4)]),
    Case("HyperConnectionPreMix", [f(2, 5, 12), f(2, 5, 3)], {"num_branches": 3}),
    Case("HyperConnectionPreMix", [f(2, 5, 12), f(2, 5, 12)], {"num_branches": 3}),
    Case("HyperConnectionPostMix", [f(2, 5, 3, 4), f(2, 5, 4), f(2, 5, 3), f(2, 5, 3, 3)]),
    Case("HyperConnectionPostMix", [f(2, 5, 3, 4), f(2, 5, 4), f(2, 5, 3, 1)]),
    Case("HyperConnectionPostMix", [f(2, 5, 3, 4), f(2, 5, 4), f(2, 5, 3, 4), f(2, 5, 3, 3)]),
    Case("HyperConnectionPostMix", [f(2, 5, 12), f(2, 5, 4), f(2, 5, 3), f(2, 5, 3, 3)], {"num_branches": 3}),
    Case("EngramGate", [f(2, 3, 2, 8), f(2, 3, 2, 8), f(2, 3, 8), f(2, 8), f(2, 8)]),
    Case("EngramGate", [f(2, 3, 2, 8), f(2, 3, 2, 8), f(2, 3, 8), f(2, 8), f(2, 8), f(2, 8)], {"epsilon": 0.1}, 2),
]

ROUTERS = [
    Case("MoEGroupRouter", [f(5, 8), f(8)], router(), gradient=False, shapes={0: ("tokens", 8)}),
    Case("MoEGroupRouter", [f(2, 3, 8), f(8)], router(n_group=4, topk_group=2), gradient=False),
    Case("MoEGroupRouter", [f(5, 12), f(12)], router(n_group=3, topk_group=2, group_topk=3, router_sentinel=-5.0),
         gradient=False),
    Case("MoEGroupRouter", [f(5, 8), f(8)], router(n_group=8, topk_group=3, group_topk=2), gradient=False),
]  # fmt: skip


@pytest.mark.parametrize("case", HASHES + NGRAMS + REPEATS + EMBEDDED + AGGRESSIVE + STREAMS + ROUTERS, ids=str)
def test_operator(case):
    check(case)


def test_words_without_characters_are_zeros():
    """onnxruntime writes nothing there."""
    case = Case("WordConvEmbedding", [WORDS, f(3, 1, 2, 4), f(3), f(6, 4)])
    (expected,) = of_onnxruntime(case.model(), case.feeds())
    feeds = case.feeds() | {"x0": np.concatenate([WORDS, np.int32([[0, 0, 0, 0, 0], [0, 3, 1, 0, 0]])])}
    wider = replace(case, inputs=list(feeds.values()))
    found = df.Session(load_bytes(wider.model().SerializeToString()), devices=["cpu"]).run(feeds)["y0"]
    np.testing.assert_allclose(found, np.concatenate([expected, np.zeros((2, 3), np.float32)]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attributes", [{}, {"seed": 7, "positive": 0}], ids=str)
def test_hashes_of_texts(attributes):
    texts = [hashlib.sha256(bytes([n])).hexdigest()[:n] for n in range(12)] + ["\N{SNOWMAN}", "straße", "日本", "a\0"]
    x = np.array(texts, object).reshape(4, 4)
    node = helper.make_node("MurmurHash3", ["x"], ["y"], domain="com.microsoft", **attributes)
    kind = TensorProto.UINT32 if attributes.get("positive", 1) else TensorProto.INT32
    data = onnx_model(
        [node], [("x", TensorProto.STRING, ("n", 4))], [("y", kind, ("n", 4))], domains=["com.microsoft"]
    ).SerializeToString()
    expected = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    for device in ("cpu", "numpy"):
        found = df.Session(load_bytes(data), devices=[device]).run({"x": x})["y"]
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)

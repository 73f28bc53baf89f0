"""Attention, caches and positions of onnxruntime's domain."""

import itertools
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.importers.microsoft.operator_case import Case, check, of_onnxruntime

random = np.random.default_rng(1)
B, S, N, H = 2, 3, 2, 8
D = N * H


def f(*shape):
    return random.standard_normal(shape).astype(np.float32)


def ints(*values):
    return np.array(values, np.int32)


def tokens(size=D):
    return ("batch", "rows", size)


KEYS = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
ATTENTION = [
    Case("Attention", [f(B, S, 5), f(5, 3 * D), f(3 * D)], {"num_heads": N}, shapes={0: tokens(5)}),
    Case("Attention", [f(B, S, 5), f(5, 3 * D), f(3 * D)], {"num_heads": N, "unidirectional": 1}, stored=(1, 2)),
    Case("Attention", [f(B, S, 5), f(5, 3 * D), f(3 * D), KEYS], {"num_heads": N, "scale": 0.3}),
    Case("Attention", [f(B, S, 5), f(5, 3 * D), f(3 * D), KEYS], {"num_heads": N, "unidirectional": 1}),
    Case(
        "Attention",
        [f(B, S, 5), f(5, 3 * D), f(3 * D), KEYS],
        {"num_heads": N, "unidirectional": 1, "mask_filter_value": -1.0},
        shapes={0: tokens(5), 3: ("batch", "rows")},
    ),
    Case("Attention", [f(B, S, 5), f(5, 3 * D), f(3 * D), ints(2, 3)], {"num_heads": N, "mask_filter_value": -2.0}),
    Case("Attention", [f(B, S, 5), f(5, 3 * D), f(3 * D), ints(2, 3, 0, 1)], {"num_heads": N}),
    Case("Attention", [f(B, S, 5), f(5, 3 * D), f(3 * D), np.stack([KEYS] * S, 1)], {"num_heads": N}),
    Case("Attention", [f(B, S, 5), f(5, 2 * D + 6), f(2 * D + 6)], {"num_heads": N, "qkv_hidden_sizes": [D, D, 6]}),
    Case("Attention", [f(B, S, 5), f(5, 3 * D), f(3 * D), None, None, f(1, N, S, S)], {"num_heads": N}),
    Case("Attention", [f(B, S, 5), f(5, 3 * D), f(3 * D), None, f(2, B, N, 2, H)], {"num_heads": N}, outputs=2),
    Case(
        "Attention",
        [f(B, S, 5), f(5, 3 * D), f(3 * D), np.ones((B, S + 2), np.int32), f(2, B, N, 2, H)],
        {"num_heads": N, "unidirectional": 1},
        outputs=2,
        shapes={0: tokens(5), 3: ("batch", "all"), 4: (2, "batch", N, "past", H)},
    ),
    Case("MultiHeadAttention", [f(B, S, D), f(B, 5, D), f(B, 5, 6)], {"num_heads": N}, shapes={0: tokens()}),
    Case("MultiHeadAttention", [f(B, S, D), f(B, 5, D), f(B, 5, 6), f(2 * D + 6)], {"num_heads": N}, stored=(3,)),
    Case("MultiHeadAttention", [f(B, S, D)] * 3, {"num_heads": N, "unidirectional": 1, "scale": 0.2}),
    Case("MultiHeadAttention", [f(B, S, D), f(B, S, D), f(B, S, D), None, ints(2, 3)], {"num_heads": N}),
    Case("MultiHeadAttention", [f(B, S, D), f(B, S, D), f(B, S, D), None, KEYS, f(B, N, S, S)], {"num_heads": N}),
    Case("MultiHeadAttention", [f(B, S, D), f(B, N, 5, H), f(B, N, 5, H), f(3 * D)], {"num_heads": N}),
    Case("MultiHeadAttention", [f(B, S, D), f(B, N, 5, H), f(B, N, 5, H)], {"num_heads": N}),
    Case(
        "MultiHeadAttention",
        [f(B, S, D), f(B, S, D), f(B, S, D), f(3 * D), None, None, f(B, N, 2, H), f(B, N, 2, H)],
        {"num_heads": N, "unidirectional": 1},
        outputs=3,
        shapes={0: tokens(), 1: tokens(), 2: tokens(), 6: ("batch", N, "past", H), 7: ("batch", N, "past", H)},
    ),
]

ANGLES = [f(9, H // 2), f(9, H // 2)]
SIZE = 16  # of heads, as onnxruntime wants them for rotary embeddings
ROTATIONS = [f(9, SIZE // 2), f(9, SIZE // 2)]
POSITIONS = np.array([[0, 3, 8], [2, 1, 5]])
ROTARY = [
    Case("RotaryEmbedding", [f(B, S, D), POSITIONS, *ANGLES], shapes={0: tokens(), 1: ("batch", "rows")}),
    Case("RotaryEmbedding", [f(B, S, D), np.array([2]), *ANGLES], {"interleaved": 1}, stored=(2, 3)),
    Case("RotaryEmbedding", [f(B, N, S, H), POSITIONS, *ANGLES]),
    Case("RotaryEmbedding", [f(B, S, 24), POSITIONS, *ANGLES], {"num_heads": N, "rotary_embedding_dim": H}),
]


def grouped(lengths, past, rows, kv=1, heads=2, merged=False, extra=(), buffer=0, **attributes):
    """A case with so many new rows behind caches of which so many keys are valid.

    ``buffer``: how many keys the cache holds, where it isn't one that grows.
    """
    batch = len(lengths)
    operands = [f(batch, rows, heads * SIZE), f(batch, rows, kv * SIZE), f(batch, rows, kv * SIZE)]
    if merged:
        operands = [np.concatenate(operands, -1), None, None]
    held = buffer or past
    operands += [f(batch, kv, held, SIZE), f(batch, kv, held, SIZE)] if held else [None, None]
    total = past + rows
    known = attributes.pop("known", True)
    operands += [np.array(lengths, np.int32) + rows - 1, np.array(total, np.int32), *extra]
    given = {"num_heads": heads, "kv_num_heads": kv, **attributes}
    named = ("batch", "rows")
    shapes = {i: (*named, operands[i].shape[2]) for i in range(3) if operands[i] is not None}
    shapes |= {i: ("batch", kv, "past", SIZE) for i in (3, 4) if held}
    return Case("GroupQueryAttention", operands, given, outputs=3, stored=(6,) * known, shapes=shapes)


CACHES = [([0, 0], 0, 3), ([4, 4], 4, 1), ([2, 4], 4, 1), ([3], 3, 2)]
QUERIES = [
    *(
        grouped(*sizes, do_rotary=rotary, extra=ROTATIONS * rotary)
        for sizes, rotary in itertools.product(CACHES, (0, 1))
    ),
    grouped([0, 0], 0, 3, merged=True, do_rotary=1, rotary_interleaved=1, extra=ROTATIONS),
    grouped([4, 4], 4, 1, kv=2, heads=4, local_window_size=3),
    grouped([0, 0], 0, 6, local_window_size=2),
    grouped([2, 4], 4, 1, softcap=0.7, scale=0.4),
    grouped([2, 4], 4, 1, smooth_softmax=1),
    grouped([2, 4], 4, 1, known=False),
    grouped([0, 0], 0, 3, known=False, do_rotary=1, extra=[*ROTATIONS, np.array([[2, 3, 4], [0, 1, 2]])]),
    grouped([4, 4], 4, 1, do_rotary=1, extra=[*ROTATIONS, np.array([[2], [7]])]),
    grouped([2, 4], 4, 1, extra=[None, None, None, f(2, 2, 1, 5)]),
    grouped([0, 0], 0, 3, extra=[None, None, None, None, f(2)]),
    grouped([0, 0], 0, 3, buffer=7),
    grouped([4, 4], 4, 1, buffer=7, do_rotary=1, extra=ROTATIONS),
    grouped([2, 4], 4, 1, buffer=5, kv=2, heads=4, local_window_size=3),
    grouped([3], 3, 2, buffer=7, extra=[None, None, None, f(1, 2, 2, 5)]),
]


@pytest.mark.parametrize("case", [*ATTENTION, *ROTARY, *QUERIES], ids=str)
def test_operator(case):
    check(case)


def t5_bias(table, rows, keys, most, both):
    """As transformers' T5 computes it, from a table (heads, buckets)."""
    distance = np.arange(keys)[None] - np.arange(rows)[:, None]
    count, first = table.shape[1], np.zeros_like(distance)
    if both:
        count //= 2
        first, distance = (distance > 0) * count, abs(distance)
    else:
        distance = -np.minimum(distance, 0)
    exact = count // 2
    far = exact + (np.log(np.maximum(distance, 1) / exact) / np.log(most / exact) * (count - exact)).astype(np.int64)
    bucket = first + np.where(distance < exact, distance, np.minimum(far, count - 1))
    return table[:, bucket][None]


@pytest.mark.parametrize("both", [0, 1])
def test_relative_biases_are_those_of_t5(both):
    table = f(8, 2)
    inputs = [table, np.array(9), np.array(7)]
    expected = [t5_bias(table.reshape(2, 8), 9, 7, 6, both)]
    attributes = {"max_distance": 6, "is_bidirectional": both}
    check(Case("RelativePositionBias", inputs, attributes, stored=(1, 2), expected=lambda *_: expected))


def test_gates_of_relative_biases_are_sums_of_halves():
    q, shift, relative, w, b, a = f(B, S, D), f(D), f(1, N, S, S), f(H, 6), f(6), f(1, N, 1, 1)
    heads = (q + shift).reshape(B, S, N, H).transpose(0, 2, 1, 3)
    u, r = (1 / (1 + np.exp(-half.sum(-1, keepdims=True))) for half in np.split(heads @ w + b, 2, -1))
    expected = [((u * (r * a - 1) + 2) * relative).astype(np.float32)]
    check(
        Case("GatedRelativePositionBias", [q, shift, relative, w, b, a], {"num_heads": N}, expected=lambda *_: expected)
    )


def test_norms_of_queries_and_keys_come_before_the_product():
    plain, weights = grouped([0, 0], 0, 3), [f(SIZE), f(SIZE)]
    heads = [x.reshape(*x.shape[:2], -1, SIZE) for x in plain.inputs[:2]]
    normal = [
        (x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * w).reshape(y.shape).astype(np.float32)
        for x, w, y in zip(heads, weights, plain.inputs, strict=False)
    ]
    before = replace(plain, inputs=[*normal, *plain.inputs[2:]])
    expected = of_onnxruntime(before.model(), before.feeds())
    inputs = [*plain.inputs, *[None] * 7, *weights]
    attributes = {**plain.attributes, "qk_norm_epsilon": 1e-3}
    check(replace(plain, inputs=inputs, attributes=attributes, expected=lambda *_: expected))


X, W = f(B, S, 5), f(5, 3 * D)
REFUSED = [
    (Case("Attention", [X, W], {"num_heads": N, "do_rotary": 1}), "do_rotary"),
    (Case("Attention", [X, W], {"num_heads": -N}), "heads"),
    (Case("Attention", [X, W], {"num_heads": N, "qkv_hidden_sizes": [-D, 3 * D, D]}), "sizes of queries"),
    (Case("Attention", [X, W, None, ints(1, 1, 1)], {"num_heads": N}), "the mask is"),
    (Case("Attention", [X, W], {"num_heads": N, "past_present_share_buffer": 1}), "changed in place"),
    (Case("MultiHeadAttention", [f(B, S, D)] * 3 + [f(3 * D + 1)], {"num_heads": N}), "expected 48 elements"),
    (Case("MultiHeadAttention", [f(B, S, D), f(B, S, D)], {"num_heads": N}), "its operands are"),
    (Case("RotaryEmbedding", [f(B, S, D), POSITIONS, *ANGLES], {"scale": 2.0}), "scale"),
]


@pytest.mark.parametrize(("case", "text"), REFUSED, ids=lambda v: None if isinstance(v, Case) else v)
def test_what_is_not_supported_is_refused(case, text):
    with pytest.raises(df.ModelError, match=text):
        load_bytes(case.model().SerializeToString())


GENERATED = """
<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>
decoder (float[batch, new, 16] q, float[batch, new, 8] k, float[batch, new, 8] v, int64[batch, total] mask,
         float[batch, 1, KEYS, 8] past_key, float[batch, 1, KEYS, 8] past_value)
    => (float[batch, new, 16] y, float[batch, 1, KEPT, 8] present_key, float[batch, 1, KEPT, 8] present_value)
{
    one = Constant<value_ints = [1]>()
    index = Constant<value_int = 1>()
    counted = ReduceSum<keepdims = 1>(mask, one)
    last = Sub(counted, one)
    lengths = Cast<to = 6>(last)
    shape = Shape(mask)
    all = Gather(shape, index)
    total = Cast<to = 6>(all)
    y, present_key, present_value = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>
        (q, k, v, past_key, past_value, lengths, total)
}
"""


@pytest.mark.parametrize(("keys", "kept"), [("12", "12"), ("past", "kept")])
def test_a_cache_that_keeps_its_size_is_filled(keys, kept):
    """As generators for onnxruntime write decoders: how many keys there are is the length of the mask."""
    text = GENERATED.replace("KEYS", keys).replace("KEPT", kept)
    bytes_ = onnx.parser.parse_model(text).SerializeToString()
    other, model = onnxruntime.InferenceSession(bytes_), load_bytes(bytes_)
    session, state = df.Session(model), df.Session(model, state=df.cache_state(model))
    pasts = ["past_key", "past_value"]
    mine = theirs = dict.fromkeys(pasts, np.zeros((2, 1, 12, 8), np.float32))
    state.reset(mine)
    total = 0
    for rows in [3, 1, 1, 1, 1, 1, 1, 1, 1, 1]:
        total += rows
        mask = np.ones((2, total), np.int64)
        mask[1, 2:3] = 0  # the second text has two tokens at first
        fed = {"q": f(2, rows, 16), "k": f(2, rows, 8), "v": f(2, rows, 8), "mask": mask}
        expected = other.run(None, {**fed, **theirs})
        found = session.run({**fed, **mine})
        seen = slice(None) if rows == 1 else mask[..., None] * np.ones(16, int) > 0
        np.testing.assert_allclose(found["y"][seen], expected[0][seen], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.run(fed)["y"], found["y"], rtol=1e-5, atol=1e-6)
        mine = {name: found["present" + name[4:]] for name in pasts}
        theirs = dict(zip(pasts, expected[1:], strict=True))
        for name in pasts:
            assert mine[name].shape == (2, 1, 12, 8)
            np.testing.assert_array_equal(mine[name][0], theirs[name][0])


def test_a_cache_of_another_length_is_refused_when_it_is_known():
    case = grouped([2, 4], 4, 1)
    case.inputs[6] = np.array(6, np.int32)
    with pytest.raises(df.ModelError, match="expected 5, the keys of a cache that grows"):
        load_bytes(case.model().SerializeToString())

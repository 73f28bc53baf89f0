"""Small decoders with a cache, as text of ONNX."""

import numpy as np

HEAD = '<ir_version: 9, opset_import: ["" : 20]>'
DECODER = """
decoder (float[batch, new, 8] x, int64[batch, total] mask, float[batch, 2, past, 4] past)
    => (float[batch, new, 8] y, float[batch, 2, all, 4] present)
    <float[8, 24] w = {%s}, float[8, 8] v = {%s}, int64[4] heads = {0, 0, 2, 4}, int64[3] joined = {0, 0, 8},
     float scale = {0.5}, int64[1] one = {1}, int64[1] two = {2}, float masked = {-1e4}, float zero = {0}>
{
    qkv = MatMul(x, w)
    q0, k0, v0 = Split<axis = 2, num_outputs = 3>(qkv)
    q1 = Reshape(q0, heads)
    k1 = Reshape(k0, heads)
    v1 = Reshape(v0, heads)
    q = Transpose<perm = [0, 2, 1, 3]>(q1)
    k = Transpose<perm = [0, 2, 1, 3]>(k1)
    values = Transpose<perm = [0, 2, 1, 3]>(v1)
    both = Add(k, values)
    present = Concat<axis = 2>(past, both)
    READ
    keys = Transpose<perm = [0, 1, 3, 2]>(read)
    scores = MatMul(q, keys)
    scaled = Mul(scores, scale)
    kept = Cast<to = 9>(window)
    wide = Unsqueeze(kept, axes)
    zeroed = Where(wide, zero, masked)
    seen = Add(scaled, zeroed)
    weights = Softmax<axis = -1>(seen)
    out = MatMul(weights, read)
    rows = Transpose<perm = [0, 2, 1, 3]>(out)
    flat = Reshape(rows, joined)
    y = MatMul(flat, v)
}
"""
AXES = "axes = Constant<value_ints = [1, 2]>()\n"
START = "    begin = Constant<value_ints = [-7]>()\n    most = Constant<value_ints = [9223372036854775807]>()\n"
# What is read of the cache, and of the mask: by all that sizes can decide.
READS = {
    "all": "read = Identity(present)\n    window = Identity(mask)",
    "a sliding window": START
    + "    read = Slice(present, begin, most, two)\n    window = Slice(mask, begin, most, one)",
    "every second": """zero0 = Constant<value_ints = [0]>()
    most = Constant<value_ints = [9223372036854775807]>()
    read = Slice(present, zero0, most, two, two)
    window = Slice(mask, zero0, most, one, two)""",
    "a mask of sizes": """read = Identity(present)
    shape = Shape(present)
    index = Constant<value_int = 2>()
    length = Gather(shape, index)
    none = Constant<value_int = 0>()
    step = Constant<value_int = 1>()
    places = Range(none, length, step)
    period = Constant<value_int = 16>()
    rest = Mod(places, period)
    fits = Mod(length, period)
    at = Equal(fits, none)
    even = Less(rest, period)
    some = And(even, even)
    flips = Xor(some, at)
    numbers = Cast<to = 7>(flips)
    window = Mul(mask, numbers)""",
}


def text_of(read):
    rng = np.random.default_rng(3)
    arrays = [", ".join(f"{n:.6f}" for n in rng.standard_normal(size)) for size in (8 * 24, 8 * 8)]
    return HEAD + (DECODER % tuple(arrays)).replace("READ", AXES + "    " + READS[read])


def inputs(past, batch=1, new=1):
    rng = np.random.default_rng(100 * past + batch)
    return {
        "x": rng.standard_normal((batch, new, 8), np.float32),
        "mask": (rng.random((batch, past + new)) < 0.8).astype(np.int64),
        "past": rng.standard_normal((batch, 2, past, 4), np.float32),
    }

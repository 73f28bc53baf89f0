"""What each op is written as: one ONNX operator, or a few.

A form is a function of a writer and a node; most are made of a line in a table. What has no form of its own is
written as smaller ops (``smaller.py``).
"""

from __future__ import annotations

from . import axes, bodies, elements, recurrent, shapes, windows
from .writer import Form, same, since, unless_nothing

SAME: dict[str, str] = {  # of the same operands, without attributes
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "relu": "Relu", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
    "reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos",
    "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh", "sigmoid": "Sigmoid", "erf": "Erf", "floor": "Floor", "ceil": "Ceil", "round": "Round",
    "softplus": "Softplus", "softsign": "Softsign", "logical_not": "Not", "is_nan": "IsNaN", "copy": "Identity",
    "require": "Identity", "stop_gradient": "Identity", "hard_swish": "HardSwish", "add": "Add", "sub": "Sub",
    "mul": "Mul", "div": "Div", "pow": "Pow", "maximum": "Max", "minimum": "Min", "equal": "Equal", "less": "Less",
    "less_equal": "LessOrEqual", "greater": "Greater", "greater_equal": "GreaterOrEqual", "logical_and": "And",
    "logical_or": "Or", "logical_xor": "Xor", "where": "Where", "prelu": "PRelu", "clip": "Clip",
    "det": "Det", "nonzero": "NonZero", "matmul_integer": "MatMulInteger", "dynamic_quantize": "DynamicQuantizeLinear",
}  # fmt: skip
ATTRIBUTES: dict[str, tuple[str, dict[str, str]]] = {
    "leaky_relu": ("LeakyRelu", {"alpha": "alpha"}),
    "elu": ("Elu", {"alpha": "alpha"}),
    "selu": ("Selu", {"alpha": "alpha", "gamma": "gamma"}),
    "celu": ("Celu", {"alpha": "alpha"}),
    "thresholded_relu": ("ThresholdedRelu", {"alpha": "alpha"}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": "alpha", "beta": "beta"}),
    "mod": ("Mod", {"fmod": "fmod"}),
    "transpose": ("Transpose", {"perm": "perm"}),
    "concat": ("Concat", {"axis": "axis"}),
    "gather": ("Gather", {"axis": "axis"}),
    "softmax": ("Softmax", {"axis": "axis"}),
    "log_softmax": ("LogSoftmax", {"axis": "axis"}),
    "argmax": ("ArgMax", {"axis": "axis", "keepdims": "keepdims", "select_last_index": "select_last_index"}),
    "argmin": ("ArgMin", {"axis": "axis", "keepdims": "keepdims", "select_last_index": "select_last_index"}),
    "batch_norm": ("BatchNormalization", {"epsilon": "epsilon", "momentum": "momentum"}),
    "gather_elements": ("GatherElements", {"axis": "axis"}),
    "gather_nd": ("GatherND", {"batch_dims": "batch_dims"}),
    "lrn": ("LRN", {"size": "size", "alpha": "alpha", "beta": "beta", "bias": "bias"}),
}  # fmt: skip
REDUCE = {
    "reduce_sum": "ReduceSum",
    "reduce_mean": "ReduceMean",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}


FORMS: dict[str, Form] = {
    **{name: same(kind, {}) for name, kind in SAME.items()},
    **{name: same(kind, renamed) for name, (kind, renamed) in ATTRIBUTES.items()},
    **{
        name: unless_nothing(axes.reduce(kind, 13 if name == "reduce_sum" else 18), "axes")
        for name, kind in REDUCE.items()
    },
    "conv": windows.window("Conv", windows.CONV),
    "conv_integer": windows.window("ConvInteger", windows.CONV),
    "avg_pool": windows.window("AveragePool", windows.AVERAGE_POOL),
    "scan": bodies.scan,
    "if_": bodies.branch,
    "loop": bodies.loop,
    **{f"bitwise_{name.lower()}": since(18, same(f"Bitwise{name}", {})) for name in ("And", "Or", "Xor", "Not")},
    "mish": since(18, same("Mish", {})),
    "string_concat": since(20, same("StringConcat", {})),
    "gelu": since(20, same("Gelu", {"approximate": "approximate"})),
    "transpose": unless_nothing(same(*ATTRIBUTES["transpose"])),
    "matmul": elements.matmul,
    "cast": elements.cast,
    "bit_shift": elements.bit_shift,
    "is_inf": elements.is_inf,
    "dropout": elements.dropout,
    "quantize": elements.quantize("QuantizeLinear"),
    "dequantize": elements.quantize("DequantizeLinear"),
    "reshape": shapes.reshape,
    "broadcast_to": shapes.broadcast,
    "slice": unless_nothing(shapes.slice),
    "pad": unless_nothing(shapes.pad),
    "full": shapes.full,
    "range_": shapes.range,
    "sizes": shapes.sizes,
    "cumsum": axes.cumsum,
    "topk": axes.topk,
    "one_hot": axes.one_hot,
    "scatter_elements": axes.scatter("ScatterElements", ("axis", "reduction")),
    "scatter_nd": axes.scatter("ScatterND", ("reduction",)),
    "dft": axes.dft,
    "layer_norm": axes.layer_norm,
    "batch_norm_train": axes.batch_norm_train,
    "max_pool": windows.max_pool,
    "conv_grad_input": windows.conv_transpose,
    "resize": windows.resize,
    "grid_sample": windows.grid_sample,
    "roi_align": windows.roi_align,
    "matmul_blocks": windows.matmul_blocks,
    "lstm": recurrent.recurrent("LSTM"),
    "gru": recurrent.recurrent("GRU"),
    "rnn": recurrent.recurrent("RNN"),
}

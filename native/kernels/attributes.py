"""Writes attributes.h and dataflow_steps.h from the declarations of dataflow.ops.

The first says at which index a kernel finds an attribute of its op, the second what the numbers in the programs of
fused_elementwise stand for. Run ``python native/kernels/attributes.py`` after a declaration changed; a test compares.
The headers are checked in because a build from source has no dataflow to import yet.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from dataflow import ops
from dataflow.ir.op import AnyOp
from dataflow.ops.fused import STEPS

HEADER = Path(__file__).with_suffix(".h")
STEPS_HEADER = Path(__file__).parents[1] / "include/dataflow_steps.h"

# Ops that one function of a kernel reads: the attributes of the first, the others have as well, in the same order one
# behind the other. Others may have some before and behind, and a prefix (``pool_kernel``).
ALIKE = (
    ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"),
    ("argmax", "argmin"),
    ("gather_elements", "scatter_elements"),
    ("gather_nd", "scatter_nd"),
    ("conv", "conv_relu", "conv_add_relu", "conv_relu_max_pool", "conv_grad_input", "conv_grad_weight"),
    ("conv", "conv_last"),
    ("conv_grad_input", "conv_last_grad_input"),
    ("conv_grad_weight", "conv_last_grad_weight"),
    ("conv", "conv_integer", "conv_dequantized", "conv_requantized"),
    ("max_pool", "avg_pool", "avg_pool_grad", "conv_relu_max_pool"),
    ("softmax", "softmax_grad", "log_softmax", "log_softmax_grad"),
    ("softmax_cross_entropy", "softmax_cross_entropy_grad", "softmax_cross_entropy_with_grad"),
    ("ctc_loss", "ctc_loss_grad", "ctc_loss_product"),
    ("layer_norm", "layer_norm_grad", "layer_norm_grad_sums"),
    ("lrn", "lrn_grad"),
    ("batch_norm_grad", "batch_norm", "batch_norm_train"),
    ("batch_norm_train", "batch_norm_train_relu"),
    ("gelu", "gelu_grad", "gelu_grad_sums"),
    ("lstm", "lstm_grad", "gru", "gru_grad", "rnn", "rnn_grad"),
    ("rnn", "rnn_grad"),
    ("resample", "resample_grad"),
    ("roi_align", "roi_align_grad"),
    ("max_roi_pool", "max_roi_pool_grad"),
    ("grid_sample", "grid_sample_grad_input", "grid_sample_grad_grid"),
    ("attention", "attention_grad", "attention_grad_sums"),
    ("fused_elementwise", "fused_elementwise_sums"),
)

TEXT = """\
/* kernels/attributes.h: at which index of a call's or node's attributes one of an op stands.
 *
 * Written by kernels/attributes.py from the declarations of dataflow.ops: don't edit. Ops that one
 * function reads share the names of the first, which come first in the others too unless these have
 * names of their own. */
#ifndef DF_KERNELS_ATTRIBUTES_H
#define DF_KERNELS_ATTRIBUTES_H
#include "dataflow_steps.h"

/* clang-format off */
@ENUMS@
/* clang-format on */

#endif
"""

STEPS_TEXT = """\
/* dataflow_steps.h: what a step of fused_elementwise can be: the numbers of ops in its program.
 *
 * The attribute |program| has for each step the number of its op, then its operands: numbers of the
 * node's inputs and, behind these, of earlier steps. The result is the last step's. Where the
 * attribute |trailing| isn't 0 the last step is a reduction over so many trailing axes. Numbers
 * stay what they are; a later version may have more, which a kernel's |accepts| refuses.
 *
 * Written by kernels/attributes.py from the declarations of dataflow.ops: don't edit. */
#ifndef DATAFLOW_STEPS_H
#define DATAFLOW_STEPS_H

/* clang-format off */
@STEPS@
/* clang-format on */

#endif
"""


def offset(first: AnyOp, other: AnyOp) -> int:
    """The index in ``other`` of the first attribute of ``first``.

    Raises:
        ValueError: the attributes of ``first`` do not follow each other there.
    """
    wanted, names = list(first.attributes), list(other.attributes)
    for begin in range(len(names) - len(wanted) + 1):
        if all(name.endswith(want) for name, want in zip(names[begin:], wanted, strict=False)):
            return begin
    raise ValueError(f"{other.name} has the attributes {names}; kernels expect {wanted} among them, as of {first.name}")


def enum(op: AnyOp, also: list[str]) -> str:
    """The enumerators of ``op``, with a comment that names the ops that share them."""
    comment = f"/* also {', '.join(also)} */\n" if also else ""
    return comment + wrapped([f"DF_{op.name.strip('_')}_{name}".upper() for name in op.attributes])


def wrapped(names: list[str]) -> str:
    """The declaration of an enum, in lines of 100 characters."""
    return "\n".join(textwrap.wrap(f"enum {{ {', '.join(names)} }};", 100, subsequent_indent="       "))


def header() -> str:
    """The text of attributes.h.

    Raises:
        ValueError: ops that one function reads differ.
    """
    by_name = {op.name: op for op in ops.ALL if op.attributes and not op.bodies}  # the runtime runs bodies, not kernels
    also: dict[str, list[str]] = {}
    shared = set()
    for first, *others in ALIKE:
        for other in others:
            begin = offset(by_name[first], by_name[other])
            if begin == 0 and len(by_name[first].attributes) == len(by_name[other].attributes):
                shared.add(other)
                also.setdefault(first, []).append(other)
    enums = [enum(op, also.get(op.name, [])) for op in ops.ALL if op.name in by_name and op.name not in shared]
    return TEXT.replace("@ENUMS@", "\n".join(enums))


def steps_header() -> str:
    """The text of dataflow_steps.h."""
    return STEPS_TEXT.replace("@STEPS@", wrapped([f"DF_STEP_{op.name}" for op in STEPS]))


if __name__ == "__main__":
    HEADER.write_text(header())
    STEPS_HEADER.write_text(steps_header())

"""Losses: what a model is trained to make small, as nodes of a graph.

A loss is a sum with a weight count, never a mean: micro-batches add up, and the optimizer divides once by the weight
of the whole logical batch. So four micro-batches of 16 train as one batch of 64 does, also with ignored labels, class
weights and a short last batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .cross_entropy import CrossEntropy as CrossEntropy
from .cross_entropy import NextToken as NextToken
from .ctc import CTC as CTC
from .distill import Distill as Distill
from .distributions import KL as KL
from .distributions import NLL as NLL
from .elementwise import MAE as MAE
from .elementwise import MSE as MSE
from .elementwise import BinaryCrossEntropy as BinaryCrossEntropy
from .elementwise import Hinge as Hinge
from .elementwise import Huber as Huber
from .elementwise import PoissonNLL as PoissonNLL
from .elementwise import SmoothL1 as SmoothL1
from .embeddings import Cosine as Cosine
from .embeddings import InfoNCE as InfoNCE
from .embeddings import Triplet as Triplet
from .loss import Allowed as Allowed
from .loss import Loss as Loss
from .loss import OutputLoss as OutputLoss
from .loss import Target as Target
from .loss import output as output
from .segmentation import Dice as Dice
from .segmentation import Focal as Focal
from .terms import pair as pair
from .terms import summed as summed

LOSSES: Mapping[str, Callable[..., Any]] = {
    "cross_entropy": CrossEntropy,
    "next_token": NextToken,
    "nll": NLL,
    "kl": KL,
    "focal": Focal,
    "dice": Dice,
    "binary_cross_entropy": BinaryCrossEntropy,
    "hinge": Hinge,
    "mse": MSE,
    "mae": MAE,
    "huber": Huber,
    "smooth_l1": SmoothL1,
    "poisson_nll": PoissonNLL,
    "cosine": Cosine,
    "triplet": Triplet,
    "info_nce": InfoNCE,
    "ctc": CTC,
    "distill": Distill,
}
"""What makes a loss, by name."""

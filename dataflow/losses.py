"""Losses: ``df.losses.CrossEntropy``, ``MSE`` and the others; see docs/training/losses.md."""

from __future__ import annotations

from .host.keywords import answer as _answer
from .train.losses import CTC as CTC
from .train.losses import KL as KL
from .train.losses import MAE as MAE
from .train.losses import MSE as MSE
from .train.losses import NLL as NLL
from .train.losses import Allowed as Allowed
from .train.losses import BinaryCrossEntropy as BinaryCrossEntropy
from .train.losses import Cosine as Cosine
from .train.losses import CrossEntropy as CrossEntropy
from .train.losses import Dice as Dice
from .train.losses import Distill as Distill
from .train.losses import Focal as Focal
from .train.losses import Hinge as Hinge
from .train.losses import Huber as Huber
from .train.losses import InfoNCE as InfoNCE
from .train.losses import Loss as Loss
from .train.losses import NextToken as NextToken
from .train.losses import PoissonNLL as PoissonNLL
from .train.losses import SmoothL1 as SmoothL1
from .train.losses import Target as Target
from .train.losses import Triplet as Triplet
from .train.losses import output as output

_answer(__name__)

"""Metrics: ``df.metrics.F1``, ``ROCAUC`` and the others; see docs/training/losses.md."""

from __future__ import annotations

from .host.keywords import answer as _answer
from .train.metrics import F1 as F1
from .train.metrics import PRAUC as PRAUC
from .train.metrics import R2 as R2
from .train.metrics import RMSE as RMSE
from .train.metrics import ROCAUC as ROCAUC
from .train.metrics import Accuracy as Accuracy
from .train.metrics import CalibrationError as CalibrationError
from .train.metrics import CharacterErrorRate as CharacterErrorRate
from .train.metrics import Confusion as Confusion
from .train.metrics import Gathered as Gathered
from .train.metrics import IoU as IoU
from .train.metrics import Matthews as Matthews
from .train.metrics import MeanAbsoluteError as MeanAbsoluteError
from .train.metrics import Metric as Metric
from .train.metrics import Perplexity as Perplexity
from .train.metrics import Precision as Precision
from .train.metrics import Recall as Recall
from .train.metrics import TopK as TopK
from .train.metrics import WordErrorRate as WordErrorRate

_answer(__name__)

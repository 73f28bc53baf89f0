"""Metrics: figures for people, computed beside the loss, and how sure they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .classes import F1 as F1
from .classes import IoU as IoU
from .classes import Matthews as Matthews
from .classes import Precision as Precision
from .classes import Recall as Recall
from .confusion import Confusion as Confusion
from .means import Accuracy as Accuracy
from .means import MeanAbsoluteError as MeanAbsoluteError
from .means import TopK as TopK
from .metric import Gathered as Gathered
from .metric import Metric as Metric
from .numbers import R2 as R2
from .numbers import RMSE as RMSE
from .probabilities import CalibrationError as CalibrationError
from .probabilities import Perplexity as Perplexity
from .ranking import PRAUC as PRAUC
from .ranking import ROCAUC as ROCAUC
from .running_mean import RunningMean as RunningMean
from .running_mean import figures as figures
from .sequences import CharacterErrorRate as CharacterErrorRate
from .sequences import WordErrorRate as WordErrorRate

METRICS: Mapping[str, Callable[..., Any]] = {
    "accuracy": Accuracy,
    "top5": TopK,
    "mae": MeanAbsoluteError,
    "precision": Precision,
    "recall": Recall,
    "f1": F1,
    "iou": IoU,
    "mcc": Matthews,
    "confusion": Confusion,
    "roc_auc": ROCAUC,
    "pr_auc": PRAUC,
    "r2": R2,
    "rmse": RMSE,
    "perplexity": Perplexity,
    "ece": CalibrationError,
    "cer": CharacterErrorRate,
    "wer": WordErrorRate,
}
"""What makes a metric, by name."""

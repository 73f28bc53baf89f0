"""Records what scikit-learn's metrics give; run by hand, the tests only read ``metrics.npz``.

``FORM/output`` and ``FORM/labels``, then ``FORM/METRIC``, for these forms: ``classes`` (70, 4), of which class 2 is
neither in the labels nor found, ``yes`` (70,), ``columns`` (70, 3) and ``numbers`` (70, 3).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn import metrics as sk

HERE = Path(__file__).parent
rng = np.random.default_rng(14)
kept: dict[str, Any] = {}
COUNTED = {"precision": sk.precision_score, "recall": sk.recall_score, "f1": sk.f1_score, "iou": sk.jaccard_score}


def counts(form: str, labels: np.ndarray, found: np.ndarray, *averages: str) -> None:
    """Precision and the others, averaged so."""
    for name, score in COUNTED.items():
        for average in averages:
            kept[f"{form}/{name}:average={average}"] = score(labels, found, average=average, zero_division=0)
        kept[f"{form}/{name}"] = kept[f"{form}/{name}:average={averages[0]}"]


z = np.round(rng.normal(size=(70, 4)) * 2, 1).astype(np.float32)  # rounded, so that there are ties
y = rng.choice([0, 1, 3], 70)
z[np.arange(70), y] += 1
z[:, 2] = -9
y[:5] = -100
kept["classes/output"], kept["classes/labels"] = z, y
used, label = z[5:].astype(np.float64), y[5:]
p = np.exp(used) / np.exp(used).sum(1, keepdims=True)
found = p.argmax(1)
counts("classes", label, found, "macro", "micro", "weighted")
kept["classes/mcc"] = sk.matthews_corrcoef(label, found)
kept["classes/confusion"] = sk.confusion_matrix(label, found, labels=range(4))
kept["classes/accuracy"] = sk.accuracy_score(label, found)
# Of equal scores scikit-learn has the last class first, argmax the first: so these are the classes in reverse.
kept["classes/top2"] = sk.top_k_accuracy_score(3 - label, used[:, ::-1], k=2, labels=range(4))
kept["classes/roc_auc"] = np.mean([sk.roc_auc_score(label == c, p[:, c]) for c in (0, 1, 3)])
kept["classes/pr_auc"] = np.mean([sk.average_precision_score(label == c, p[:, c]) for c in (0, 1, 3)])
kept["classes/perplexity"] = np.exp(sk.log_loss(label, p, labels=range(4)))

yes = np.round(rng.normal(size=70), 1).astype(np.float32)
bits = (rng.normal(size=70) + yes > 0.3).astype(np.int64)
kept["yes/output"], kept["yes/labels"] = yes, bits
counts("yes", bits, yes > 0, "binary")
kept["yes/mcc"] = sk.matthews_corrcoef(bits, yes > 0)
kept["yes/confusion"] = sk.confusion_matrix(bits, yes > 0)
kept["yes/roc_auc"] = sk.roc_auc_score(bits, yes)
kept["yes/pr_auc"] = sk.average_precision_score(bits, yes)

many = np.round(rng.normal(size=(70, 3)), 1).astype(np.float32)
tags = (rng.normal(size=(70, 3)) + many > 0.5).astype(np.int64)
kept["columns/output"], kept["columns/labels"] = many, tags
counts("columns", tags, many > 0, "macro", "micro", "weighted")
kept["columns/roc_auc"] = sk.roc_auc_score(tags, many)
kept["columns/pr_auc"] = sk.average_precision_score(tags, many)

real = (rng.normal(size=(70, 3)) + np.array([0, 1e4, 3])).astype(np.float32)  # a column far from 0
close = (real + rng.normal(size=(70, 3)) * 0.5).astype(np.float32)
kept["numbers/output"], kept["numbers/labels"] = close, real
kept["numbers/r2"] = sk.r2_score(real.astype(np.float64), close.astype(np.float64))
kept["numbers/rmse"] = np.sqrt(np.mean((real.astype(np.float64) - close) ** 2))
kept["numbers/mae"] = sk.mean_absolute_error(real.astype(np.float64), close.astype(np.float64))

np.savez_compressed(HERE / "metrics.npz", **kept)

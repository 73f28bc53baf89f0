"""Converters of the domain ai.onnx.ml: models of scikit-learn, LightGBM, XGBoost and the like.

Where the standard is vague, ONNX Runtime decides; where it contradicts itself for a form that exporters don't write,
the form is refused.
"""

from __future__ import annotations

from ...converters import Collector
from . import encode, features, linear, maps, svm, trees

COLLECTORS: tuple[Collector, ...] = tuple(m.operator for m in (encode, features, linear, maps, svm, trees))

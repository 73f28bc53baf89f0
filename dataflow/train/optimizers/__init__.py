"""Optimizers, their groups, and averages of what they make."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .adafactor import Adafactor as Adafactor
from .adam import Adam as Adam
from .adam import Adamax as Adamax
from .adam import AdamW as AdamW
from .adam import NAdam as NAdam
from .adam import RAdam as RAdam
from .adaptive import Adadelta as Adadelta
from .adaptive import Adagrad as Adagrad
from .adaptive import RMSprop as RMSprop
from .averages import EMA as EMA
from .averages import SWA as SWA
from .groups import Group as Group
from .groups import Grouped as Grouped
from .lamb import LAMB as LAMB
from .lbfgs import LBFGS as LBFGS
from .lion import Lion as Lion
from .muon import Muon as Muon
from .protocol import Optimizer as Optimizer
from .protocol import Schedule as Schedule
from .protocol import Slot as Slot
from .schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW
from .schedule_free import ScheduleFreeSGD as ScheduleFreeSGD
from .sgd import SGD as SGD

AVERAGES: Mapping[str, Any] = MappingProxyType({"ema": EMA, "swa": SWA})
OPTIMIZERS: Mapping[str, Any] = MappingProxyType(
    {
        "adamw": AdamW,
        "sgd": functools.partial(SGD, momentum=0.9),
        "adam": Adam,
        "amsgrad": functools.partial(Adam, amsgrad=True),
        "adamax": Adamax,
        "nadam": NAdam,
        "radam": RAdam,
        "rmsprop": RMSprop,
        "adagrad": Adagrad,
        "adadelta": Adadelta,
        "adafactor": Adafactor,
        "lion": Lion,
        "lamb": LAMB,
        "muon": Muon,
        "lbfgs": LBFGS,
        "schedule_free_adamw": ScheduleFreeAdamW,
        "schedule_free_sgd": ScheduleFreeSGD,
    }
)
"""What the command line and ``Trainer(optimizer=)`` call them."""

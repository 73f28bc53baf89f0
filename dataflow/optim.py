"""Optimizers, parameter groups, and averages of weights: ``df.optim.AdamW``, ``df.optim.Group``, ``df.optim.EMA``."""

from __future__ import annotations

from .host.keywords import answer as _answer
from .train.loss_scale import LossScale as LossScale
from .train.optimizers import EMA as EMA
from .train.optimizers import LAMB as LAMB
from .train.optimizers import LBFGS as LBFGS
from .train.optimizers import SGD as SGD
from .train.optimizers import SWA as SWA
from .train.optimizers import Adadelta as Adadelta
from .train.optimizers import Adafactor as Adafactor
from .train.optimizers import Adagrad as Adagrad
from .train.optimizers import Adam as Adam
from .train.optimizers import Adamax as Adamax
from .train.optimizers import AdamW as AdamW
from .train.optimizers import Group as Group
from .train.optimizers import Grouped as Grouped
from .train.optimizers import Lion as Lion
from .train.optimizers import Muon as Muon
from .train.optimizers import NAdam as NAdam
from .train.optimizers import Optimizer as Optimizer
from .train.optimizers import RAdam as RAdam
from .train.optimizers import RMSprop as RMSprop
from .train.optimizers import ScheduleFreeAdamW as ScheduleFreeAdamW
from .train.optimizers import ScheduleFreeSGD as ScheduleFreeSGD
from .train.optimizers import Slot as Slot

_answer(__name__)

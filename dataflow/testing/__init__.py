"""The conformance kit: samples of every op, and checks that authors of devices and ops run on their own."""

from .conformance import Outcome as Outcome
from .conformance import check_device as check_device
from .samples import SAMPLES as SAMPLES
from .samples import Operand as Operand
from .samples import Sample as Sample

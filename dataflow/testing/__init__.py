"""The conformance kit: samples of every op, and checks that authors of devices and ops run on their own."""

from .conformance import check_device as check_device
from .outcome import Outcome as Outcome
from .plugins import check_plugin as check_plugin
from .sample import Operand as Operand
from .sample import Sample as Sample
from .samples import SAMPLES as SAMPLES

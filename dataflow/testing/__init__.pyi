"""Types of the names that ``__init__.py`` loads when they are first used."""

from .conformance import check_device as check_device
from .outcome import Outcome as Outcome
from .plugins import check_plugin as check_plugin
from .sample import Operand as Operand
from .sample import Sample as Sample
from .samples import SAMPLES as SAMPLES

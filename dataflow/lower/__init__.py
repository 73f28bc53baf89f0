"""Graph -> Lowered: a device and kernel for each node, a memory and storage for each value."""

from .elementwise import fuse_elementwise as fuse_elementwise
from .fuse import fuse as fuse
from .lowered import Loop as Loop
from .lowered import Lowered as Lowered
from .lowered import LoweredNode as LoweredNode
from .lowered import Move as Move
from .lowered import Root as Root
from .lowered import Storage as Storage
from .lowered import Stored as Stored
from .lowering import lower as lower
from .pins import Pins as Pins

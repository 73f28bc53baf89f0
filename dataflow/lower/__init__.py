"""Graph -> Lowered: a device and kernel for each node, a memory and storage for each value."""

from .lowered import Lowered as Lowered, LoweredNode as LoweredNode, Root as Root, Storage as Storage
from .lowering import lower as lower

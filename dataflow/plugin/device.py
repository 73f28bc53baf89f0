"""What a device and a kernel are to the core: protocols and records, no implementation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from ..errors import DeviceError
from ..ir.kernel import HOST, Kernel
from ..ir.lowered import BaseTensor, LoweredNode
from ..ir.plan import Segment
from ..ir.types import Array

Precision = Literal["float32", "bf16x6", "tf32", "bf16"]
"""How products of float32 may be computed: as float32; from operands split in three bfloat16, of whose nine products
the six largest count (errors as of float32, other bits); from operands rounded to TF32 (10 bits of mantissa) or better;
from operands rounded to bfloat16 (7 bits). Sums and results are float32 in each. A device that has no such
algorithm computes as float32."""

Role = Literal["accelerator", "host", "reference"]
"""What a device is for. By default those with the role ``accelerator`` come first, then the others in this order. A
device with the role ``host`` is added where none of those that a user names works on the host's memory. The one device
with the role ``reference`` has a kernel for every op: it is the last resort, it computes constants at compile time, and
the conformance kit compares others with it."""

_HOST_ONLY = "this device works on the host's memory, where the core allocates and copies"
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(slots=True, eq=False)
class Unavailable:
    """A device that can't be used, and why; what a plugin offers where there is nothing to open.

    Attributes: see ``Device``.
    """

    name: str
    unavailable: str | None
    ordinal: int = 0
    memory: str = HOST
    alignment: int = 64
    asynchronous: bool = False
    bodies: bool = False
    nested_bodies: bool = False
    peers: str | None = None
    prepacks: bool = False
    role: Role = "accelerator"

    def open(self, options: Mapping[str, Any], precision: Precision = "float32") -> Backend:
        """Raises DeviceError with the reason."""
        raise DeviceError(f"device {self.name!r} is unavailable: {self.unavailable}")

    def kernels(self) -> Sequence[Kernel]:
        """None."""
        return ()


class Refused(DeviceError):
    """What a device says of nodes that its kernels take and that it can't run after all: the next device is asked.

    Attributes:
        nodes: their names.
        device: its id; the core enters it.
        kernel: the name of the kernel that can't; the device's others are asked first. Empty: none of them can.
    """

    def __init__(self, nodes: tuple[str, ...], reason: str, device: str = "", kernel: str = "") -> None:
        super().__init__(reason)
        self.nodes, self.device, self.kernel = nodes, device, kernel


class Buffer(Protocol):
    """Memory of a device."""

    @property
    def base(self) -> Any:
        """Address or handle, as a ``void *``."""

    @property
    def bytes(self) -> int:
        """Its size."""


@dataclass(frozen=True, slots=True, eq=False)
class PrepackRequest:
    """A prepacked copy of a constant input that a kernel wants kept.

    Attributes:
        input: which one.
        kind: the kernel's own number of the form of the copy.
        bytes: of the copy.
        fill: ``fill(source, prepacked)`` makes it; both are ``void *``.
        replaces: a run that gets the copy doesn't read the input.
    """

    input: int
    kind: int
    bytes: int
    fill: Callable[[Any, Any], None]
    replaces: bool = False


class Prepared(Protocol):
    """What a device answers for a kernel and a node at plan time."""

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory that each run of the step needs."""

    @property
    def prepacks(self) -> Sequence[PrepackRequest]:
        """Packed copies of inputs that it wants, in their order."""

    @property
    def algorithms(self) -> Sequence[str]:
        """Names of those that the kernel has for the node; empty where there is nothing to choose."""

    @property
    def algorithm(self) -> str:
        """The one that it will use."""


class BoundSegment(Protocol):
    """A segment with addresses: ready to run.

    Attributes:
        native: segments that a native call runs; 0: Python runs it.
    """

    native: int

    def run(self, slots: Any, count: int, cancel: Any, calls: Any) -> None:
        """Runs the steps.

        Args:
            slots: a ``void *[]`` with an address per slot.
            count: of slots.
            cancel: an ``int32_t *``; the run ends with Cancelled soon after it is set. Null: nothing ends it.
            calls: an ``int64_t *`` that counts kernel calls.
        """


class Backend(Protocol):
    """An open device; one on the host's memory derives from this and has nothing that allocates or copies."""

    def alloc(self, bytes: int) -> Buffer:
        """Memory for an arena; raises OutOfMemoryError."""
        raise DeviceError(_HOST_ONLY)

    def free(self, buffer: Buffer) -> None:
        """Gives memory back."""
        raise DeviceError(_HOST_ONLY)

    def write(self, buffer: Buffer, offset: int, array: Array) -> None:
        """Copies a contiguous host array into device memory."""
        raise DeviceError(_HOST_ONLY)

    def read(self, array: Array, buffer: Buffer, offset: int) -> None:
        """Copies device memory into a contiguous host array."""
        raise DeviceError(_HOST_ONLY)

    def receive(self, buffer: Buffer, offset: int, source: Buffer, source_offset: int, bytes: int) -> None:
        """Copies from the memory of a peer (see ``Device.peers``)."""
        raise DeviceError(_HOST_ONLY)

    def sync(self) -> None:
        """Waits for all that was started."""

    def memory(self) -> tuple[int, int] | None:
        """Bytes that can still be allocated and bytes in all; None where that isn't known."""

    def prepare(
        self,
        nodes: Sequence[LoweredNode],
        threads: int,
        constants: Collection[BaseTensor] = (),
        algorithms: Mapping[int, str] = MappingProxyType({}),
    ) -> Sequence[Prepared]:
        """Workspace, prepacked inputs and state for each node, as its kernel asks.

        Args:
            nodes: with kernels of this device.
            threads: the most that a kernel may use.
            constants: base tensors on the host of which prepacked copies may be kept, since no program of the plan's
                owner changes them.
            algorithms: by index of the node the one to use, of those that its kernel named before.

        Raises:
            Refused: a node can't be run; the next device is asked for it.
        """

    def compile(self, segment: Segment, arenas: Sequence[tuple[Any, int, int]], threads: int) -> Any:
        """What can be made of a segment without its addresses, once for all that are bound; None: nothing.

        It is kept as long as the program. Arguments are as of ``bind``, without buffers.

        Raises:
            Refused: nodes can't be run; the next device is asked for them.
        """
        return None

    def alloc_staging(self, bytes: int) -> Buffer | None:
        """Memory of the host that the device copies fast; None where it has none to offer."""
        return None

    def bind(self, segment: Segment, arenas: Sequence[tuple[Any, int, int]], threads: int) -> BoundSegment:
        """The segment with addresses.

        Args:
            segment: steps whose operands have offsets.
            arenas: per arena of the plan: Buffer or None, bytes, number of the slot or -1.
            threads: the most that a kernel may use.
        """


@runtime_checkable
class Device(Protocol):
    """A device that a plugin offers; making one opens nothing and never raises.

    A class that derives from this has the attributes that it doesn't set. One may have ``misfit(kernel)`` too, which
    gives the reason why it can't run a kernel that is offered for it, or None: the plugin is set aside.

    Attributes:
        name: as users type it.
        ordinal: its number among those of the name.
        memory: name of the memory it addresses; ``HOST`` when it works on the host's.
        alignment: of every operand, in bytes.
        asynchronous: segments and copies may return before they are done.
        bodies: segments may hold loops and branches.
        nested_bodies: these may hold some too.
        peers: devices of equal ``peers`` copy between their memories by themselves; None: through the host.
        prepacks: its kernels get prepacked copies in its memory, made on the host; on the host's memory all may.
        unavailable: why it can't be used, or None.
        role: what it is for.
    """

    name: str
    ordinal: int = 0
    memory: str = HOST
    alignment: int = 64
    asynchronous: bool = False
    bodies: bool = False
    nested_bodies: bool = False
    peers: str | None = None
    prepacks: bool = False
    unavailable: str | None = None
    role: Role = "accelerator"

    def open(self, options: Mapping[str, Any], precision: Precision = "float32") -> Backend:
        """An open device; raises DeviceError with the reason.

        Args:
            options: the device's own.
            precision: the least with which it may compute products of float32.
        """

    def kernels(self) -> Sequence[Kernel]:
        """Its own kernels."""

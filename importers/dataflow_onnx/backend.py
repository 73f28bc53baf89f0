"""ONNX's interface of backends, over sessions: ``onnx.backend.test.BackendTest(dataflow_onnx.backend, __name__)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx  # noqa: TID251 - the interface is that of the package
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict  # noqa: TID251 - likewise

import dataflow as df
from dataflow.errors import DataflowError, InputError
from dataflow.plugin import dtype

from .file.value_types import CODE_OF
from .loading import load_bytes

_DEVICES = {DeviceType.CPU: "cpu", DeviceType.CUDA: "cuda"}


class DataflowRep(BackendRep):
    """A model that is ready to run.

    Args:
        names: of the inputs that arrays are given for, in order; the model may need fewer.
        model: what runs.
        device: where.
    """

    def __init__(self, names: Sequence[str], model: df.Model, device: str) -> None:
        self._names, self._read = names, [*model.inputs]
        self._session = df.Session(model, devices=[device])

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The results in the order of the model's outputs; they can be read by name too.

        Args:
            inputs: arrays in the order of the model's inputs, or one array.
            kwargs: other backends' options; there are none.

        Raises:
            InputError: there are more arrays than inputs, or a kernel refuses them.
        """
        given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(given) != len(self._names):
            raise InputError(f"got {len(given)} arrays for the inputs {', '.join(self._names)}")
        feeds = dict(zip(self._names, given, strict=True))
        found = self._session.run({name: feeds[name] for name in self._read})
        results: tuple[Any, ...] = namedtupledict("Outputs", list(found))(*found.values())
        return results


class DataflowBackend(Backend):
    """The functions that ONNX's runner calls; the module has them too."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> DataflowRep:
        """The model, imported, in a session.

        Args:
            model: what runs.
            device: ``CPU`` or ``CUDA``, with ``:0`` behind it or not.
            kwargs: other backends' options; there are none.

        Raises:
            ModelError: the model can't be imported.
            DeviceError: the device isn't available.
        """
        imported = load_bytes(model.SerializeToString())
        stored = {tensor.name for tensor in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in stored]
        return DataflowRep(names, imported, _DEVICES[Device(device).type])

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The results of a node.

        Args:
            node: of the newest opset, or of ``opset_version``.
            inputs: an array for each input that has a name.
            device: as for ``prepare``.
            outputs_info: types of the results; they are inferred.
            kwargs: ``opset_version``: of the node's domain.
        """
        names = [name for name in node.input if name]
        arrays = [np.asarray(array) for array in inputs]
        given = [
            onnx.helper.make_tensor_value_info(name, CODE_OF[dtype(array)], array.shape)
            for name, array in zip(names, arrays, strict=True)
        ]
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        newest = onnx.defs.onnx_opset_version() if not node.domain else 1
        opset = onnx.helper.make_opsetid(node.domain, int(kwargs.get("opset_version", newest)))
        graph = onnx.helper.make_graph([node], "node", given, results)
        return cls.prepare(onnx.helper.make_model(graph, opset_imports=[opset]), device).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether a session can run there."""
        name = _DEVICES.get(Device(device).type)
        g = df.GraphBuilder()
        g.output("y", g.input("x", df.float32, ()))
        try:
            df.Session(g.build(), devices=[str(name)])
        except DataflowError:
            return False
        return True


prepare = DataflowBackend.prepare
run_model = DataflowBackend.run_model
run_node = DataflowBackend.run_node
supports_device = DataflowBackend.supports_device
is_compatible = DataflowBackend.is_compatible

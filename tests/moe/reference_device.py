"""A device without a GPU: its driver runs the reference of a loaded program over the memory a launch points to.

Everything else is real: cubins out of a store, a frozen session, bound arguments, packed parameters. So a layer that
passes a wrong address, count or order computes wrong numbers here as it would on a GPU.
"""

import ctypes
import hashlib
from types import SimpleNamespace
from typing import Any

import torch

from planfreeze.device import Device
from planfreeze.dtypes import ITEM_BYTES
from planfreeze.family import Definition
from planfreeze.payload import Payload
from planfreeze.sessions import Session

from .reference_kernels import KERNELS, memory

SUCCESS = SimpleNamespace(name="CUDA_SUCCESS", value=0)
DTYPES = {
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
    "u32": torch.uint32,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
}


class ReferenceDriver:
    """Answers every driver call, and computes when a program is launched."""

    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared",
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT="carveout",
    )
    CUresult = SimpleNamespace(CUDA_SUCCESS=SUCCESS)
    CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION="programmatic")
    CUlaunchConfig = SimpleNamespace
    CUstream = int

    def __init__(self) -> None:
        self.known: dict[str, tuple[Payload, Definition]] = {}
        self.launches: list[tuple[str, dict[str, int]]] = []

    def cuLibraryLoadData(self, cubin: bytes, *_: Any) -> tuple[Any, str]:  # noqa: N802  # the driver's own names
        return SUCCESS, hashlib.sha256(cubin).hexdigest()

    def cuLibraryGetKernel(self, library: str, symbol: bytes) -> tuple[Any, str]:  # noqa: N802
        return SUCCESS, library

    def cuKernelGetFunction(self, kernel: str) -> tuple[Any, str]:  # noqa: N802
        return SUCCESS, kernel

    def __getattr__(self, name: str) -> Any:
        return lambda *_: (SUCCESS, 4)

    def CUlaunchAttribute(self) -> Any:  # noqa: N802
        return SimpleNamespace(value=SimpleNamespace())

    def cuLaunchKernel(self, function: str, *others: Any) -> tuple[Any]:  # noqa: N802
        return self.compute(function, others[8])

    def cuLaunchKernelEx(self, config: Any, function: str, address: int, extra: int) -> tuple[Any]:  # noqa: N802
        return self.compute(function, address)

    def compute(self, function: str, address: int) -> tuple[Any]:
        """Run the reference of a loaded program over the parameters at an address."""
        payload, definition = self.known[function]
        pointers = (ctypes.c_int64 * len(definition.arguments)).from_address(address)
        words = {
            argument.name: ctypes.c_int64.from_address(pointer).value
            for argument, pointer in zip(definition.arguments, pointers, strict=True)
        }
        self.launches.append((payload.family_name, words))
        scalars = {argument.name: words[argument.name] for argument in definition.arguments if not argument.is_pointer}
        values: dict[str, Any] = dict(words)
        for argument in definition.arguments:
            if argument.elements is not None:
                size = argument.elements(scalars) * ITEM_BYTES[argument.dtype]
                values[argument.name] = memory(words[argument.name], size).view(DTYPES[argument.dtype])
        KERNELS[payload.family_name](payload, SimpleNamespace(**values), words)
        return (SUCCESS,)


class ReferenceDevice(Device):
    """A device of sm_90a whose memory is the host's."""

    def __init__(self) -> None:
        self.ordinal = 0
        self.driver = ReferenceDriver()
        self.torch = torch
        self.torch_device = torch.device("cpu")
        self.name = "reference device"
        self.capability = (9, 0)
        self.sm_count = 132
        self._primary = "primary context"
        self.dtypes = DTYPES
        self._current_stream = lambda ordinal: 0


def freeze(session: Session) -> ReferenceDriver:
    """Freeze a session on a device of its own and return its driver."""
    device = ReferenceDevice()
    session._device = device
    session.freeze()
    for digest, program in session._programs.items():
        device.driver.known[program._function] = (session._planned[digest][0].payload, program.definition)
    return device.driver

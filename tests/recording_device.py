"""A device that records driver calls, and tensors for the program that is launched on it."""

import ctypes
from types import SimpleNamespace
from typing import Any

import torch

from planfreeze.device import Device
from planfreeze.programs import Bound

HIDDEN, TOP_K, TOKENS = 256, 2, 3


def status(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, value=0 if name == "CUDA_SUCCESS" else 1)


class RecordingDriver:
    """Answers every driver call with success, and keeps the calls."""

    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared",
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT="carveout",
    )
    CUresult = SimpleNamespace(CUDA_SUCCESS=status("CUDA_SUCCESS"))
    CUlaunchConfig = SimpleNamespace
    CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION="programmatic")

    class CUlaunchAttribute:
        def __init__(self) -> None:
            self.value = SimpleNamespace()

    @staticmethod
    def CUstream(handle: int) -> int:  # noqa: N802 - the driver's name
        return handle

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.refusals: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            if name in ("cuLaunchKernel", "cuLaunchKernelEx"):
                return (status(self.refusals.pop(0) if self.refusals else "CUDA_SUCCESS"),)
            return (status("CUDA_SUCCESS"), 4)

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]


class RecordingDevice(Device):
    """A device whose tensors are on the CPU and whose driver records."""

    def __init__(self) -> None:
        self.ordinal = 0
        self.driver = RecordingDriver()
        self.torch = torch
        self.torch_device = torch.device("cpu")
        self.name = "recording device"
        self.capability = (9, 0)
        self.sm_count = 132
        self._primary = "primary context"
        self.dtypes = {"bf16": torch.bfloat16}
        self._current_stream = lambda ordinal: 77


def rows(tokens: int = TOKENS, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(tokens * TOP_K, HIDDEN, dtype=dtype)


def sums(tokens: int = TOKENS) -> torch.Tensor:
    return torch.zeros(tokens, HIDDEN, dtype=torch.bfloat16)


def passed_words(bound: Bound, count: int) -> list[int]:
    """The first words that the driver reads: each from the address that it is given."""
    addresses = ctypes.cast(bound._address, ctypes.POINTER(ctypes.c_void_p))
    return [ctypes.c_int64.from_address(addresses[i] or 0).value for i in range(count)]

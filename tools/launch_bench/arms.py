"""Ways to launch one program with the same tensors: ours, the driver's, and those of others."""

import contextlib
import ctypes
import gzip
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from launch_bench.sums import BLOCK, LaunchSumPayload
from planfreeze.programs import Program
from planfreeze.resolve import ResolvedProgram
from planfreeze.sessions import Session

__all__ = ["KERNELS", "RUNTIME", "check_sum", "launch_arms", "make_tensors", "read_peer"]

KERNELS = "sums.so"
RUNTIME = "libcute_dsl_runtime.so.gz"
Arms = dict[str, Callable[[], Any]]


def make_tensors(arguments: int, device: Any) -> tuple[torch.Tensor, ...]:
    """Make the tensors of a call: as many sources as there are, and the result."""
    sources = (torch.full((BLOCK,), float(i + 1), device=device) for i in range(arguments - 2))
    return (*sources, torch.zeros(BLOCK, device=device))


def check_sum(name: str, tensors: tuple[torch.Tensor, ...], call: Callable[[], Any]) -> None:
    """Launch once and compare with the sum."""
    *sources, out = tensors
    out.fill_(torch.nan)
    call()
    if not torch.equal(out, torch.stack(sources).sum(0)):
        raise SystemExit(f"{name} did not add {len(sources)} tensors")


def launch_arms(
    session: Session, resolved: ResolvedProgram, tensors: tuple[torch.Tensor, ...], peer: Callable[..., Any] | None
) -> Arms:
    """Return every way to launch the program of a payload with these tensors, each the host's whole work of a call.

    Parameters
    ----------
    peer : callable, optional
        The same kernel through TVM-FFI.
    """
    program = session.program(resolved.payload)
    bound = program.bind(*tensors, BLOCK)
    arms: Arms = {
        "driver": driver_arm(program, tensors, bound.grid),
        "bound": bound.launch,
        "program": lambda: program.launch(*tensors, BLOCK),
        "cuda_core": cuda_core_arm(resolved, program, tensors, bound.grid),
        "triton_jit": triton_arm(resolved, tensors),
    }
    if peer is not None:
        arms["tvm_ffi"] = lambda: peer(*tensors, BLOCK)
    return arms


def driver_arm(program: Program, tensors: tuple[torch.Tensor, ...], grid: tuple[int, int, int]) -> Callable[[], Any]:
    """Return the bare driver call with parameters that were laid out before."""
    launch, info, count = program.device.driver.cuLaunchKernel, program.launch_info, len(tensors) + 1
    words = (ctypes.c_int64 * (count + 8))(*(tensor.data_ptr() for tensor in tensors), BLOCK)
    addresses = (ctypes.c_void_p * (count + 8))(*(ctypes.addressof(words) + 8 * i for i in range(count + 8)))
    stream, address = torch.cuda.current_stream().cuda_stream, ctypes.addressof(addresses)
    function, shared = program._function, info.shared_bytes
    keep = (words, addresses)

    def call() -> None:
        assert keep
        launch(function, *grid, *info.block, shared, stream, address, 0)

    return call


def cuda_core_arm(
    resolved: ResolvedProgram, program: Program, tensors: tuple[torch.Tensor, ...], grid: tuple[int, int, int]
) -> Callable[[], Any]:
    """Return a launch by cuda.core, of addresses that were read before."""
    from cuda.core import Device, LaunchConfig, ObjectCode, launch

    device = Device()
    device.set_current()
    kernel = ObjectCode.from_cubin(resolved.cubin).get_kernel(resolved.record.symbol)
    info = program.launch_info
    config = LaunchConfig(grid=grid, block=info.block, shmem_size=info.shared_bytes)
    padding = [0] * (len(resolved.record.parameter_bytes) - len(tensors) - 1)
    arguments = (*(tensor.data_ptr() for tensor in tensors), ctypes.c_int32(BLOCK), *padding)
    stream = device.default_stream
    return lambda: launch(stream, config, kernel, *arguments)


def triton_arm(resolved: ResolvedProgram, tensors: tuple[torch.Tensor, ...]) -> Callable[[], Any]:
    """Return Triton's own launch of the kernel."""
    from launch_bench import sums_triton

    assert isinstance(resolved.payload, LaunchSumPayload)
    kernel = getattr(sums_triton, f"sum_{resolved.payload.arguments}")[(1,)]
    return lambda: kernel(*tensors, BLOCK, offset=0, block=BLOCK)


def read_peer(folder: Path | None, unpacked: Path) -> tuple[Callable[[int], Callable[..., Any] | None], str]:
    """Return the kernels that ``export_cute.py`` wrote, by their arguments, and what was found.

    Parameters
    ----------
    unpacked : Path
        An empty folder for what is packed.
    """
    if folder is None:
        return lambda arguments: None, "not asked for"
    runtime = unpacked / RUNTIME.removesuffix(".gz")
    runtime.write_bytes(gzip.decompress((folder / RUNTIME).read_bytes()))
    for wheel in folder.glob("*.whl"):
        with contextlib.closing(zipfile.ZipFile(wheel)) as archive:
            archive.extractall(unpacked)
    sys.path.append(str(unpacked))
    import tvm_ffi

    ctypes.CDLL(str(runtime), ctypes.RTLD_GLOBAL)  # what the kernels call to launch
    kernels = tvm_ffi.load_module(str(folder / KERNELS))
    return lambda arguments: getattr(kernels, f"sum_{arguments}"), f"apache-tvm-ffi {tvm_ffi.__version__}"

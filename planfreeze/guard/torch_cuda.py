"""The road of torch's own runtime compiler: ``torch.cuda._compile_kernel``, which calls NVRTC through ctypes.

What counts as an attempt: every compile, and loading PTX with ``torch.cuda._utils._cuda_load_module``.

Not seen: NVRTC called by torch's C++ library (jiterator, fusers).
"""

from typing import Any

from planfreeze.guard.attempts import Attempt, user_location
from planfreeze.guard.ptx import describe_image, make_probe
from planfreeze.guard.roads import Door, Road, watch_doors

__all__ = ["road"]

MODULE = "torch.cuda._utils"


def describe_compile(arguments: tuple[Any, ...], options: dict[str, Any]) -> Attempt:
    """Describe ``_nvrtc_compile(source, name, capability, ...)``."""
    call = dict(zip(("kernel_source", "kernel_name", "compute_capability"), arguments, strict=False)) | options
    return Attempt(
        road="torch-cuda",
        kernel=str(call.get("kernel_name")),
        signature=f"compute capability {call.get('compute_capability') or 'of the device'}",
        location=user_location("unknown:0"),
    )


def attempt_compile() -> object:
    """Compile an empty kernel for a stated architecture."""
    from torch.cuda import _utils

    return _utils._nvrtc_compile("", "probe", "90")


def attempt_load() -> object:
    """Load PTX; unguarded, it fails for want of a driver."""
    from torch.cuda import _utils

    return _utils._cuda_load_module(make_probe())


DOORS = (
    Door(module=MODULE, path="_nvrtc_compile", describe=describe_compile),
    Door(module=MODULE, path="_cuda_load_module", describe=describe_image("torch-cuda", 0, "ptx")),
)

road = Road(
    name="torch-cuda",
    package="torch",
    modules=(MODULE,),
    install=watch_doors("torch-cuda", DOORS),
    attempts=(attempt_compile, attempt_load),
)

"""What a device run ran on."""

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from planfreeze.kernels.moe.act_quant import ActQuantPayload
from planfreeze.sessions import Session


def describe_machine(session: Session) -> dict[str, Any]:
    """Return device, driver and versions."""
    device = session.program(ActQuantPayload(hidden=5120)).device
    version = device.check("version", device.driver.cuDriverGetVersion())
    kernel_driver = Path("/proc/driver/nvidia/version")
    return {
        "device": device.name,
        "cuda_driver": f"{version // 1000}.{version % 1000 // 10}",
        "kernel_driver": kernel_driver.read_text().splitlines()[0] if kernel_driver.exists() else "unknown",
        "versions": {
            "python": sys.version.split()[0],
            **{name: importlib.metadata.version(name) for name in ("torch", "cuda-core", "cuda-bindings")},
        },
    }

"""How a compile process grows: threads, open files and memory after so many different small programs."""

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from planfreeze.family import family_of
from planfreeze.key import source_roots
from planfreeze.payload import Payload
from planfreeze.sources import read_sources
from planfreeze.target import target
from planfreeze.workers import Task, Worker

__all__ = ["measure_growth"]

KERNELS = {
    "triton": """
import triton
import triton.language as tl
@triton.jit
def fill(out, value: tl.constexpr):
    tl.store(out + tl.arange(0, 32), value)
""",
    "cute": """
from cutlass import Int32, Int64, cute
class fill:
    def __init__(self, *, launch, value):
        self.launch, self.value = launch, value
    @cute.jit
    def __call__(self, out: Int64, stream):
        self.kernel(out).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)
    @cute.kernel
    def kernel(self, out: Int64):
        address = cute.make_ptr(Int32, out, cute.AddressSpace.gmem, assumed_align=4)
        cute.make_tensor(address, cute.make_layout(32))[cute.arch.thread_idx()[0]] = Int32(self.value)
""",
}
FAMILY = """
from typing import ClassVar
from planfreeze.family import CuteSource, Definition, LaunchInfo, TritonSource, family, pointer
from planfreeze.payload import Payload
class FillPayload(Payload):
    family_name: ClassVar[str] = "growth_DIALECT"
    value: int
@family(FillPayload, version=1)
def fill(payload, target):
    constants = (("value", payload.value),)
    return Definition(
        arguments=(pointer("out", "i32", lambda scalars: 32),),
        source=SOURCE,
        grid=lambda scalars, resident_blocks: (1, 1, 1),
    )
"""
SOURCES = {
    "triton": 'TritonSource(kernel="growth_triton.kernel:fill", constants=constants, num_warps=1)',
    "cute": ('CuteSource(kernel="growth_cute.kernel:fill", constants=constants, launch=LaunchInfo(block=(32, 1, 1)))'),
}


def write_family(folder: Path, dialect: str) -> type[Payload]:
    """Write a package with a small kernel of a dialect and import its payload."""
    package = folder / f"growth_{dialect}"
    package.mkdir()
    text = FAMILY.replace("DIALECT", dialect).replace("SOURCE", SOURCES[dialect])
    for name, content in {"__init__": "", "kernel": KERNELS[dialect], "families": text}.items():
        (package / f"{name}.py").write_text(content)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    payload: type[Payload] = importlib.import_module(f"growth_{dialect}.families").FillPayload
    return payload


def measure_growth(folder: Path, dialect: str, compiles: int, every: int) -> Iterator[dict[str, int]]:
    """Compile different programs in one process and yield what it holds after every so many of them.

    Parameters
    ----------
    folder : Path
        Where the kernels are written.
    dialect : str
        "triton" or "cute".
    """
    made_for = target("sm_90a")
    payload_type = write_family(folder, dialect)
    first = payload_type(value=0)  # type: ignore[call-arg]
    family = family_of(first)
    sources = read_sources(source_roots(family, family.define(first, made_for)))
    with Worker(made_for) as worker:
        for number in range(1, compiles + 1):
            payload = payload_type(value=number)  # type: ignore[call-arg]
            worker.compile(Task(family.reference, payload, made_for, sources))
            if number % every == 0:
                yield {"compiles": number, **look_at(worker.pid)}


def look_at(process: int) -> dict[str, int]:
    """Return a process's threads, open files and resident KiB."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {
        "threads": int(status["Threads"]),
        "files": len(list(Path(f"/proc/{process}/fd").iterdir())),
        "resident_kib": int(status["VmRSS"].split()[0]),
    }


def main() -> None:
    """Print a line of JSON for every look."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dialect", choices=sorted(KERNELS), required=True)
    parser.add_argument("--compiles", type=int, default=500)
    parser.add_argument("--every", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for look in measure_growth(Path(folder), options.dialect, options.compiles, options.every):
            sys.stdout.write(f"{json.dumps(look)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

"""A declared family from the kernel to the driver call: built for real, launched on a driver that records."""

import ctypes
import importlib
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from planfreeze import sessions
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import InvalidArgument, UnplannedProgram
from planfreeze.plans import plan_families
from planfreeze.sessions import Session
from planfreeze.target import target

pytest.importorskip("torch")

import torch

from ..recording_device import RecordingDevice

KERNEL = """
import triton
import triton.language as tl

@triton.jit(do_not_specialize=["wide", "small"])
def kernel(out, n, wide, factor, precise: tl.float64, is_even, small: tl.int8, bias, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = at * factor + wide + precise + small
    if is_even:
        total += 1
    if bias is not None:
        total += tl.load(bias + at)
    tl.store(out + at, total.to(tl.float32), mask=at < n)
"""
FAMILY = """
from planfreeze.declarations import flag, integer, real, tensor, triton_family

@triton_family(
    kernel="declared_session_kernels:kernel",
    arguments=(
        tensor("out", "f32", alignment=4, elements=lambda s: s["n"]),
        integer("n", 1, 100),
        integer("wide", -(2**40), 2**40),
        real("factor"),
        real("precise", "f64"),
        flag("is_even"),
        integer("small", -128, 127, dtype="i8"),
        tensor("bias", "f32", optional=True),
    ),
    constants={"BLOCK": (64, 128)},
    do_not_specialize=("wide", "small"),
)
def session_family(scalars, constants):
    return (-(-scalars["n"] // constants["BLOCK"]),)
"""


class RecordingDriver:
    """Answers every driver call with success, and keeps the parameters of launches as the driver would read them."""

    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")

    def __init__(self) -> None:
        self.launches: list[tuple[tuple[int, ...], int]] = []

    def __getattr__(self, name: str) -> Any:
        success = SimpleNamespace(name="CUDA_SUCCESS", value=0)
        return lambda *arguments: (success, 4)

    def cuLaunchKernel(self, function: Any, *sizes: Any) -> tuple[Any]:  # noqa: N802 - the driver's name
        self.launches.append((sizes[:3], sizes[8]))
        return (SimpleNamespace(name="CUDA_SUCCESS", value=0),)


class DeclaredDevice(RecordingDevice):
    """A recording device of what declared kernels take."""

    def __init__(self, ordinal: int | None = None) -> None:
        super().__init__()
        self.driver = RecordingDriver()
        self.dtypes = {"f32": torch.float32}


@pytest.fixture(scope="module")
def declaring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("declaring")
        (folder / "declared_session_kernels.py").write_text(KERNEL)
        (folder / "declared_session_family.py").write_text(FAMILY)
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("declared_session_family")


@pytest.fixture(scope="module")
def store(declaring: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with some variants of the family: those of one block and of values that fit 32 bits."""
    folder = tmp_path_factory.mktemp("built")
    family = declaring.session_family
    plan = plan_families([family], ["declared_session_family:session_family"], target=target("sm_90a"))
    chosen = tuple(p for p in plan.payloads if p.BLOCK == 64)  # type: ignore[attr-defined]
    assert len(chosen) == len(plan.payloads) // 2 == 2 * 3 * 2 * 2
    opened = Store.open(folder / "store", writable=True)
    report = build_plans([type(plan)(**fields(plan) | {"payloads": chosen})], opened, jobs=2, toolchains=folder)
    assert [outcome.reason for outcome in report.outcomes if outcome.status != "compiled"] == []
    return opened.path


def fields(plan: Any) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in ("model", "tp", "target", "payloads", "options")}


@pytest.fixture
def session(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(sessions, "Device", DeclaredDevice)
    plans = ("session_family-tp1-sm_90a",)
    with Session(plans, store, device=None, build=False, is_trusted=True) as made:
        yield made.freeze()


def read(address: int, layout: str) -> tuple[Any, ...]:
    """Read kernel parameters as the driver does: an array of addresses, each of a value of its own size."""
    codes = layout.split()
    places = (ctypes.c_uint64 * len(codes)).from_address(address)
    return tuple(
        struct.unpack("<" + code, ctypes.string_at(place, struct.calcsize(code)))[0]
        for code, place in zip(codes, places, strict=True)
    )


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(
    ("n", "wide", "layout"), [(1, -7, "Q i f d ? b"), (48, 2**33, "Q i q f d ? b"), (99, 5, "Q i i f d ? b")]
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_call_launches_its_variant_with_its_own_parameters(
    declaring: ModuleType, session: Session, shift: int, n: int, wide: int, layout: str, has_bias: bool
) -> None:
    memory = torch.zeros(256)
    out, bias = memory[shift:], memory[128:] if has_bias else None
    bound = session.bind(declaring.session_family, out, n, wide, 0.1, 0.3, True, -5, bias, BLOCK=64)
    bound.launch()
    ((grid, address),) = session._device.driver.launches  # type: ignore[union-attr]
    assert grid == (-(-n // 64), 1, 1)
    out_address, *numbers = read(address, layout + " Q" * has_bias)
    expected = [*([n] if n != 1 else []), wide, struct.unpack("<f", struct.pack("<f", 0.1))[0], 0.3, True, -5]
    assert out_address == out.data_ptr()
    assert numbers == [*expected, *([bias.data_ptr()] if has_bias else [])]
    launched = session.program(declaring.session_family.specialize(out, n, wide, 0.1, 0.3, True, -5, bias, BLOCK=64))
    assert bound.program is launched


def test_a_variant_that_is_not_planned_is_refused_by_the_constant_that_differs(
    declaring: ModuleType, session: Session
) -> None:
    call = (torch.zeros(256), 48, 5, 0.1, 0.3, True, -5, None)
    with pytest.raises(UnplannedProgram, match="differs in BLOCK: 64 -> 128"):
        session.launch(declaring.session_family, *call, BLOCK=128)
    with pytest.raises(InvalidArgument, match="argument n = 101"):
        session.launch(declaring.session_family, call[0], 101, *call[2:], BLOCK=64)
    with pytest.raises(InvalidArgument, match="out has 47 elements, the kernel may touch 48"):
        session.launch(declaring.session_family, torch.zeros(47), *call[1:], BLOCK=64)
    session.launch(declaring.session_family, *call, BLOCK=64, grid=(9, 2), stream=5)
    assert session._device.driver.launches[0][0] == (9, 2, 1)  # type: ignore[union-attr]

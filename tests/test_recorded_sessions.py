"""Sessions on a device that records: what they count, and the planned program they name beside a refusal."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from planfreeze.errors import CompilationForbidden
from planfreeze.family import LaunchInfo
from planfreeze.guard import road_names
from planfreeze.guard.attempts import Attempt
from planfreeze.guard.watch import watch
from planfreeze.resolve import program_name
from planfreeze.sessions import Session

from .recording_device import RecordingDevice


@pytest.fixture
def session(built: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A frozen session over ``add(block=64)`` and ``copy()``, on a device that records."""
    device = RecordingDevice()
    device.dtypes = {"i32": torch.int32}
    monkeypatch.setattr("planfreeze.sessions.Device", lambda ordinal: device)
    made = Session(("toys-tp1-sm_90a",), built.store.path, device=None, build=False, is_trusted=True)
    yield made.freeze()
    made.close()


def test_a_session_counts_attempts_programs_and_launches_and_keeps_them_when_closed(
    session: Session, built: Any, toys: Any
) -> None:
    add, copy = toys.families.AddPayload(block=64), toys.families.CopyPayload()
    numbers = torch.zeros(64, dtype=torch.int32)
    for _ in range(3):
        session.program(add).launch(numbers, numbers, 64)
    seen = session.statistics()
    assert seen.attempts == dict.fromkeys(road_names(), 0)
    assert seen.programs == 2 and seen.launches == 3
    assert seen.program_launches == {program_name(add): 3, program_name(copy): 0}
    assert seen.plans == {"toys-tp1-sm_90a": built.report.plans[0].root}
    with pytest.raises(CompilationForbidden):
        watch.report(Attempt(road="triton-load", kernel="k", location="app.py:1", action="load"))
    session.close()
    session.close()
    after = session.statistics()
    assert after == replace(seen, attempts=seen.attempts | {"triton-load": 1})
    assert 'planfreeze_attempts_total{road="triton-load"} 1\n' in after.to_prometheus()


def test_a_frozen_session_names_the_nearest_planned_program_of_a_triton_call(session: Session, toys: Any) -> None:
    compiler = pytest.importorskip("triton.compiler.compiler")
    from triton.backends.compiler import GPUTarget

    kernel = importlib.import_module("toys.add_triton").add_kernel
    signature = {"source": "*i32", "out": "*i32", "count": "i32", "block": "constexpr"}
    source = compiler.ASTSource(kernel, signature, {"block": 128}, {(1,): [["tt.divisibility", 16]]})
    with pytest.raises(CompilationForbidden) as caught:
        compiler.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "num_stages": 1})
    assert str(caught.value).endswith(
        "The nearest planned program is toys_add(block=64, warps=1), which differs in source: divisible by 16 -> not; "
        "block: 64 -> 128; num_warps: 1 -> 8. Run: planfreeze build --model toys --tp 1 --arch sm_90a, with a plan "
        "that holds this program"
    )
    assert session.attempts == {"triton": 1}


def test_a_frozen_session_names_the_nearest_planned_program_of_a_cute_call(session: Session) -> None:
    cute = pytest.importorskip("cutlass.cute")
    copying = importlib.import_module("toys.copy_cute").Copy(launch=LaunchInfo(block=(32, 1, 1)), mode="other")
    copying.mode = "other"
    with pytest.raises(CompilationForbidden, match="mode: 'plain' -> 'other'"):
        cute.compile(copying, 0, 0, 0, None)
    assert session.attempts == {"cute": 1}

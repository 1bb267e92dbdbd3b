"""Launching without having compiled: captures, collected objects, threads, devices, limits of shared memory."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from copy import copy
from pathlib import Path

import pytest
from msgspec.structs import replace

import planfreeze
from planfreeze.errors import LaunchFailed, SessionState
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.sessions import Session

pytestmark = pytest.mark.gpu

PLAN = "ds41-tp4-sm_90a"
HIDDEN, TOP_K, TOKENS = 5120, 6, 3
PAYLOAD = TopkSumPayload(hidden=HIDDEN, top_k=TOP_K)
SHARED_BYTES = (47 * 1024, 48 * 1024, 48 * 1024 + 16, 49 * 1024, 100 * 1024)


def open_session(*plans: str, device: int | None = None) -> Session:
    return planfreeze.session(*plans, store=os.environ["PLANFREEZE_TEST_PACK"], is_trusted=True, device=device)


@pytest.fixture
def session() -> Iterator[Session]:
    with open_session(PLAN) as made:
        yield made.freeze()


def make_rows(device: str = "cuda"):
    import torch

    rows = torch.randn(TOKENS * TOP_K, HIDDEN, device=device).bfloat16()
    return rows, torch.full((TOKENS, HIDDEN), torch.nan, dtype=torch.bfloat16, device=device)


def expected(rows):
    total = rows.view(TOKENS, TOP_K, HIDDEN).float()
    return sum(total[:, j] for j in range(TOP_K)).bfloat16()


@pytest.mark.parametrize("loading", ["LAZY", "EAGER"])
def test_the_very_first_launch_may_be_captured_on_a_side_stream(loading: str) -> None:
    script = f"""
import os, torch, planfreeze
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
session = planfreeze.session({PLAN!r}, store=os.environ["PLANFREEZE_TEST_PACK"], is_trusted=True).freeze()
rows = torch.ones({TOKENS * TOP_K}, {HIDDEN}, dtype=torch.bfloat16, device="cuda")
out = torch.full(({TOKENS}, {HIDDEN}), torch.nan, dtype=torch.bfloat16, device="cuda")
bound = session.program(TopkSumPayload(hidden={HIDDEN}, top_k={TOP_K})).bind(rows, out, {TOKENS})
graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.graph(graph, stream=side):
    bound.launch()
graph.replay()
assert bool((out == {TOP_K}).all())
"""
    environment = {**os.environ, "CUDA_MODULE_LOADING": loading}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_collecting_garbage_in_a_capture_and_between_replays_changes_nothing(session: Session) -> None:
    import torch

    rows, out = make_rows()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        session.program(PAYLOAD).bind(rows, out, TOKENS).launch()
        gc.collect()
    for _ in range(3):
        gc.collect()
        rows.neg_()
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, expected(rows))


def test_a_program_that_nobody_keeps_is_launched_again(session: Session) -> None:
    import torch

    for _ in range(5):
        rows, out = make_rows()
        session.program(PAYLOAD).launch(rows, out, TOKENS)
        gc.collect()
        assert torch.equal(out, expected(rows))


def test_a_launch_the_driver_refuses_raises_at_the_call(session: Session) -> None:
    import torch

    program = session.program(PAYLOAD)
    rows, out = make_rows()
    asked = program.launch_info
    for refused in (replace(asked, shared_bytes=1 << 20), replace(asked, block=(4096, 1, 1))):
        bad = copy(program)
        # A program's calls of the driver, and what they fill, are made once.
        bad.launch_info, bad._launches, bad._idle = refused, {}, {False: [], True: []}
        with pytest.raises(LaunchFailed, match="topk_sum"):
            bad.launch(rows, out, TOKENS)
    program.launch(rows, out, TOKENS)
    assert torch.equal(out, expected(rows))


def test_programs_on_both_sides_of_the_shared_memory_limit_alternate_from_two_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "tools"))
    from probes.shared_probe import ITEMS, SharedProbePayload

    wrong: list[int] = []
    with open_session("checks-tp1-sm_90a") as session:
        session.freeze()

        def alternate(sizes: tuple[int, ...]) -> None:
            for size in sizes * 20:
                source = torch.randn(ITEMS, device="cuda")
                out = torch.full_like(source, torch.nan)
                session.program(SharedProbePayload(shared_bytes=size)).launch(source, out)
                if not torch.equal(out, source.view(-1, 4).flip(0).view(-1)):
                    wrong.append(size)

        threads = [threading.Thread(target=alternate, args=(sizes,)) for sizes in (SHARED_BYTES, SHARED_BYTES[::-1])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_threads_that_launch_while_another_closes_get_a_result_or_a_clear_error() -> None:
    import torch

    rows, _ = make_rows()
    wanted = expected(rows)
    surprises: list[str] = []
    launched = refused = 0
    for round_number in range(60):
        session = open_session(PLAN)
        if round_number % 2:
            session.freeze()
        outs = [make_rows()[1] for _ in range(8)]
        torch.cuda.synchronize()
        barrier = threading.Barrier(len(outs) + 1)
        done = [False] * len(outs)

        def launch(place: int, session: Session = session, outs=outs, done=done, barrier=barrier) -> None:
            barrier.wait()
            try:
                session.program(PAYLOAD).launch(rows, outs[place], TOKENS, stream=0)
                done[place] = True
            except SessionState:
                pass
            except Exception as error:  # noqa: BLE001 - whatever else comes is the finding
                surprises.append(repr(error))

        threads = [threading.Thread(target=launch, args=(place,)) for place in range(len(outs))]
        for thread in threads:
            thread.start()
        barrier.wait()
        if round_number % 3 == 0:
            for thread in threads:
                thread.join()
        session.close()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        assert all(torch.equal(out, wanted) for out, is_done in zip(outs, done, strict=True) if is_done)
        launched += sum(done)
        refused += len(done) - sum(done)
    assert surprises == []
    assert launched >= 160, (launched, refused)


def test_one_program_runs_on_two_devices_from_two_threads() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    sessions = [open_session(PLAN, device=ordinal).freeze() for ordinal in (0, 1)]
    wrong: list[tuple[int, str]] = []

    def launch(order: tuple[int, ...]) -> None:
        for ordinal in order * 20:
            rows, out = make_rows(f"cuda:{ordinal}")
            try:
                with torch.cuda.device(ordinal):
                    sessions[ordinal].program(PAYLOAD).launch(rows, out, TOKENS)
                    torch.cuda.synchronize()
                if not torch.equal(out, expected(rows)):
                    wrong.append((ordinal, "result"))
            except Exception as error:  # noqa: BLE001 - whatever comes is the finding
                wrong.append((ordinal, repr(error)))

    threads = [threading.Thread(target=launch, args=(order,)) for order in ((0, 1, 0), (1, 0, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A launch with another device current pushes its own context.
    torch.cuda.set_device(0)
    rows, out = make_rows("cuda:1")
    sessions[1].program(PAYLOAD).launch(rows, out, TOKENS, stream=0)
    torch.cuda.synchronize(1)
    assert torch.equal(out, expected(rows))
    for session in sessions:
        session.close()
    assert wrong == []

"""Sessions on a device, over a pack that was built elsewhere: PLANFREEZE_TEST_PACK is its store."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import planfreeze
from planfreeze.cache.readable import open_readable
from planfreeze.errors import InvalidArgument, SessionState, UnplannedProgram
from planfreeze.facts import planned_facts
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.resolve import PlanReference, find_plan, planned_programs
from planfreeze.sessions import Session

pytestmark = pytest.mark.gpu

PLAN = "ds41-tp4-sm_90a"
HIDDEN, TOP_K, TOKENS = 5120, 6, 3
PAYLOAD = TopkSumPayload(hidden=HIDDEN, top_k=TOP_K)


@pytest.fixture
def session() -> Iterator[Session]:
    with planfreeze.session(PLAN, store=os.environ["PLANFREEZE_TEST_PACK"], is_trusted=True) as made:
        yield made.freeze()


def make_rows():
    import torch

    rows = torch.randn(TOKENS * TOP_K, HIDDEN, device="cuda").bfloat16()
    return rows, torch.full((TOKENS, HIDDEN), torch.nan, dtype=torch.bfloat16, device="cuda")


def expected(rows):
    total = rows.view(TOKENS, TOP_K, HIDDEN).float()
    return sum(total[:, j] for j in range(TOP_K)).bfloat16()


def test_each_program_launches_from_two_places_many_times(session: Session) -> None:
    import torch

    for _ in range(5):
        for bind in (session.program(PAYLOAD).bind, planfreeze.sessions.Session.program(session, PAYLOAD).bind):
            rows, out = make_rows()
            bind(rows, out, TOKENS).launch()
            assert torch.equal(out, expected(rows))


def test_the_driver_keeps_as_many_blocks_resident_as_the_facts_of_a_program_say(session: Session) -> None:
    store = open_readable(os.environ["PLANFREEZE_TEST_PACK"], is_trusted=True)
    plan = find_plan(store, PlanReference.parse(PLAN))
    for planned, facts in zip(planned_programs(plan), planned_facts(plan, store), strict=True):
        program = session.program(planned.payload)
        assert program.resident_blocks == facts.resident_ctas * program.device.sm_count, facts.name


def test_a_launch_works_on_a_side_stream_and_in_a_graph(session: Session) -> None:
    import torch

    rows, out = make_rows()
    bound = session.program(PAYLOAD).bind(rows, out, TOKENS)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    bound.launch(side)
    side.synchronize()
    assert torch.equal(out, expected(rows))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound.launch()
    for _ in range(3):
        rows.neg_()
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, expected(rows))


def test_threads_without_a_context_launch(session: Session) -> None:
    import torch

    rows, _ = make_rows()
    outs = [make_rows()[1] for _ in range(8)]
    bounds = [session.program(PAYLOAD).bind(rows, out, TOKENS) for out in outs]
    threads = [threading.Thread(target=bound.launch, args=(0,)) for bound in bounds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected(rows)) for out in outs)


def test_an_unplanned_payload_is_refused_with_the_nearest_planned_one(session: Session) -> None:
    with pytest.raises(UnplannedProgram, match="top_k: 6 -> 8"):
        session.program(TopkSumPayload(hidden=HIDDEN, top_k=8))


def test_a_tensor_on_the_host_is_refused(session: Session) -> None:
    rows, out = make_rows()
    with pytest.raises(InvalidArgument, match="route_output is on cpu"):
        session.program(PAYLOAD).bind(rows.cpu(), out, TOKENS)


def test_an_unaligned_view_is_refused(session: Session) -> None:
    rows, out = make_rows()
    with pytest.raises(InvalidArgument, match=r"route_output .* aligned to 16"):
        session.program(PAYLOAD).bind(rows.view(-1)[1:-7], out, 2)


def test_a_kept_program_raises_after_close() -> None:
    rows, out = make_rows()
    with planfreeze.session(PLAN, store=os.environ["PLANFREEZE_TEST_PACK"], is_trusted=True) as session:
        program = session.freeze().program(PAYLOAD)
        bound = program.bind(rows, out, TOKENS)
    for use in (bound.launch, lambda: program.bind(rows, out, TOKENS), lambda: session.program(PAYLOAD)):
        with pytest.raises(SessionState, match="closed"):
            use()


def test_a_forked_child_is_refused() -> None:
    script = f"""
import os, sys, torch, planfreeze
from planfreeze.errors import SessionState
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
session = planfreeze.session({PLAN!r}, store=os.environ["PLANFREEZE_TEST_PACK"], is_trusted=True).freeze()
rows = torch.zeros(6, {HIDDEN}, dtype=torch.bfloat16, device="cuda")
bound = session.program(TopkSumPayload(hidden={HIDDEN}, top_k={TOP_K})).bind(rows, rows[:1], 1)
child = os.fork()
if child == 0:
    try:
        bound.launch()
    except SessionState as error:
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=120).returncode == 0


def test_the_process_session_comes_from_the_environment() -> None:
    script = (
        "import planfreeze, torch\n"
        "session = planfreeze.session().freeze()\n"
        "assert session is planfreeze.session() and session.is_frozen\n"
        "assert len(session.plans) == 2\n"
    )
    environment = {
        **os.environ,
        "PLANFREEZE_STORE": os.environ["PLANFREEZE_TEST_PACK"],
        "PLANFREEZE_PLAN": f"{PLAN},kimi_k3-tp16-sm_90a",
        "PLANFREEZE_TRUST_STORE": "1",
    }
    assert subprocess.run([sys.executable, "-c", script], env=environment, check=False, timeout=120).returncode == 0


def test_a_replay_on_the_device_loads_every_program() -> None:
    arguments = ("--plan", PLAN, "--store", os.environ["PLANFREEZE_TEST_PACK"], "--trust-store", "--device", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "planfreeze", "replay", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"loaded": 36' in done.stdout


@pytest.mark.parametrize("flag", ["is_cooperative", "is_programmatic"])
def test_launch_attributes_reach_the_driver(session: Session, flag: str) -> None:
    import torch
    from msgspec.structs import replace

    program = session.program(PAYLOAD)
    program.launch_info = replace(program.launch_info, **{flag: True})
    rows, out = make_rows()
    program.launch(rows, out, TOKENS)
    assert torch.equal(out, expected(rows))

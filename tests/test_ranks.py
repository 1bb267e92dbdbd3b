"""Two processes with a collective between them, one of which meets a program that was not planned."""

import json
from pathlib import Path

import pytest

LIMIT_S = 60

RANK = """
import datetime, json, os, sys, time
import torch
import torch.distributed as dist
from pathlib import Path
from planfreeze.guard import no_compilation
from planfreeze.sessions import Session
from toys.families import AddPayload

meeting, store, rank, road = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
limit = datetime.timedelta(seconds=LIMIT_S)
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=limit)
session = Session(("toys-tp1-sm_90a",), Path(store), device=None, build=False, is_trusted=False)
roots = [None, None]
dist.all_gather_object(roots, [plan.root for plan in session.plans])
assert roots[0] == roots[1], "the ranks serve different plans"

def meet_unplanned():
    if road == "session":
        session.program(AddPayload(block=128))
    else:
        from triton.backends.compiler import GPUTarget
        from triton.compiler.compiler import ASTSource, compile
        from toys.add_triton import add_kernel
        signature = {"source": "*i32", "out": "*i32", "count": "i32", "block": "constexpr"}
        source = ASTSource(fn=add_kernel, signature=signature, constexprs={"block": 128})
        compile(source, target=GPUTarget("cuda", 90, 32))

import triton.compiler.compiler
with no_compilation():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
    started = time.monotonic()
    try:
        if rank == 1:
            meet_unplanned()
        dist.all_reduce(total)
        error = ""
    except Exception as raised:
        error = type(raised).__name__
print(json.dumps({"error": error, "seconds": time.monotonic() - started, "roots": roots[0]}), flush=True)
if rank == 1:
    os._exit(5)  # at once: gloo's threads, whose peer may be gone by then, can abort an orderly end
"""


@pytest.mark.parametrize(("road", "error"), [("session", "UnplannedProgram"), ("triton", "CompilationForbidden")])
def test_a_rank_that_meets_an_unplanned_program_raises_at_once_and_its_peer_does_not_wait_for_the_limit(
    interpreter, built, tmp_path: Path, road: str, error: str
) -> None:
    script = RANK.replace("LIMIT_S", str(LIMIT_S))
    meeting = tmp_path / "meeting"
    ranks = [
        interpreter.start("-c", script, str(meeting), str(built.store.path), str(rank), road, GLOO_SOCKET_IFNAME="lo")
        for rank in range(2)
    ]
    ended = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    told = [json.loads(output.splitlines()[-1]) if output else {"log": errors} for output, errors in ended]
    waiting, missing = told
    assert missing["error"] == error, told
    assert missing["seconds"] < 1
    assert ranks[1].returncode == 5
    assert waiting["error"], told
    assert waiting["seconds"] < LIMIT_S / 3
    assert waiting["roots"] == [built.report.plans[0].root]

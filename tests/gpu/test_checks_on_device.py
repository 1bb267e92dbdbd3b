"""Checks on a device, over a pack that was built elsewhere: PLANFREEZE_TEST_PACK is its store."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
PLAN = "ds41-tp4-sm_90a"
TOOLS = ("nvcc", "ptxas", "gcc", "g++", "cc", "c++", "clang", "as", "ld", "ninja", "cuobjdump", "ldconfig")

# Freezes the whole plan and launches one program of it, for the first time in a process with empty caches.
SERVE = """
import os, torch, planfreeze
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
session = planfreeze.session("PLAN", store=os.environ["PLANFREEZE_TEST_PACK"], is_trusted=True).freeze()
rows = torch.randn(18, 5120, device="cuda").bfloat16()
out = torch.full((3, 5120), torch.nan, dtype=torch.bfloat16, device="cuda")
session.program(TopkSumPayload(hidden=5120, top_k=6)).bind(rows, out, 3).launch()
total = rows.view(3, 6, 5120).float()
assert torch.equal(out, sum(total[:, place] for place in range(6)).bfloat16())
assert sum(session.attempts.values()) == 0
""".replace("PLAN", PLAN, 1)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment with empty caches."""
    caches = {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    return {**kept, **caches, "PYTHONPATH": path}


def test_a_session_freezes_and_launches_and_no_tool_is_called(tmp_path: Path, environment: dict[str, str]) -> None:
    log = tmp_path / "tools.log"
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\nexit 97\n')
        (folder / name).chmod(0o755)
    environment["PATH"] = str(folder)
    done = subprocess.run([sys.executable, "-c", SERVE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not log.exists(), log.read_text()
    assert subprocess.run(["gcc"], env=environment, check=False).returncode == 97
    assert log.read_text() == "gcc \n"


def test_a_guarded_command_serves(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "planfreeze", "run", "--json", "--", sys.executable, "-c", SERVE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["attempts"] == []


def test_the_doctor_says_that_frozen_serving_works(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "planfreeze", "doctor", "--json", "--trust-store"]
    store = ("--store", os.environ["PLANFREEZE_TEST_PACK"], "--plan", PLAN)
    done = subprocess.run([*command, *store], env=environment, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert (done.returncode, found["problems"]) == (0, [])
    assert found["driver"] and found["cuda"]
    assert found["devices"][0]["capability"] == [9, 0]
    assert [plan.partition("@")[0] for plan in found["plans"]] == [PLAN]


def test_a_replay_under_pytest_counts_the_launches_of_the_device(
    pytester: pytest.Pytester, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.setenv("PLANFREEZE_TRUST_STORE", "1")
    pytester.makepyfile(test_inner="def test_serve():\n" + "".join(f"    {line}\n" for line in SERVE.splitlines()))
    replay = (f"--planfreeze-replay={PLAN}", f"--planfreeze-store={os.environ['PLANFREEZE_TEST_PACK']}")
    is_installed = any(found.value == "planfreeze.pytest_plugin" for found in entry_points(group="pytest11"))
    plugin = () if is_installed else ("-p", "planfreeze.pytest_plugin")
    done = pytester.runpytest_subprocess(*plugin, *replay)
    text = done.stdout.str()
    # One program was used: the run fails for the others, and for nothing else.
    assert (done.ret, "1 passed" in text) == (1, True), text
    assert "1 launches of 1 of" in text and "0 attempts to compile" in text
    (reason,) = (line for line in text.splitlines() if line.startswith("FAILED: "))
    assert "were never used" in reason
    assert "topk_sum(hidden=5120, top_k=6)" not in reason

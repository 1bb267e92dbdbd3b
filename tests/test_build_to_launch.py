"""The whole route in one file, to read first: a model is planned, built without a GPU, replayed, and served.

The last step needs a device; everything before it runs anywhere.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import planfreeze
from planfreeze.kernels.moe.topk_sum import TopkSumPayload

MODEL = """
name = "tiny"
hidden = 256
intermediate = 64
experts = 4
top_k = 2
weight_format = "mxfp4_csf"
capacities = [8, 8192]
"""
# Eight tokens are served by the direct-route kernels, more by the grouped ones; those above the limit of inline
# scales run over planes that are expanded before. What reads routing ids is there for both types of them.
PROGRAMS = [
    "act_quant",
    *("expand", "expand"),
    *("micro_fc1", "micro_fc1", "micro_act", "micro_act", "micro_fc2", "micro_fc2"),
    *("route_plan", "route_plan", "split_fc1", "split_fc2"),
    "topk_sum",
]


def planfreeze_json(*arguments: str) -> dict:
    """Run the command line in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "planfreeze", *arguments, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's model: a few numbers in a TOML file."""
    path = tmp_path_factory.mktemp("model") / "tiny.toml"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def store(model: Path) -> Path:
    """A store that the model was built into, for both architectures."""
    path = model.parent / "store"
    arguments = ("--model", str(model), "--arch", "sm_90a", "--arch", "sm_120a", "--store", str(path))
    built = planfreeze_json("build", *arguments)
    assert (built["compiled"], built["reused"], built["failed"]) == (2 * len(PROGRAMS), 0, [])
    return path


def test_a_plan_lists_programs_from_geometry_alone(model: Path) -> None:
    (plan,) = planfreeze_json("plan", "--model", str(model), "--arch", "sm_90a")["plans"]
    assert [program["family"] for program in plan["programs"]] == PROGRAMS


def test_a_build_freezes_one_plan_per_architecture_and_then_finds_nothing_missing(model: Path, store: Path) -> None:
    arguments = ("--model", str(model), "--arch", "sm_90a", "--arch", "sm_120a", "--store", str(store))
    again = planfreeze_json("build", *arguments)
    assert (again["compiled"], again["reused"], again["failed"]) == (0, 2 * len(PROGRAMS), [])
    assert [plan["name"] for plan in again["plans"]] == ["tiny-tp1-sm_90a", "tiny-tp1-sm_120a"]


def test_a_replay_resolves_the_whole_plan_under_an_awake_guard(model: Path, store: Path) -> None:
    replayed = planfreeze_json("replay", "--model", str(model), "--arch", "sm_90a", "--store", str(store))
    assert replayed["resolved"] == len(PROGRAMS)
    assert replayed["missing"] == replayed["damaged"] == []
    assert replayed["compiled"] == 0
    assert {road for road, state in replayed["guard"].items() if state == "awake"} >= {"triton", "cute"}
    assert "asleep" not in replayed["guard"].values()


@pytest.mark.gpu
def test_a_frozen_session_launches_a_program_that_was_built_elsewhere() -> None:
    import torch

    with planfreeze.session("ds41-tp4-sm_90a", store=os.environ["PLANFREEZE_TEST_PACK"], is_trusted=True) as session:
        program = session.freeze().program(TopkSumPayload(hidden=5120, top_k=6))
        rows = torch.randn(3 * 6, 5120, device="cuda").bfloat16()
        out = torch.full((3, 5120), torch.nan, dtype=torch.bfloat16, device="cuda")
        program.bind(rows, out, 3).launch()
        expected = sum(rows.view(3, 6, 5120)[:, j].float() for j in range(6))
        assert torch.equal(out, expected.bfloat16())

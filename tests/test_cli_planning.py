"""The command line without a store: usage, plans, versions, and what cannot be made."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .command_line import FAMILIES, MODEL, run

# A replay proves the roads of every framework that is found; test_build_to_launch.py has one with all of them.
pytestmark = pytest.mark.usefixtures("hide_frameworks")


@pytest.mark.parametrize(
    ("arguments", "status", "messages"),
    [
        (("plan",), 2, ["--model"]),
        (("plan", "--model", "ds42"), 2, ["ds41"]),
        (("plan", "--model", "ds41", "--tp", "7"), 2, ["2304", "7"]),
        (("plan", "--model", "ds41", "--tp", "8"), 2, ["288"]),
        (("plan", "--model", "ds41", "--tp", "0"), 2, ["0"]),
        (("plan", "--model", "ds41", "--tp", "four"), 2, ["--tp", "int"]),
        (("plan", "--model", "ds41", "--tp", "4", "--capacity", "0"), 2, ["0 is not a capacity"]),
        (("plan", "--model", "ds41", "--tp", "4", "--capacity", "8,many"), 2, ["many"]),
        (("plan", "--model", "ds41", "--tp", "4", "--arch", "sm_90"), 2, ["sm_90a"]),
        (("plan", "--model", "ds41", "--tp", "4", "--arch", "gfx942"), 2, ["gfx942", "sm_90a, sm_120a"]),
        (("plan", "--model", "ds41", "--tp", "4", "--arms", "fast"), 2, ["fast"]),
        (("plan", "--model", "ds41", "--tp", "4", "--ids", "int16"), 2, ["int16"]),
        (("replay",), 2, ["--plan", "--model"]),
        (("replay", "--model", "ds41", "--plan", "p"), 2, ["--plan", "--model"]),
        (("frobnicate",), 2, ["frobnicate"]),
    ],
)
def test_bad_usage_exits_2_and_says_what_is_wrong(arguments: tuple[str, ...], status: int, messages: list[str]) -> None:
    found, stdout, stderr = run(*arguments)
    assert found == status
    assert stdout == ""
    for message in messages:
        assert message in stderr


def test_a_plan_prints_family_payload_and_digest_of_every_program() -> None:
    status, stdout, _ = run("plan", *MODEL, "--json")
    (plan,) = json.loads(stdout)["plans"]
    assert status == 0
    assert (plan["name"], plan["target"]) == ("ds41-tp4-sm_90a", "sm_90a")
    assert [set(program) for program in plan["programs"]] == [{"family", "payload", "digest"}] * 5
    assert [program["family"] for program in plan["programs"]] == list(FAMILIES)


def test_a_plan_for_people_names_every_program() -> None:
    status, stdout, _ = run("plan", *MODEL)
    assert status == 0
    assert "ds41-tp4-sm_90a: 5 programs" in stdout
    assert "hidden=5120, top_k=6" in stdout


def test_an_expert_configuration_without_arch_plans_for_the_default_one(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "qwen3_moe",
                "hidden_act": "silu",
                "hidden_size": 2048,
                "moe_intermediate_size": 768,
                "num_experts": 128,
                "num_experts_per_tok": 8,
            }
        )
    )
    status, stdout, stderr = run("plan", "--model", config, "--tp", "4", "--json")
    assert status == 0, stderr
    assert len(json.loads(stdout)["plans"][0]["programs"]) == 12


def test_a_store_that_cannot_be_made_exits_6() -> None:
    status, _, stderr = run("build", *MODEL, "--store", "/proc/planfreeze")
    assert status == 6
    assert "/proc/planfreeze" in stderr


def test_the_version_is_the_packages() -> None:
    import planfreeze

    assert run("--version")[1].strip() == f"planfreeze {planfreeze.__version__}"


def test_the_models_usual_ranks_are_the_default() -> None:
    assert json.loads(run("plan", "--model", "ds41", "--json")[1])["plans"][0]["name"] == "ds41-tp4-sm_120a"


@pytest.mark.parametrize(
    "body",
    ["raise OSError('broken')", "return None", "return [1]", "return payloads"],
)
def test_a_bad_enumerator_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    name = f"enumerator_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(f"def programs(model, *, tp, target, options):\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = tmp_path / "model.toml"
    fields = 'hidden = 256\nintermediate = 128\nexperts = 4\ntop_k = 2\nweight_format = "mxfp4"\n'
    model.write_text(f'{fields}programs = "{name}:programs"\n')
    status, _, stderr = run("plan", "--model", model, "--arch", "sm_90a")
    assert status == 2
    assert f"{name}:programs" in stderr


def test_a_result_that_cannot_be_written_exits_6() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "planfreeze", "plan", *MODEL], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 6
    assert b"standard output" in done.stderr

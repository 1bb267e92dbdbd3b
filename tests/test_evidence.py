"""The evidence of the device run: every cubin that the models' sm_90a plans build was launched and compared there.

Digests name bytes, so a change that leaves all cubins as they are needs no device, and one that does not fails here.
"""

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.models import PlanOptions, load_model
from planfreeze.plans import make_plan
from planfreeze.target import target

ROOT = Path(__file__).parents[1]
EVIDENCE = json.loads((ROOT / "evidence" / "h200.json").read_text())
UNVERIFIED = tomllib.loads((ROOT / "evidence" / "unverified.toml").read_text())
OPTIONS = PlanOptions(inline_limit=1536, arms=("inline", "expand", "native"))


def pinned() -> dict[str, str]:
    """Return the toolchain that the digests of the evidence belong to."""
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def plans(model_store: Store, toolchains: Path) -> tuple[FrozenPlan, ...]:
    for name in ("triton", "nvidia-cutlass-dsl"):
        if metadata.version(name) != pinned()[name]:
            pytest.skip(f"{name} {metadata.version(name)} is not the pinned {pinned()[name]} of the evidence")
    declared = [
        make_plan(load_model(name), tp=tp, target=target("sm_90a"), options=OPTIONS)
        for name, tp in (("ds41", 4), ("kimi_k3", 16))
    ]
    report = build_plans(declared, model_store, jobs=2, toolchains=toolchains)
    assert report.count("failed") == 0
    return report.plans


def test_every_cubin_of_the_models_was_launched_on_the_device(plans: tuple[FrozenPlan, ...]) -> None:
    launched = {program["blob"] for program in EVIDENCE["programs"]}
    families = {program["family"] for program in EVIDENCE["programs"]}
    unknown = [
        f"{entry.family} {dict(entry.fields)} {entry.blob}"
        for plan in plans
        for entry in plan.entries
        if entry.blob not in launched and entry.family.partition(":")[2] not in UNVERIFIED
    ]
    assert not unknown, "run tools/h200 on a device and replace evidence/h200.json"
    assert {
        "act_quant",
        "micro_fc1",
        "split_fc1",
        "split_fc2",
        "route_plan",
        "csf_decode",
        "expand",
        "topk_sum",
    } <= families


def test_no_family_is_unverified_without_a_reason_and_a_family_of_its_name() -> None:
    families = {program["family"] for program in EVIDENCE["programs"]}
    for family, reason in UNVERIFIED.items():
        assert family in families
        assert re.search(r"\w+ \w+", reason)


def test_the_device_run_used_no_compiler_and_passed_every_check() -> None:
    hidden = EVIDENCE["no_compiler"]
    assert hidden["modules_loaded"] == hidden["commands_found"] == hidden["compilers_started"] == []
    assert hidden["attempts"] == 0
    assert {check["state"] for check in EVIDENCE["checks"]} == {"passed"}
    assert EVIDENCE["stranded_pages"]["has_passed"] is True


def test_every_program_of_the_evidence_says_what_it_was_compared_with() -> None:
    for program in EVIDENCE["programs"]:
        assert program["compared_with"]
        assert re.fullmatch("[0-9a-f]{64}", program["blob"])
        assert program.get("relative_l2_max", 0) <= program.get("tolerance", 4e-3)


def test_whole_layers_were_run_with_all_arms() -> None:
    layers = EVIDENCE["layers"]
    assert {"ds41-tp4-sm_90a", "layer_1024_320-tp1-sm_90a", "layer_512_256-tp1-sm_90a"} <= layers.keys()
    for by_tokens in layers.values():
        assert {"1", "8", "17", "64", "512", "1536", "2048"} == by_tokens.keys()
        assert all(found["relative_l2"] <= 4e-3 and len(found["us"]) >= 2 for found in by_tokens.values())


def test_the_evidence_names_the_pinned_toolchain() -> None:
    assert EVIDENCE["built_with"] == {name: pinned()[name] for name in ("triton", "nvidia-cutlass-dsl")}


def test_the_performance_page_is_the_one_of_the_evidence() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("performance", ROOT / "tools" / "h200" / "performance.py")
    assert spec is not None and spec.loader is not None
    performance = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(performance)
    runs = (EVIDENCE, performance.read("budgets"), performance.read("launch"))
    assert performance.DOCUMENT.read_text() == performance.write(*runs)


def test_the_evidence_of_budgets_names_machine_versions_and_spread() -> None:
    for name in ("budgets", "launch"):
        path = ROOT / "evidence" / f"{name}.json"
        if name == "launch" and not path.exists():
            continue
        run = json.loads(path.read_text())
        assert run["processor"] and run["versions"]["python"]
        for row in run["rows"]:
            for figures in (row["figure"], row["base"], row["ratio"]):
                assert 0 < figures["first_quartile"] <= figures["median"] <= figures["third_quartile"]

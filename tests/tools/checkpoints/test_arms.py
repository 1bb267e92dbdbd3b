"""Both arms computed of a checkpoint: they agree, or are reported."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import ArmsDiffer, OutputNotFinite, UnavailableArm, UnservedCapacity
from planfreeze.kernels.moe.checkpoint_layouts import KNOWN_LAYOUTS
from planfreeze.kernels.moe.checkpoints import open_checkpoint
from planfreeze.models import PlanOptions
from planfreeze.plans import make_plan
from planfreeze.process_session import session
from planfreeze.target import target

from ...moe import reference_device
from .conftest import RECIPE, SMALL, generate_checkpoint, validate_arms, validate_checkpoint

TINY = replace(SMALL, name="tiny", hidden=256, intermediate=128, experts=40, activation_limit=1.5, capacities=(8,))


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory, toolchains: Path) -> Iterator[object]:
    """Real programs of both arms, frozen on a device that runs their references."""
    path = tmp_path_factory.mktemp("arms") / "store"
    options = PlanOptions(inline_limit=1536, arms=("inline", "native"))
    made = make_plan(TINY, tp=2, target=target("sm_90a"), options=options)
    assert build_plans([made], Store.open(path, writable=True), jobs=2, toolchains=toolchains).count("failed") == 0
    with session("tiny-tp2-sm_90a", store=path, is_trusted=True) as frozen:
        reference_device.freeze(frozen)
        plans = validate_arms.declare_arms(TINY, tp=2, arch="sm_90a")
        yield validate_arms.Arms(session=frozen, plans=plans)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the model of these programs, its rows gate first."""
    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    layout = next(layout for layout in KNOWN_LAYOUTS if layout.source_order == "gate_up")
    generate_checkpoint.write_checkpoint(folder, replace(RECIPE, model=TINY, layout=layout))
    return folder


def check_arms(tiny: Path, arms: object) -> list[object]:
    reports = validate_checkpoint.validate_checkpoint(
        open_checkpoint(tiny),
        TINY,
        tp=2,
        layers=(0, 39),
        ranks=(1,),
        device=torch.device("cpu"),
        progress=lambda done, total: None,
        arms=arms,
    )
    return list(reports)


def test_both_arms_compute_the_same_of_a_checkpoint(tiny: Path, arms: object) -> None:
    driver = arms.session._device.driver
    driver.launches.clear()
    reports = check_arms(tiny, arms)
    assert [(report.layer, report.error, report.equal_tokens) for report in reports] == [
        (0, None, (1, 3, 8)),
        (39, None, (1, 3, 8)),
    ]
    shown = validate_checkpoint.report_json(tiny, TINY, 2, reports)["layers"]
    assert [entry["equal_tokens"] for entry in shown] == [[1, 3, 8], [1, 3, 8]]
    # Twice every length reaches all 40 experts by two routes a token; each once for each arm.
    tokens = [words["tokens"] for family, words in driver.launches if family == "topk_sum"]
    assert tokens == [length for length in (1, 3, 8) * 4 for _ in range(2)]


def test_every_expert_has_a_route(arms: object) -> None:
    made = list(validate_arms.calls(arms.plans["native"], torch.device("cpu")))
    assert {expert for _, ids, _ in made for expert in ids.flatten().tolist()} == set(range(TINY.experts))
    assert [len(x) for x, _, _ in made] == [1, 3, 8, 1, 3, 8]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3.0])
def test_an_arm_that_computes_something_else_is_reported(
    tiny: Path, arms: object, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    def run_topk_sum(payload: object, values: object, words: dict[str, int]) -> None:
        real(payload, values, words)
        sums.append(values.out)
        if len(sums) % 2 == 0 and words["tokens"] == 3:  # the native arm, which comes second
            values.out[2 * TINY.hidden + 9] = value

    sums: list[Tensor] = []
    real = reference_device.KERNELS["topk_sum"]
    monkeypatch.setitem(reference_device.KERNELS, "topk_sum", run_topk_sum)
    error = check_arms(tiny, arms)[0].error
    assert type(error) is (ArmsDiffer if value == 3.0 else OutputNotFinite)
    assert (error.tokens, error.row, error.column, error.exit_code) == (3, 2, 9, 4)
    assert "row 2, column 9" in str(error)


def test_an_output_that_is_not_written_is_reported(tiny: Path, arms: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference_device.KERNELS, "topk_sum", lambda payload, values, words: None)
    assert [type(report.error) for report in check_arms(tiny, arms)] == [OutputNotFinite] * 2


def test_a_model_without_both_arms_is_refused() -> None:
    with pytest.raises(UnavailableArm):
        validate_arms.declare_arms(replace(TINY, weight_format="mxfp4"), tp=2, arch="sm_90a")
    with pytest.raises((UnavailableArm, UnservedCapacity)):
        validate_arms.declare_arms(TINY, tp=1, arch="sm_90a")


@pytest.mark.gpu
@pytest.mark.skipif(
    "PLANFREEZE_TEST_PACK" not in os.environ,
    reason="PLANFREEZE_TEST_PACK names no store with the plan ds41-tp4-sm_90a, all arms",
)
def test_a_device_computes_the_same_with_both_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "checkpoint"
    options = ["--model", "ds41", "--layers", "0,39", "--experts", "8", "--seed", "3"]
    assert generate_checkpoint.main([str(folder), *options]) == 0
    capsys.readouterr()
    given = ["--tp", "4", "--ranks", "0,3", "--store", os.environ["PLANFREEZE_TEST_PACK"], "--trust-store", "--json"]
    status = validate_checkpoint.main([str(folder), "--model", str(folder / "model.toml"), *given])
    out, err = capsys.readouterr()
    assert status == 0, err
    layers = json.loads(out)["layers"]
    assert [(found["layer"], found["rank"]) for found in layers] == [(0, 0), (0, 3), (39, 0), (39, 3)]
    assert all(found["exact"] and found["equal_tokens"] == [1, 3, 8] for found in layers)
    assert max(found["w2"]["raw_tiles"] for found in layers) > 0

"""Recordings as files, and the plans made of them."""

import json
from pathlib import Path

import pytest

from planfreeze.choices import Choice
from planfreeze.errors import InvalidRecording, RecordedOtherwise, ServedElsewhere
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.plans import Plan
from planfreeze.recorded import no_grid
from planfreeze.recorded.triton_kernel import TritonKernelPayload, triton_kernel
from planfreeze.recorders.tally import Tally
from planfreeze.recordings import merge_lines, plan_recording, read_recording
from planfreeze.resolve import program_name
from planfreeze.target import target

PAYLOAD = TritonKernelPayload(
    kernel="kernels:fill",
    signature=(("x", "*fp32"), ("n", "i32"), ("pair", ("i32", "fp32")), ("BLOCK", "constexpr"), ("SCALE", "constexpr")),
    constants=(((3,), 64), ((4,), ("\0float", (0.5).hex()))),
    attributes=(((0,), (("tt.divisibility", 16),)), ((1,), ())),
    options=(("num_warps", 8),),
)
CHOICE = Choice(kernel="kernels:fill", space="0" * 64, key=(100, "fp32", ("\0none",)), config=(("BLOCK", 64),))
SM_90A = target("sm_90a")


def record(**stated: object) -> list[str]:
    """The lines of a process that launched one program seven times."""
    lines: list[str] = []
    tally = Tally(lines.append)
    for _ in range(7):
        tally.count("identity", lambda launched, tally: PAYLOAD, object())
    tally.choose(CHOICE)
    tally.note("arch", "sm_90a")
    for name, value in stated.items():
        tally.note("environment", [name, value])
    tally.finish()
    tally.count("later", lambda launched, tally: PAYLOAD, object())
    return lines


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    recorded = merge_lines([*record(), *record(), '["program", {"fam'])
    assert [program.launches for program in recorded.programs] == [14]
    recorded.write(tmp_path / "run.json")
    assert read_recording(tmp_path / "run.json") == recorded
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_people_read_a_program_by_its_parameters() -> None:
    name = (
        "kernel=kernels:fill, x=*fp32, divisible by 16, n=i32, pair=('i32', 'fp32'), BLOCK=64, SCALE=0.5, num_warps=8"
    )
    assert program_name(PAYLOAD) == f"triton_kernel({name})"


def test_the_plan_of_a_recording_is_named_by_its_file_and_says_how_it_is_built() -> None:
    plan = plan_recording(merge_lines(record()), SM_90A, path=Path("some/where/softmax.json"))
    assert plan.name == "softmax-sm_90a"
    assert plan.build_command == "planfreeze build --arch sm_90a --plan softmax.json"
    assert plan.payloads == (PAYLOAD,) and plan.choices == (CHOICE,)


@pytest.mark.parametrize("name", ["ds41-tp4.json", ".json", "a b.json", "-x.json"])
def test_a_name_that_is_a_models_or_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidRecording, match="cannot be the name"):
        plan_recording(merge_lines(record()), SM_90A, path=Path(name))


def test_a_recording_without_programs_is_no_plan() -> None:
    with pytest.raises(InvalidRecording, match="holds no program"):
        plan_recording(merge_lines([]), SM_90A, path=Path("run.json"))


def test_settings_that_compute_something_else_are_refused() -> None:
    pinned = record(TRITON_DEFAULT_FP_FUSION="1", TRITON_DISABLE_LINE_INFO="0")
    plan_recording(merge_lines(pinned), SM_90A, path=Path("run.json"))
    with pytest.raises(RecordedOtherwise, match="PTXAS_OPTIONS=-O1"):
        plan_recording(merge_lines(record(PTXAS_OPTIONS="-O1")), SM_90A, path=Path("run.json"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.update(magic="something else"),
        lambda content: content.update(format=2),
        lambda content: content.pop("choices"),
        lambda content: content["programs"][0].update(family="planfreeze.recorded.triton_kernel:nothing"),
        lambda content: content["programs"][0]["payload"].update(signature=[["x", 0.5]]),
        lambda content: content["programs"][0]["payload"].update(pointer=4096),
        lambda content: content["programs"][0]["payload"].update(signature=[[]]),
        lambda content: content["programs"][0]["payload"].update(constants=[[[], 1]]),
        lambda content: content["programs"][0]["payload"].update(attributes=[[[0], [1]]]),
        lambda content: content["programs"][0].update(launches=float("inf")),
        lambda content: content["choices"][0].update(config=[["BLOCK"]]),
        lambda content: content.update(programs=None),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, damage) -> None:
    content = json.loads(merge_lines(record()).to_json())
    damage(content)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidRecording, match=r"run\.json"):
        read_recording(path)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b"null", b"[" * 100_000])
def test_bytes_that_are_no_recording_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InvalidRecording):
        read_recording(tmp_path / "run.json")


def test_a_plan_without_choices_keeps_its_root_and_one_with_choices_is_read_back() -> None:
    stated = {"model": "run", "tp": 0, "arch": "sm_90a", "families": (), "entries": ()}
    plain, chosen = FrozenPlan(**stated), FrozenPlan(**stated, choices=(CHOICE,))
    # As it was before plans had choices.
    assert plain.root == "d1551df622e00654cfdbf7b9e628cf71d3fe9e89ccd3d06ec21d24388acc26fa"
    assert FrozenPlan.decode(plain.encode()) == plain
    assert FrozenPlan.decode(chosen.encode()) == chosen
    assert plain.root != chosen.root


def test_the_name_of_a_models_plan_is_what_it_was() -> None:
    stated = {"target": SM_90A, "payloads": (PAYLOAD,)}
    assert Plan(model="ds41", tp=4, **stated).name == "ds41-tp4-sm_90a"
    assert Plan(model="ds41", tp=4, **stated).build_command == "planfreeze build --model ds41 --tp 4 --arch sm_90a"


def test_planfreeze_does_not_launch_a_recorded_program() -> None:
    definition = triton_kernel.define(PAYLOAD, SM_90A)
    assert definition.arguments == () and definition.grid is no_grid
    with pytest.raises(ServedElsewhere):
        definition.grid({}, 1)

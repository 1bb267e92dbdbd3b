"""Contents of a report: facts of programs, builds from notes, coverage of a recorded run."""

import json
import shutil
from itertools import pairwise

import pytest
from msgspec.structs import replace

from planfreeze.cache.pack import Pack
from planfreeze.cache.store import Store
from planfreeze.facts import planned_facts
from planfreeze.notes import Note
from planfreeze.occupancy import count_blocks
from planfreeze.packs import pack_plans
from planfreeze.pages.contents import find_builds, gather_report, name_variant
from planfreeze.program_reports import facts_json
from planfreeze.recorded.cute_function import CuteFunctionPayload
from planfreeze.recorded.triton_kernel import TritonKernelPayload
from planfreeze.recordings import read_recording
from planfreeze.resolve import find_plans
from planfreeze.target import target


def test_every_program_is_there_once_with_its_facts_and_the_plans_that_hold_it(reported):
    plans = find_plans(reported.store, None)
    facts = [found for plan in plans for found in planned_facts(plan, reported.store)]
    listed = {program["key"]: program for program in reported.content["programs"]}
    assert len(facts) == 10 and len(listed) == len(reported.content["programs"]) == 9, "one is in two plans"
    for found in facts:
        told = json.loads(json.dumps(facts_json(found)))
        assert listed[found.key].items() >= told.items()
        holders = [plan.name for plan in plans if found.key in {entry.key for entry in plan.entries}]
        assert listed[found.key]["plans"] == holders
    assert {program["group"] for program in listed.values()} == {"toys_add", "toys_copy"}
    assert reported.content["plans"][0] == {
        "name": "sums-tp1-sm_120a",
        "root": reported.store.get_ref("sums-tp1-sm_120a"),
        "arch": "sm_120a",
        "programs": 4,
        "bytes": sum(program["bytes"] for program in listed.values() if program["arch"] == "sm_120a"),
    }


def test_builds_are_told_from_the_notes_of_their_programs(reported):
    first, second = reported.content["builds"]
    assert (first["slots"], first["programs"], second["slots"], second["programs"]) == (1, 2, 2, 7)
    assert first["started_s"] + first["seconds"] <= second["started_s"] + 0.01
    for build in (first, second):
        made = [p["provenance"] for p in reported.content["programs"] if p["provenance"]["build"] == build["build"]]
        busy = sum(note["seconds"] for note in made) / (build["slots"] * build["seconds"])
        assert len(made) == build["programs"] and 0 < build["busy"] <= 1
        assert build["busy"] == pytest.approx(busy, abs=1e-3)


def test_a_build_lasts_from_its_first_compile_to_the_end_of_its_last():
    notes = [
        Note(build="b", slot=1, started_s=12.0, seconds=6.0),
        Note(build="a", slot=0, started_s=20.0, seconds=1.0),
        Note(build="b", slot=5, started_s=10.0, seconds=4.0),
        Note(started_s=1.0, seconds=1.0),
    ]
    assert find_builds(notes) == [
        {"build": "b", "started_s": 10.0, "seconds": 8.0, "slots": 2, "programs": 2, "busy": 0.625},
        {"build": "a", "started_s": 20.0, "seconds": 1.0, "slots": 1, "programs": 1, "busy": 1.0},
    ]


def test_a_pack_has_all_but_what_only_notes_tell(reported, tmp_path):
    plans = find_plans(reported.store, None)
    pack_plans(plans, reported.store, tmp_path / "all.pfz")
    packed = gather_report(plans, Pack.open(tmp_path / "all.pfz"))
    assert packed["builds"] == [] and packed["coverage"] is None
    for program, built in zip(packed["programs"], reported.content["programs"], strict=True):
        assert not any(program["provenance"].values()) and not program["labels"]
        for name in ("key", "bytes", "registers", "resident_ctas", "occupancy", "spill_store_bytes"):
            assert program[name] == built[name]


def test_a_damaged_note_costs_its_own_facts_alone(reported, tmp_path):
    store = Store.open(reported.store.path)
    plan = find_plans(store, ["sums-tp1-sm_90a"])
    key = plan[0].entries[0].key
    path = store.layout.entry("note", key)
    kept = path.read_bytes()
    try:
        path.write_text('{"build": "b", "slot": NaN, "started_s": Infinity, "seconds": "long"}')
        found = gather_report(plan, store)
    finally:
        path.write_bytes(kept)
    json.dumps(found, allow_nan=False)
    (told,) = (program["provenance"] for program in found["programs"] if program["key"] == key)
    assert told["started_s"] is None and told["seconds"] is None
    others = [p["provenance"]["seconds"] for p in found["programs"] if p["key"] != key]
    assert all(others) and len(others) == 3


def test_coverage_tells_what_a_run_used_of_the_plans_for_its_device(reported):
    coverage = {found["plan"]: found for found in reported.content["coverage"]["plans"]}
    assert set(coverage) == {"sums-tp1-sm_90a", "toys-tp1-sm_90a"}, "it says nothing of sm_120a"
    found = coverage["sums-tp1-sm_90a"]
    assert (found["planned"], found["used"]) == (4, 2)
    assert found["unused"] == ["toys_add(block=256, warps=2)", "toys_add(block=2048, warps=1)"]
    (unplanned,) = found["unplanned"]
    assert unplanned["program"] == "toys_add(block=4096, warps=1)" and "block" in unplanned["nearest"]
    launches = {(p["arch"], p["fields"].get("block")): p["launches"] for p in reported.content["programs"]}
    assert launches["sm_90a", "64"] == 3 and launches["sm_90a", "1024"] == 1200 and launches["sm_90a", "256"] == 0
    assert launches["sm_120a", "64"] is None


def test_the_line_of_registers_is_what_they_alone_allow(reported):
    for arch, facts in reported.content["targets"].items():
        steps = dict(map(tuple, facts["register_warps"]))
        for registers, warps in steps.items():
            # Blocks of four warps and no shared memory: nothing but registers and warps is short.
            blocks = count_blocks(registers=registers, shared_bytes=0, threads=128, target=target(arch))
            assert blocks * 4 == min(warps, facts["max_warps"])
        assert (steps[32], steps[128], steps[256]) == (64, 16, 8) and list(steps)[-1] == 256


def test_a_recording_of_another_device_is_refused(report, reported):
    status, _, stderr = report(
        *("--store", reported.store.path, "--plan", "sums-tp1-sm_120a", "--recording", reported.recording, "--json")
    )
    assert status == 2 and "recorded on sm_90a, and the plans are for sm_120a" in stderr and "--plan NAME" in stderr


def test_plans_are_chosen_by_name(report, reported):
    status, stdout, _ = report("--store", reported.store.path, "--plan", "sums-tp1-sm_120a", "--json")
    found = json.loads(stdout)
    assert status == 0 and [plan["name"] for plan in found["plans"]] == ["sums-tp1-sm_120a"]
    assert len(found["programs"]) == 4 and list(found["targets"]) == ["sm_120a"]


def test_a_report_names_its_file_or_prints_json(report, reported, tmp_path):
    status, _, stderr = report("--store", reported.store.path)
    assert status == 2 and "--output" in stderr and "--json" in stderr
    status, stdout, _ = report("--store", reported.store.path, "-o", tmp_path / "all.html")
    assert status == 0 and stdout == f"{tmp_path / 'all.html'}: 9 programs of 3 plans\n"


def test_a_page_that_cannot_be_written_exits_6(report, reported, tmp_path):
    status, _, stderr = report("--store", reported.store.path, "-o", tmp_path / "none" / "report.html")
    assert status == 6 and "cannot be written" in stderr


def test_a_plan_that_lacks_a_program_has_no_report(report, reported, tmp_path):
    store = Store.open(shutil.copytree(reported.store.path, tmp_path / "store"))
    lost = find_plans(store, ["sums-tp1-sm_90a"])[0].entries[0]
    store.layout.entry("record", lost.key).unlink()
    status, stdout, stderr = report("--store", store.path, "-o", tmp_path / "report.html")
    assert status == 3 and "1 of 4 programs" in stderr and stdout == ""
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("payload", "family", "group"),
    [
        (
            TritonKernelPayload(kernel="mine:softmax", signature=(("x", "*fp32"), ("kernel", "i32"))),
            "planfreeze.recorded.triton_kernel:triton_kernel",
            "mine:softmax",
        ),
        (
            CuteFunctionPayload(function="mine:Gemm.__call__", arguments=()),
            "planfreeze.recorded.cute_function:cute_function",
            "mine:Gemm.__call__",
        ),
    ],
)
def test_recorded_programs_are_grouped_by_their_kernel(reported, payload, family, group):
    (plan,) = find_plans(reported.store, ["toys-tp1-sm_90a"])
    made = planned_facts(plan, reported.store)[0]
    recorded = replace(made, record=replace(made.record, family=family), fields=tuple(payload.to_fields().items()))
    found, fields = name_variant(recorded)
    assert found == group and len(fields) == len(payload.to_fields().get("signature", ()))


def test_slots_of_a_build_overlap_nowhere(reported):
    spans = sorted(
        (note["build"], note["slot"], note["started_s"], note["started_s"] + note["seconds"])
        for note in (program["provenance"] for program in reported.content["programs"])
    )
    same = [(early, late) for early, late in pairwise(spans) if early[:2] == late[:2]]
    assert len(same) >= 6 and all(late[2] >= early[3] - 0.01 for early, late in same)


def test_the_report_reads_the_recording_that_it_names(reported):
    recorded = read_recording(reported.recording)
    assert reported.content["coverage"]["recording"] == "later.json"
    assert sum(program.launches for program in recorded.programs) == 1204

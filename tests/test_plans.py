"""Plans and frozen plans: names, canonical bytes, one root digest over all."""

import hashlib

import msgpack
import pytest
from msgspec.structs import replace

from planfreeze.errors import DamagedPlan, PlanTooNew
from planfreeze.frozen_plans import PLAN_FORMAT, FrozenPlan, PlanEntry, PlanFamily, freeze_families
from planfreeze.plan_names import build_arguments, build_command, recording_arguments
from planfreeze.sources import Sources

PLAN = FrozenPlan(
    model="ds41",
    tp=4,
    arch="sm_90a",
    options=("--capacity", "8,64"),
    families=(
        PlanFamily(reference="toys.families:add", sources=Sources((("toys.families", "aa" * 32),))),
        PlanFamily(reference="toys.families:copy", sources=Sources(())),
    ),
    entries=(
        PlanEntry(
            family="toys.families:add",
            fields=(("block", 64), ("is_wide", True), ("tiles", (1, (2, "a")))),
            key="0" * 64,
            record="1" * 64,
            blob="2" * 64,
        ),
        PlanEntry(family="toys.families:copy", fields=(), key="3" * 64, record="4" * 64, blob="5" * 64),
    ),
)
DATA = PLAN.encode()
PARTS = msgpack.unpackb(DATA)
ROOT = "41e6c46f650e2f05b86eaec672c10fc9a6eb35fe57cd80b6e84315d298cbeb5b"


def test_root_digest_is_golden_and_the_sha256_of_the_bytes():
    assert PLAN.root == hashlib.sha256(DATA).hexdigest() == ROOT


def test_encoding_spells_out_every_part():
    assert (
        msgpack.packb(
            [
                "planfreeze plan",
                1,
                "ds41",
                4,
                "sm_90a",
                ["--capacity", "8,64"],
                [["toys.families:add", [["toys.families", "aa" * 32]]], ["toys.families:copy", []]],
                [
                    [
                        "toys.families:add",
                        [["block", 64], ["is_wide", True], ["tiles", [1, [2, "a"]]]],
                        *("0" * 64, "1" * 64, "2" * 64),
                    ],
                    ["toys.families:copy", [], "3" * 64, "4" * 64, "5" * 64],
                ],
            ]
        )
        == DATA
    )


def test_plan_comes_back_from_its_bytes():
    decoded = FrozenPlan.decode(DATA)
    assert decoded == PLAN and decoded.root == ROOT
    assert decoded.entries[0].fields == (("block", 64), ("is_wide", True), ("tiles", (1, (2, "a"))))


def with_entry(**changes):
    return replace(PLAN, entries=(replace(PLAN.entries[0], **changes), PLAN.entries[1]))


def with_family(**changes):
    return replace(PLAN, families=(replace(PLAN.families[0], **changes), PLAN.families[1]))


ROOT_DIFFERS_ON = {
    "model": replace(PLAN, model="ds42"),
    "tp": replace(PLAN, tp=5),
    "arch": replace(PLAN, arch="sm_120a"),
    "options": replace(PLAN, options=("--capacity", "8")),
    "family reference": with_family(reference="toys.families:adds"),
    "name of a module": with_family(sources=Sources((("toys.family", "aa" * 32),))),
    "text of a module": with_family(sources=Sources((("toys.families", "ab" * 32),))),
    "a family less": replace(PLAN, families=PLAN.families[:1]),
    "order of families": replace(PLAN, families=PLAN.families[::-1]),
    "family of an entry": with_entry(family="toys.families:adds"),
    "field of an entry": with_entry(fields=(("block", 65), *PLAN.entries[0].fields[1:])),
    "type of a field": with_entry(fields=(("block", 64), ("is_wide", 1), PLAN.entries[0].fields[2])),
    "key of an entry": with_entry(key="9" * 64),
    "record of an entry": with_entry(record="9" * 64),
    "blob of an entry": with_entry(blob="9" * 64),
    "an entry less": replace(PLAN, entries=PLAN.entries[:1]),
    "order of entries": replace(PLAN, entries=PLAN.entries[::-1]),
}


@pytest.mark.parametrize("change", ROOT_DIFFERS_ON)
def test_root_differs_on(change):
    changed = ROOT_DIFFERS_ON[change]
    assert changed.root != ROOT
    assert FrozenPlan.decode(changed.encode()) == changed


def test_every_truncation_is_refused():
    for size in range(len(DATA)):
        with pytest.raises(DamagedPlan) as raised:
            FrozenPlan.decode(DATA[:size])
        assert raised.value.exit_code == 4


def test_any_changed_byte_is_refused_or_gives_another_plan_with_another_root():
    others = 0
    for place in range(len(DATA)):
        for value in {
            0,
            1,
            2,
            0x7F,
            0x80,
            0x90,
            0xA0,
            0xC0,
            0xC1,
            0xC3,
            0xC4,
            0xD9,
            0xFF,
            *(DATA[place] ^ 1 << n for n in range(8)),
        }:
            data = DATA[:place] + bytes([value]) + DATA[place + 1 :]
            try:
                plan = FrozenPlan.decode(data)
            except (DamagedPlan, PlanTooNew):
                continue
            assert plan.encode() == data
            assert (plan.root == ROOT) == (data == DATA)
            others += plan != PLAN
    assert others > 0, "names and numbers are free"


def put(place, value):
    """The plan's bytes with one part replaced: a path of indices into its lists."""
    parts = msgpack.unpackb(DATA)
    inner = parts
    for index in place[:-1]:
        inner = inner[index]
    inner[place[-1]] = value
    return msgpack.packb(parts)


DAMAGED = {
    "empty": b"",
    "a number": msgpack.packb(1),
    "text": b"not a plan, but text of more than a few bytes",
    "an empty list": msgpack.packb([]),
    "a list of nothing else": msgpack.packb(["planfreeze plan", 1]),
    "trailing bytes": DATA + b"\0",
    "a map": msgpack.packb({"planfreeze plan": 1}),
    "a part less": msgpack.packb(PARTS[:-1]),
    "a part more": msgpack.packb([*PARTS, []]),
    "nested too deep": put([2], "@").replace(b"\xa1@", b"\x91" * 600 + b"\x90"),
    **{
        f"{place} = {value!r}": put(place, value)
        for place, values in {
            (0,): ["planfreeze record", None, b"planfreeze plan"],
            (1,): [0, -1, True, None, "1", 1.0],
            (2,): [None, 5, b"ds41", ["ds41"]],
            (3,): [None, "4", True, 4.0],
            (4,): [None, 90],
            (5,): [None, 5, ["--capacity"], ["--capacity", 8]],
            (6,): [None, 5, "families", [5], [["a"]], [["a", []], 1]],
            (6, 0, 0): [None, 1],
            (6, 0, 1): [None, 5, "ab", ["ab", 1], [["toys.families"]], [["toys.families", None]], [[1, "a"]]],
            (7,): [None, 5, "entries", [5], [[]]],
            (7, 0, 0): [None, 1],
            (7, 0, 1): [None, 5, "ab", ["ab", 1], [["block"]], [[1, 64]], {"block": 64}],
            (7, 0, 2): [None, b"0" * 64],
            (7, 0, 3): [None, 1],
            (7, 1, 4): [None, []],
        }.items()
        for value in values
    },
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_bytes_that_are_no_plan_are_refused(damage):
    with pytest.raises(DamagedPlan):
        FrozenPlan.decode(DAMAGED[damage])


@pytest.mark.parametrize("parts", [[], PARTS[2:], [{"anything": 1}]])
def test_plan_of_a_later_format_is_refused_by_both_formats(parts):
    data = msgpack.packb(["planfreeze plan", PLAN_FORMAT + 1, *parts])
    with pytest.raises(PlanTooNew, match=f"format {PLAN_FORMAT + 1}, this planfreeze reads {PLAN_FORMAT}") as raised:
        FrozenPlan.decode(data)
    assert raised.value.exit_code == 4


@pytest.mark.parametrize(
    ("model", "tp", "arch"), [("ds41", 4, "sm_90a"), ("a-b.c-tp2", 16, "sm_120a"), ("x-tp1-sm_90a", 1, "sm_90a")]
)
def test_name_of_a_plan_leads_back_to_the_command_that_builds_it(model, tp, arch):
    plan = replace(PLAN, model=model, tp=tp, arch=arch, options=())
    assert plan.name == f"{model}-tp{tp}-{arch}"
    assert build_arguments(plan.name) == ("--model", model, "--tp", str(tp), "--arch", arch)
    assert (
        plan.build_command
        == build_command(model, tp, arch, ())
        == f"planfreeze build --model {model} --tp {tp} --arch {arch}"
    )


def test_options_of_a_plan_are_part_of_the_command_that_builds_it():
    plan = replace(PLAN, options=("--model", "my model.toml", "--capacity", "8,64"))
    assert plan.build_command == "planfreeze build --model 'my model.toml' --tp 4 --arch sm_90a --capacity 8,64"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ds41",
        "ds41-tp4",
        "ds41-sm_90a",
        "ds41-tp-sm_90a",
        "ds41-tp4-sm_90",
        "-tp4-sm_90a",
        "ds41-tp4-sm_90a ",
        "0" * 64,
    ],
)
def test_other_names_are_no_plan_that_could_be_built(name):
    assert build_arguments(name) is None


@pytest.mark.parametrize("name", ["kernels-sm_90a", "kernels.json"])
def test_the_name_of_a_recorded_plan_and_its_file_lead_to_the_recording(name):
    assert recording_arguments(name)[:2] == ("--plan", "kernels.json")


def test_frozen_families_merge_the_modules_of_their_programs(toys):
    families = toys.families
    frozen = freeze_families(
        [
            (families.copy, Sources((("b", "1" * 64), ("c", "2" * 64)))),
            (families.add, Sources((("a", "0" * 64),))),
            (families.copy, Sources((("a", "0" * 64), ("b", "1" * 64)))),
        ]
    )
    assert frozen == (
        PlanFamily(reference="toys.families:add", sources=Sources((("a", "0" * 64),))),
        PlanFamily(
            reference="toys.families:copy",
            sources=Sources((("a", "0" * 64), ("b", "1" * 64), ("c", "2" * 64))),
        ),
    )

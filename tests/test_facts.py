"""The facts of one program: resources, residence on an SM, spills, provenance."""

import json
import math

import pytest
from msgspec.structs import replace

from planfreeze.cache.pack import Pack
from planfreeze.cache.store import Store
from planfreeze.errors import DamagedPrograms, MissingPrograms
from planfreeze.facts import ProgramFacts, planned_facts, stored_facts
from planfreeze.family import LaunchInfo
from planfreeze.notes import Note, Spills, find_spills, select_assembler_lines
from planfreeze.occupancy import count_blocks
from planfreeze.packs import pack_plans
from planfreeze.program_reports import facts_json
from planfreeze.target import ARCHS, target

LOG = """
compiling the kernel
ptxas info    : Compiling entry function 'add_kernel' for 'sm_90a'
ptxas info    : Function properties for add_kernel
    48 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads
ptxas info    : Function properties for __helper
    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "threads", "arch", "blocks"),
    [
        (32, 0, 128, "sm_90a", 16),
        # 22 warps of 96 registers are 20 in whole quarters: four blocks of five warps.
        (96, 0, 160, "sm_90a", 4),
        (97, 0, 160, "sm_90a", 3),
        (128, 0, 160, "sm_90a", 3),
        (255, 0, 256, "sm_90a", 1),
        (255, 0, 257, "sm_90a", 0),
        (64, 0, 1024, "sm_90a", 1),
        (65, 0, 1024, "sm_90a", 0),
        (32, 57 * 1024, 128, "sm_90a", 4),
        (32, 57 * 1024 + 1, 128, "sm_90a", 3),
        (16, 228 * 1024, 32, "sm_90a", 1),
        (16, 0, 32, "sm_90a", 32),
        (0, 0, 1, "sm_90a", 32),
        (16, 0, 33, "sm_90a", 32),
        (16, 0, 65, "sm_90a", 21),
        (16, 0, 32, "sm_120a", 24),
        (32, 36864, 128, "sm_120a", 2),
        (40, 0, 1024, "sm_120a", 1),
    ],
)
def test_room_is_the_least_that_registers_shared_memory_and_threads_leave(
    registers: int, shared_bytes: int, threads: int, arch: str, blocks: int
) -> None:
    found = count_blocks(registers=registers, shared_bytes=shared_bytes, threads=threads, target=target(arch))
    assert found == blocks


def facts_of(built) -> dict[str, ProgramFacts]:
    return {found.family_name: found for found in planned_facts(built.report.plans[0], built.store)}


def test_facts_are_what_the_build_made(built):
    for outcome in built.report.outcomes:
        found = facts_of(built)[outcome.program.payload.family_name]
        assert (found.key, found.record, found.record_digest) == (
            outcome.program.key.digest,
            outcome.record,
            outcome.record_digest,
        )
        assert found.payload_digest == outcome.program.payload.digest
        assert found.name == outcome.program.name
        assert found.size_bytes == outcome.size_bytes == len(built.store.get_blob(found.record.blob))
        assert found.threads == math.prod(outcome.record.launch.block) and found.resident_ctas >= 1
        assert 0 < found.occupancy <= 1


def test_provenance_holds_every_label_and_what_the_assembler_said(built):
    for outcome in built.report.outcomes:
        note = facts_of(built)[outcome.program.payload.family_name].note
        assert list(note.labels) == [label for label, _ in outcome.program.key.parts]
        assert note.labels["arch"] == "sm_90a" and note.labels["toolchain"] == note.toolchain
        assert note.worker > 0 and note.started_s > 1e9 and note.seconds > 0
    assert "Used" in facts_of(built)["toys_add"].note.log and facts_of(built)["toys_copy"].note.log == ""


def test_a_program_of_a_pack_has_all_facts_but_provenance(built, tmp_path):
    plan = built.report.plans[0]
    pack_plans([plan], built.store, tmp_path / "toys.pfz")
    packed = planned_facts(plan, Pack.open(tmp_path / "toys.pfz"))
    assert packed == tuple(replace(found, note=Note()) for found in planned_facts(plan, built.store))
    assert {found.spills for found in packed} == {Spills(0, 0)}


def test_a_program_outside_of_plans_is_named_by_what_its_record_states(built):
    found = facts_of(built)["toys_add"]
    alone = stored_facts(found.key, built.store)
    assert alone == replace(found, fields=(("block", 64),))


def test_a_plan_that_lacks_a_program_has_no_facts(stock, tmp_path):
    store = Store.open(tmp_path / "store", writable=True)
    with pytest.raises(MissingPrograms, match="1 of 2"):
        stock.fill(store, ["one"])
        planned_facts(stock.plan("model", ["one", "two"]), store)
    store.layout.entry("blob", stock.record("one")[0].blob).write_bytes(b"damage")
    with pytest.raises(DamagedPrograms):
        planned_facts(stock.plan("model", ["one"]), store)


def test_spills_are_those_of_a_program_and_what_it_calls():
    assert find_spills(select_assembler_lines(LOG)) == Spills(48, 48)
    assert "compiling the kernel" not in select_assembler_lines(LOG) and find_spills("") is None


def test_spills_that_the_cute_dsl_passes_on_are_read_among_its_remarks():
    passed = "  remark: x\n          ptxas info    : Function properties for\n          kernel_of_a_long_name\n"
    passed += "          ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
    assert find_spills(select_assembler_lines(passed)) == Spills(4, 12)
    assert select_assembler_lines(passed).startswith("ptxas info") and "remark" not in select_assembler_lines(passed)


def test_spills_are_unknown_where_there_is_local_memory_and_no_log(built):
    found = facts_of(built)["toys_copy"]
    with_stack = replace(found, record=replace(found.record, stack_bytes=16))
    assert found.spills == Spills(0, 0) and with_stack.spills is None
    logged = replace(with_stack, note=Note(log=LOG))
    assert logged.spills == Spills(48, 48)
    made = facts_json(with_stack)
    assert made["spill_store_bytes"] is None and made["stack_bytes"] == 16
    assert json.loads(json.dumps(facts_json(logged)))["spill_load_bytes"] == 48
    assert facts_json(found)["spill_store_bytes"] == 0


def test_shared_memory_that_the_system_reserves_is_told_apart(built):
    found = facts_of(built)["toys_copy"]
    shared = replace(found.record, static_shared_bytes=1024 + 256, launch=LaunchInfo(block=(64, 1, 1), shared_bytes=64))
    used = replace(found, record=shared)
    assert (used.static_shared_bytes, used.dynamic_shared_bytes, used.reserved_shared_bytes) == (256, 64, 1024)
    assert (found.static_shared_bytes, found.reserved_shared_bytes) == (0, 0)


def test_nothing_is_said_of_blocks_that_a_compilers_own_host_code_launches(built):
    found = facts_of(built)["toys_copy"]
    launched = replace(found, record=replace(found.record, launch=LaunchInfo(block=(0, 0, 0))))
    assert (launched.threads, launched.resident_ctas, launched.occupancy) == (None, None, None)


@pytest.mark.parametrize(
    "data", [None, b"", b"\xff", b"[]", b'{"log": 3, "labels": {"arch": 1}, "worker": "x", "y": 1}']
)
def test_a_damaged_note_tells_nothing(data):
    assert Note.decode(data) == Note()


def test_a_note_of_an_older_version_tells_what_it_holds():
    note = Note.decode(b'{"program": "add()", "toolchain": "triton 3.9.0 ab", "seconds": 1.5}')
    assert (note.program, note.toolchain, note.seconds, note.labels) == ("add()", "triton 3.9.0 ab", 1.5, {})
    assert Note.decode(note.encode()) == note


def test_every_target_has_room_for_its_largest_block():
    for made_for in ARCHS.values():
        assert count_blocks(registers=64, shared_bytes=made_for.sm_shared_bytes, threads=1024, target=made_for) == 1

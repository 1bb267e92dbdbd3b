"""What ``planfreeze show`` finds, prints and refuses."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planfreeze import disassembly
from planfreeze.cache.store import Store
from planfreeze.cli import app
from planfreeze.disassembly import count_opcodes, disassemble, find_disassemblers
from planfreeze.errors import DisassemblerMissing, DisassemblyFailed, ProgramMissing
from planfreeze.facts import planned_facts
from planfreeze.packs import pack_plans
from planfreeze.program_reports import facts_json
from planfreeze.selection import select_programs

ROOT = Path(__file__).parents[1]
ADD = "toys_add(block=64, warps=1)"


def run(*arguments: object) -> tuple[int, str, str]:
    """Run the command line in this process; return status, standard output and standard error."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def programs(built):
    """Facts of both programs by family."""
    return {facts.family_name: facts for facts in planned_facts(built.report.plans[0], built.store)}


@pytest.fixture(scope="module")
def pack(built, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("show") / "toys.pfz"
    pack_plans(built.report.plans, built.store, path)
    return path


def test_a_program_is_named_by_key_payload_cubin_family_and_as_reports_write_it(built, programs):
    add = programs["toys_add"]
    digests = (add.key, add.payload_digest, add.record.blob)
    for asked in (*digests, *(digest[:8] for digest in digests), "toys_add", "toys.families:add", ADD):
        assert select_programs(asked, (), built.report.plans, built.store) == (add,)


def test_fields_choose_among_the_programs_of_a_family(built, programs):
    plans, store = built.report.plans, built.store
    assert select_programs("toys_add", ("block=64", "warps=1"), plans, store) == (programs["toys_add"],)
    for stated in ("block=65", "width=64", "warps=01"):
        with pytest.raises(ProgramMissing) as caught:
            select_programs("toys_add", (stated,), plans, store)
        assert caught.value.near == (ADD,)


def test_a_program_that_no_plan_holds_is_found_unless_a_plan_is_named(built, programs, tmp_path):
    add = programs["toys_add"]
    store = Store.open(tmp_path / "store", writable=True)
    store.put_blob(built.store.get_blob(add.record.blob))
    store.put_record(add.key, add.record.encode())
    store.put_record("0" * 64, b"damage")
    for asked in (add.key, add.key[:8], "toys_add"):
        (alone,) = select_programs(asked, (), (), store)
        assert (alone.key, alone.record, alone.variant) == (add.key, add.record, "block=64")
        with pytest.raises(ProgramMissing):
            select_programs(asked, (), (), store, is_planned=True)
    status, stdout, _ = run("show", "--store", store.path)
    assert status == 0 and "block=64" in stdout
    status, stdout, _ = run("show", "toys_add", "--store", store.path)
    assert status == 0 and stdout.startswith("toys_add(block=64)\n")
    status, _, stderr = run("show", "toys_copy", "--store", store.path)
    assert status == 3 and "none of the 1 programs" in stderr


def test_json_holds_the_facts_and_the_build_that_made_them(built, programs):
    status, stdout, _ = run("show", ADD, "--store", built.store.path, "--json")
    (shown,) = json.loads(stdout)["programs"]
    assert status == 0 and shown == {**facts_json(programs["toys_add"]), "sass": None}
    assert shown["labels"]["toolchain"] == shown["provenance"]["toolchain"]
    assert shown["block"] == [32, 1, 1] and shown["resident_ctas"] == 32 and shown["occupancy"] == 0.5


def test_the_page_names_every_key_of_the_json(programs):
    page = (ROOT / "docs/reference/show.md").read_text()
    made = facts_json(programs["toys_add"])
    table = page.partition("## What `show --json` prints")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", table)) == {*made, *made["provenance"], "sass", "programs"}


def test_text_shows_resources_labels_and_provenance(built, programs):
    status, stdout, _ = run("show", "toys_add", "--store", built.store.path)
    assert status == 0
    assert stdout.startswith(f"{ADD}\n")
    add = programs["toys_add"]
    for label, value in (
        ("registers", str(add.record.registers)),
        ("spills", "0 bytes stored, 0 loaded"),
        ("resident CTAs", "32 per SM, 50% of its warps"),
        ("block", "32 threads, (32, 1, 1)"),
        *((f"key: {label}", text) for label, text in add.note.labels.items() if len(text) < 80),
    ):
        assert re.search(rf"^ {re.escape(label)} +{re.escape(value)}", stdout, re.MULTILINE), label


def test_without_a_program_all_are_listed(built, pack):
    for place in (("--store", built.store.path), ("--pack", pack), ("--store", pack)):
        status, stdout, _ = run("show", *place)
        assert status == 0 and "toys_add" in stdout and "toys_copy" in stdout


def test_a_pack_says_that_it_keeps_no_labels(pack):
    status, stdout, _ = run("show", "toys_add", "--pack", pack)
    assert status == 0 and "packs have no notes" in stdout
    _, stdout, _ = run("show", "toys_add", "--pack", pack, "--json")
    assert json.loads(stdout)["programs"][0]["labels"] == {}


def test_what_is_not_there_exits_3_and_names_what_is_near(built):
    status, stdout, stderr = run("show", "toys_ad", "--store", built.store.path)
    assert (status, stdout) == (3, "") and ADD in stderr and "none of the 2 programs" in stderr
    status, _, stderr = run("show", "toys_add", "block", "--store", built.store.path)
    assert status == 2 and "NAME=VALUE" in stderr
    status, _, stderr = run("show", "toys_add", "--store", built.store.path, "--pack", "x")
    assert status == 2


def test_machine_code_is_shown_where_a_disassembler_is(built, programs):
    status, stdout, _ = run("show", "toys_add", "--sass", "--store", built.store.path)
    assert status == 0 and re.search(r"/\*0000\*/ .*;", stdout) and "EXIT" in stdout
    _, stdout, _ = run("show", "toys_copy", "--sass", "--json", "--store", built.store.path)
    (shown,) = json.loads(stdout)["programs"]
    counted = count_opcodes(shown["sass"])
    assert counted["LDG"] == counted["STG"] == 1 and counted["EXIT"] >= 1 and "NOP" not in counted


def test_opcodes_are_counted_without_predicates_and_modifiers():
    text = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*00b0*/               @P1 BRA `(.L_x_1) ;
        /*00c0*/             @!UP0 UIADD3.X UR6, -UR6, 0x100000, URZ ;
        /*00d0*/                   LDC.64 R2, c[0x0][0x258] ;
        /*00e0*/                   NOP ;
    .L_x_1:  /* not code */
    """
    assert count_opcodes(text) == {"BRA": 1, "LDC": 2, "UIADD3": 1}


def test_without_a_disassembler_the_machine_lacks_something(built, programs, monkeypatch, tmp_path):
    monkeypatch.setattr(disassembly, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DisassemblerMissing):
        disassemble("add", b"")
    status, stdout, stderr = run("show", "toys_add", "--sass", "--store", built.store.path)
    assert (status, stdout) == (6, "") and "pip install nvidia-cuda-nvdisasm" in stderr


def test_the_disassembler_on_the_path_goes_first_and_another_is_tried_where_it_fails(
    built, programs, monkeypatch, tmp_path
):
    cubin = built.store.get_blob(programs["toys_add"].record.blob)
    old = tmp_path / "nvdisasm"
    old.write_text("#!/bin/sh\necho 'nvdisasm fatal: newer than I am' >&2\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    first, *others = find_disassemblers()
    assert first == old and others
    assert "EXIT" in disassemble("add", cubin)
    monkeypatch.setattr(disassembly, "find_spec", lambda name: None)
    with pytest.raises(DisassemblyFailed, match="newer than I am"):
        disassemble("add", cubin)

"""Budgets that plans declare: where they come from, what a build does when a program exceeds one."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from planfreeze import builds
from planfreeze.budgets import Budget
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.cli import app
from planfreeze.errors import InvalidModelField, UnknownBudgetFamily
from planfreeze.excesses import find_excesses
from planfreeze.explanations import family_names
from planfreeze.models import catalog_names, load_model
from planfreeze.notes import Note

GEOMETRY = """
hidden = 64
intermediate = 64
experts = 8
top_k = 2
weight_format = "mxfp4"
programs = "toys.models:enumerate_programs"
"""


def run(*arguments: object) -> tuple[int, str, str]:
    """Run the command line in this process; return status, standard output and standard error."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout, done.stderr


def write(folder: Path, budgets: str) -> Path:
    (folder / "plain.toml").write_text(f"{GEOMETRY}\n{budgets}")
    return folder / "plain.toml"


@pytest.fixture
def store(built, tmp_path) -> Store:
    """A store in which both programs are, and no plan."""
    opened = Store.open(tmp_path / "store", writable=True)
    for outcome in built.report.outcomes:
        for digest in outcome.record.blobs:
            opened.put_blob(built.store.get_blob(digest))
        opened.put_record(outcome.program.key.digest, outcome.record.encode())
        opened.put_note(outcome.program.key.digest, built.store.get_note(outcome.program.key.digest))
    return opened


def build(built, store, toolchains, *budgets):
    return build_plans([replace(built.plan, budgets=budgets)], store, jobs=1, toolchains=toolchains)


def test_a_model_declares_budgets_for_all_programs_and_by_family(tmp_path):
    model = load_model(
        str(
            write(
                tmp_path,
                "[budgets]\nno_spills = true\n[budgets.b]\nmin_ctas_per_sm = 2\n"
                "[budgets.a]\nmax_registers = 96\nno_spills = true\n",
            )
        )
    )
    assert model.budgets == (
        Budget(no_spills=True),
        Budget(family="a", max_registers=96, no_spills=True),
        Budget(family="b", min_ctas_per_sm=2),
    )


@pytest.mark.parametrize(
    "budgets",
    [
        "budgets = 3",
        "[budgets]\nmax_register = 96",
        "[budgets]\nmax_registers = 0",
        "[budgets]\nmax_registers = true",
        "[budgets]\nno_spills = false",
        "[budgets]\nno_spills = 1",
        "[budgets.a]\nmin_ctas_per_sm = 1.5",
        "[budgets.a.b]\nno_spills = true",
        "[budgets.no_spills]\nno_spills = true",
    ],
)
def test_budgets_that_are_none_are_refused(tmp_path, budgets):
    with pytest.raises(InvalidModelField, match="max_registers, no_spills, min_ctas_per_sm") as caught:
        load_model(str(write(tmp_path, budgets)))
    assert caught.value.name == "budgets"


def test_the_models_of_the_catalog_allow_no_spills():
    for name in catalog_names():
        budgets = load_model(name).budgets
        assert budgets and all(budget.no_spills for budget in budgets)
        for family in (budget.family for budget in budgets if budget.family):
            assert family in family_names()


def test_budgets_change_neither_keys_nor_the_frozen_plan(built, store, toolchains):
    report = build(built, store, toolchains, Budget(max_registers=255, no_spills=True, min_ctas_per_sm=1))
    assert report.excesses == () and report.count("reused") == 2
    assert report.plans == built.report.plans


@pytest.mark.parametrize(
    ("budget", "limit", "found"),
    [
        (Budget(max_registers=1), "max_registers", "registers"),
        (Budget(min_ctas_per_sm=33), "min_ctas_per_sm", "32 resident CTAs"),
    ],
)
def test_a_reused_program_over_budget_is_named_and_nothing_is_frozen(built, store, toolchains, budget, limit, found):
    report = build(built, store, toolchains, budget)
    assert [excess.program for excess in report.excesses] == [o.program.name for o in built.report.outcomes]
    assert {excess.budget for excess in report.excesses} == {limit}
    assert all(found in excess.value for excess in report.excesses)
    assert report.plans == () and store.list_refs() == {} and list(store.entries("plan")) == []


def test_a_budget_of_a_family_is_for_its_programs_alone(built, store, toolchains):
    (excess,) = build(built, store, toolchains, Budget(family="toys_copy", max_registers=1)).excesses
    assert excess.program.startswith("toys_copy(") and excess.arch == "sm_90a"


def test_a_limit_that_is_just_kept_is_no_excess(built, store, toolchains):
    registers = max(outcome.record.registers for outcome in built.report.outcomes)
    assert build(built, store, toolchains, Budget(max_registers=registers, min_ctas_per_sm=32)).excesses == ()
    (excess,) = build(built, store, toolchains, Budget(max_registers=registers - 1)).excesses
    assert excess.value == f"{registers} registers" and excess.limit == f"at most {registers - 1}"


def test_one_plan_over_budget_keeps_every_plan_of_the_build_from_being_frozen(toys, built, store, toolchains):
    plans = [
        toys.plan(built.plan.payloads[0], model="first"),
        replace(toys.plan(built.plan.payloads[1], model="second"), budgets=(Budget(max_registers=1),)),
    ]
    report = build_plans(plans, store, jobs=1, toolchains=toolchains)
    assert len(report.excesses) == 1 and report.plans == () and store.list_refs() == {}


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("8 bytes spill stores, 0 bytes spill loads", "8 bytes of stores and 0 of loads"),
        ("", "16 bytes of stack that no log explains"),
        ("0 bytes spill stores, 0 bytes spill loads", None),
    ],
)
def test_what_is_spilled_is_what_the_assembler_said(built, store, log, said):
    outcome = built.report.outcomes[0]
    with_stack = replace(outcome, record=replace(outcome.record, stack_bytes=16))
    key = outcome.program.key.digest
    store.layout.entry("note", key).write_bytes(Note(log=log).encode())
    plan = replace(built.plan, budgets=(Budget(no_spills=True),))
    found = [excess.value for excess in find_excesses(plan, with_stack, store)]
    assert found == ([] if said is None else [said])


def test_a_block_that_is_not_known_keeps_no_budget_of_ctas(built, store):
    outcome = built.report.outcomes[0]
    launched = replace(outcome.record, launch=replace(outcome.record.launch, block=(0, 0, 0)))
    plan = replace(built.plan, budgets=(Budget(min_ctas_per_sm=1),))
    (excess,) = find_excesses(plan, replace(outcome, record=launched), store)
    assert excess.value == "an unknown number of resident CTAs"


def test_a_mistyped_family_is_refused_before_anything_is_compiled(built, store, toolchains, monkeypatch):
    monkeypatch.setattr(builds, "build_programs", lambda *arguments: pytest.fail("it builds"))
    with pytest.raises(UnknownBudgetFamily, match=r"toys_ad,.*Did you mean toys_add\?.*toys_add, toys_copy"):
        build(built, store, toolchains, Budget(family="toys_ad", no_spills=True))


def test_a_family_that_a_plan_does_not_need_may_have_a_budget(built, store, toolchains):
    assert build(built, store, toolchains, Budget(family="split_fc1", max_registers=1)).excesses == ()


def test_build_exits_1_with_program_value_and_limit(built, tmp_path):
    model = write(tmp_path, "[budgets.toys_add]\nmin_ctas_per_sm = 33\n")
    arguments = ("--model", model, "--arch", "sm_90a", "--store", tmp_path / "new")
    status, stdout, stderr = run("build", *arguments)
    assert status == 1 and "plain-tp1" not in stdout
    assert "error: toys_add(block=64, warps=1) (sm_90a) exceeds its budget min_ctas_per_sm" in stderr
    assert "it has 32 resident CTAs, and at least 33 is declared" in stderr
    assert run("ls", "--store", tmp_path / "new", "--json")[1].count('"root"') == 0
    model.write_text(GEOMETRY)
    status, stdout, _ = run("build", *arguments, "--min-ctas-per-sm", "33", "--json")
    made = json.loads(stdout)
    assert (status, made["reused"], made["plans"]) == (1, 2, [])
    assert [(found["budget"], found["arch"]) for found in made["exceeded"]] == [("min_ctas_per_sm", "sm_90a")] * 2
    status, stdout, _ = run("build", *arguments, "--max-registers", "255", "--no-spills")
    assert status == 0 and "plain-tp1-sm_90a@sha256:" in stdout

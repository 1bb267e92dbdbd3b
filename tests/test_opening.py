"""What opening a plan costs: the modules that a session imports, and what is done once for all of its programs."""

import planfreeze.resolve
import planfreeze.sources
from planfreeze.resolve import check_kernels, planned_programs, resolve_plan
from planfreeze.sources import Sources, check_sources

OPENING = """
import sys
import planfreeze
session = planfreeze.session("toys-tp1-sm_90a", store=sys.argv[1], is_trusted=True)
from planfreeze.resolve import resolve_plan
assert all(len(resolve_plan(*prepared).check()) == 2 for prepared in session._plans)
print(*sorted(name for name in sys.modules if name.startswith("planfreeze.")))
"""
# What builds, declares, explains, records and reports; what reads packs and objects with host code.
NOT_SERVING = (
    *("cache.pack", "choices", "declared", "explanations", "guard.logs", "guard.proofs", "host_objects", "key"),
    *("models", "nearest", "plans", "toolchain", "uses"),
)


def test_a_session_imports_what_serving_needs(interpreter, built):
    loaded = interpreter.run(OPENING, str(built.store.path)).split()
    assert {"planfreeze.sessions", "planfreeze.guard.guards"} <= set(loaded)
    assert [name for name in loaded if name.startswith(tuple(f"planfreeze.{part}" for part in NOT_SERVING))] == []


def test_the_text_of_a_module_that_families_share_is_read_once(built, monkeypatch):
    read = []
    hash_source = planfreeze.sources.hash_source
    monkeypatch.setattr(planfreeze.sources, "hash_source", lambda *asked: read.append(asked[0]) or hash_source(*asked))
    check_kernels(built.report.plans[0])
    shared = [name for family in built.report.plans[0].families for name, _ in family.sources.modules]
    assert sorted(read) == sorted(set(shared)) and len(shared) > len(read)


def test_sources_that_differ_are_told_apart_where_others_share_their_modules():
    leaf = planfreeze.sources.hash_source("planfreeze.dtypes")
    right, wrong = Sources((("planfreeze.dtypes", leaf),)), Sources((("planfreeze.dtypes", "0" * 64),))
    assert check_sources([right, wrong, right]) == ((), ("planfreeze.dtypes",), ())


def test_programs_that_are_planned_already_are_not_planned_again(built, monkeypatch):
    plan = built.report.plans[0]
    planned = planned_programs(plan)
    monkeypatch.delattr(planfreeze.resolve, "planned_programs")
    assert [program.planned for program in resolve_plan(plan, built.store, planned).check()] == list(planned)

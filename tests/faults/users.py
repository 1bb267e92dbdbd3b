"""Scripts that build and resolve, and another user who may run them."""

import os

import pytest

STRANGER = 54321  # a user without a name
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting and becoming another user take root")
# Another user who may read everything, so that the interpreter and the sources need no place of their own.
AS_STRANGER = (
    *("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)

BUILD = """
import json, sys
from pathlib import Path
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.plans import Plan
from planfreeze.settings import toolchain_cache
from planfreeze.target import target
from {package}.families import AddPayload, CopyPayload

plan = Plan(model="toys", tp=1, target=target("sm_90a"), payloads=(AddPayload(block=64), CopyPayload()))
report = build_plans([plan], Store.open(sys.argv[1], writable=True), jobs=1, toolchains=toolchain_cache())
reasons = [outcome.reason for outcome in report.outcomes if outcome.reason]
print(json.dumps([report.count("compiled"), [plan.root for plan in report.plans], reasons]))
"""

RESOLVE = """
import json, sys
from planfreeze.cache.store import Store
from planfreeze.replays import check_replays, replay_plan
from planfreeze.resolve import PlanReference, find_plan

store = Store.open(sys.argv[1], is_trusted=True)
plan = find_plan(store, PlanReference.parse("toys-tp1-sm_90a"))
replay = replay_plan(plan, store)
check_replays([replay])
print(json.dumps([len(replay.resolution.programs), [plan.root], replay.attempts]))
"""

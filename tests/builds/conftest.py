"""Builds in this process, what they left in a store, and a script that builds."""

from pathlib import Path

import pytest

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def empty(tmp_path):
    """An empty store."""
    return Store.open(tmp_path / "store", writable=True)


@pytest.fixture
def build(toolchains):
    """Build plans in this process with one compile process."""
    return lambda store, *plans, jobs=1, **options: build_plans(
        plans, store, jobs=jobs, toolchains=toolchains, **options
    )


def statuses(report):
    return [outcome.status for outcome in report.outcomes]


def list_names(store, kind):
    return sorted(entry.name for entry in store.entries(kind))


def quarantined(store):
    return sorted(path.name for path in store.layout.quarantine.iterdir() if not path.name.endswith(".reason"))


BUILD = """
import json, sys
from pathlib import Path
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.plans import Plan
from planfreeze.target import target
from toys.families import AddPayload, CopyPayload

def build(store, payloads, toolchains, jobs=1):
    plan = Plan(model="toys", tp=1, target=target("sm_90a"), payloads=payloads)
    return build_plans([plan], Store.open(store, writable=True), jobs=jobs, toolchains=Path(toolchains))

def summary(report):
    return {
        "status": {outcome.program.key.digest: outcome.status for outcome in report.outcomes},
        "blobs": [outcome.record and outcome.record.blob for outcome in report.outcomes],
        "roots": [plan.root for plan in report.plans],
        "compilers": sorted({"triton", "cutlass", "torch", "cuda"} & set(sys.modules)),
    }
"""

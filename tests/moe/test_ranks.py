"""Models over other numbers of ranks than the measured ones: their programs keep the models' budgets, too."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.models import PlanOptions, load_model
from planfreeze.plans import make_plan
from planfreeze.target import target

CONSTRAINTS = Path(__file__).parents[2] / ".ci/constraints.txt"
# Rows of a rank: 1152, 256 and 64; 128 and 64. Whole K128 steps alone, tiles of 32 rows in one warpgroup, one tile.
RANKS = (("ds41", 2), ("ds41", 9), ("ds41", 36), ("kimi_k3", 24), ("kimi_k3", 48))


def test_a_model_builds_within_its_budgets_for_ranks_of_every_kind(model_store: Store, toolchains: Path) -> None:
    pinned = re.search(r"^nvidia-cutlass-dsl==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    if pinned is None or metadata.version("nvidia-cutlass-dsl") != pinned[1]:
        pytest.skip("registers are those of the pinned compiler")
    options = PlanOptions(arms=("inline", "expand", "native"), inline_limit=1536)
    plans = [make_plan(load_model(name), tp=tp, target=target("sm_90a"), options=options) for name, tp in RANKS]
    report = build_plans(plans, model_store, jobs=2, toolchains=toolchains)
    assert report.count("failed") == 0 and report.excesses == ()
    assert [plan.name for plan in report.plans] == [f"{name}-tp{tp}-sm_90a" for name, tp in RANKS]

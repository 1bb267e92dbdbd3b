"""F3: two builds make the same keys, and the inline flag changes those of exactly two families."""

from pathlib import Path

import pytest

from planfreeze.keyed import KeyedProgram, key_plan
from planfreeze.models import Arm, PlanOptions, load_model
from planfreeze.plans import make_plan
from planfreeze.target import target


def keys(toolchains: Path, arch: str, arm: Arm) -> dict[str, set[str]]:
    """Return the keys of ds41's direct-route programs, by family."""
    options = PlanOptions(inline_limit=1536, capacities=(8,), arms=(arm,))
    plan = make_plan(load_model("ds41"), tp=4, target=target(arch), options=options)
    found: dict[str, set[str]] = {}
    for program in key_plan(plan, toolchains):
        assert isinstance(program, KeyedProgram)
        found.setdefault(program.family.name, set()).add(program.key.digest)
    return found


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_the_inline_flag_changes_the_keys_of_exactly_the_two_projections(toolchains: Path, arch: str) -> None:
    inline, again, native = (keys(toolchains, arch, arm) for arm in ("inline", "inline", "native"))
    assert inline == again
    assert inline.keys() == native.keys()
    assert {name for name in inline if inline[name] != native[name]} == {"micro_fc1", "micro_fc2"}
    assert not inline["micro_fc1"] & native["micro_fc1"] and not inline["micro_fc2"] & native["micro_fc2"]

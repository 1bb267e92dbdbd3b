"""Text that is not compiled for one target or constant counts all the same, and so does text that makes no code."""

import json
import random
import string
import textwrap
from importlib import import_module

import pytest
from msgspec.structs import replace

from planfreeze.key import differing_labels
from planfreeze.keyed import key_plan
from planfreeze.target import target
from planfreeze.workers import Worker

ARCHS = ("sm_90a", "sm_120a")
BRANCHES = """
    import triton
    import triton.language as tl
    from triton.language import target_info

    @triton.jit
    def add_kernel(source, out, count, block: tl.constexpr):
        offsets = tl.arange(0, block)
        value = tl.load(source + offsets)
        if target_info.cuda_capability_geq(10):
            value = value + 11  # later
        else:
            value = value + 12  # earlier
        if block > 32:
            value = value * 13  # wide
        else:
            value = value * 14  # narrow
        tl.store(out + offsets, value)
    """
# An edit of each branch, with the targets whose bytes it changes; the block is 64.
EDITS = {
    "later": ("11", "21", {"sm_120a"}),
    "earlier": ("12", "22", {"sm_90a"}),
    "wide": ("13", "23", {"sm_90a", "sm_120a"}),
    "narrow": ("14", "24", set()),
    "comment": ("    @triton.jit", "    # nothing but a comment\n    @triton.jit", set()),
}


def edit(name):
    old, new, _ = EDITS[name]
    edited = BRANCHES.replace(old, new)
    assert edited != BRANCHES
    return edited


def test_an_edit_in_a_branch_changes_the_key_whether_or_not_it_is_taken(make_package, toys, toolchains):
    package = make_package("branching", add_triton=BRANCHES)
    plans = [toys.plan(import_module("branching.families").AddPayload(block=64), arch=arch) for arch in ARCHS]
    before = [key_plan(plan, toolchains)[0].key for plan in plans]
    for name in EDITS:
        (package / "add_triton.py").write_text(textwrap.dedent(edit(name)).lstrip())
        after = [key_plan(plan, toolchains)[0].key for plan in plans]
        assert [differing_labels(*pair) for pair in zip(before, after, strict=True)] == [("sources",)] * 2


def test_an_edit_changes_the_bytes_of_the_targets_that_take_its_branch_alone(make_package, task):
    make_package("branch_plain", add_triton=BRANCHES)
    for name in EDITS:
        make_package(f"branch_{name}", add_triton=edit(name))
    families = {name: import_module(f"branch_{name}.families") for name in ("plain", *EDITS)}
    changed = {name: set() for name in EDITS}
    for arch in ARCHS:
        with Worker(target(arch)) as started:
            made = {n: started.compile(task(f.AddPayload(block=64), arch)).cubin for n, f in families.items()}
        for name in EDITS:
            changed[name] |= {arch} if made[name] != made["plain"] else set()
    assert changed == {name: expected for name, (_, _, expected) in EDITS.items()}


KEYS = """
import json, os, sys
from pathlib import Path
from planfreeze.cache.store import Store
from planfreeze.keyed import key_plan
from planfreeze.plans import Plan
from planfreeze.target import target
from toys.families import AddPayload, CopyPayload
plan = Plan(model="toys", tp=1, target=target("sm_90a"), payloads=(AddPayload(block=64), CopyPayload()))
store = Store.open(Path(sys.argv[1]))
print(json.dumps([store.has_record(program.key.digest) for program in key_plan(plan, Path(sys.argv[2]))]))
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_another_home_machine_and_fifty_variables_give_no_miss(interpreter, built, toolchains, tmp_path, seed):
    drawn = random.Random(seed)
    letters = string.ascii_uppercase + "_"
    noise = {"".join(drawn.choices(letters, k=9)): "".join(drawn.choices(letters, k=9)) for _ in range(50)}
    place = tmp_path / "elsewhere"
    place.mkdir()
    noise |= {name: str(place) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "TMPDIR")}
    noise |= {"HOSTNAME": "another", "USER": "somebody", "LOGNAME": "somebody", "RANK": "3", "MASTER_PORT": "29500"}
    elsewhere = replace(interpreter, home=place)  # the folder that it is started in
    assert json.loads(elsewhere.run(KEYS, str(built.store.path), str(toolchains), **noise)) == [True, True]

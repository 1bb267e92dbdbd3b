"""Keys: what changes a program's key, by label, and what does not."""

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from planfreeze import key as keys
from planfreeze.family import CuteSource, Definition, LaunchInfo, TritonSource, family_of, pointer, scalar
from planfreeze.key import Key, dialect_of, differing_labels, hash_parts, make_key, source_roots
from planfreeze.sources import Sources
from planfreeze.target import target
from planfreeze.toolchain import Toolchain

LABELS = (
    *("schema", "family", "payload", "arch", "definition"),
    *("sources", "toolchain", "driver", "options", "environment"),
)
SOURCES = Sources((("toys.add_triton", "0" * 64), ("toys.families", "1" * 64)))
TOOLCHAIN = Toolchain("triton", "3.9.0", "f" * 64)
LAUNCH = LaunchInfo(block=(32, 1, 1))
ARGUMENTS = (pointer("source", "i32", lambda scalars: 1), scalar("count"))
TRITON = TritonSource(kernel="toys.add_triton:add_kernel", constants=(("block", 64), ("is_wide", True)), num_warps=1)
CUTE = CuteSource(kernel="toys.copy_cute:Copy", constants=(("mode", "plain"),), launch=LAUNCH)


def define(source=TRITON, arguments=ARGUMENTS):
    return Definition(arguments=arguments, source=source, grid=lambda scalars, resident_blocks: (1, 1, 1))


@pytest.fixture
def parts(toys):
    """All arguments of a key."""
    return {
        "family": toys.families.add,
        "payload": toys.families.AddPayload(block=64),
        "definition": define(),
        "target": target("sm_90a"),
        "sources": SOURCES,
        "toolchain": TOOLCHAIN,
    }


DIFFERS_ON: dict[str, tuple[str, Callable[[dict], dict]]] = {
    "another payload": ("payload", lambda p: {"payload": type(p["payload"])(block=128)}),
    "another arch": ("arch", lambda p: {"target": target("sm_120a")}),
    "a new version of the family": ("family", lambda p: {"family": replace(p["family"], version=2)}),
    "a family elsewhere": ("family", lambda p: {"family": replace(p["family"], reference="toy:families.add")}),
    "other text": ("sources", lambda p: {"sources": Sources((SOURCES.modules[0], ("toys.families", "2" * 64)))}),
    "one module more": ("sources", lambda p: {"sources": Sources((*SOURCES.modules, ("toys.shared", "0" * 64)))}),
    "one module less": ("sources", lambda p: {"sources": Sources(SOURCES.modules[:1])}),
    "another name for a module": ("sources", lambda p: {"sources": Sources((("a", "0" * 64), SOURCES.modules[1]))}),
    "another compiler": ("toolchain", lambda p: {"toolchain": replace(TOOLCHAIN, fingerprint="e" * 64)}),
    "another version of the compiler": ("toolchain", lambda p: {"toolchain": replace(TOOLCHAIN, version="3.9.1")}),
    **{
        f"a definition with {what}": ("definition", lambda p, made=made: {"definition": made})
        for what, made in {
            "another kernel": define(replace(TRITON, kernel="toys.add_triton:other")),
            "another constant": define(replace(TRITON, constants=(("block", 65), ("is_wide", True)))),
            "a constant of another type": define(replace(TRITON, constants=(("block", 64), ("is_wide", 1)))),
            "other warps": define(replace(TRITON, num_warps=2)),
            "other stages": define(replace(TRITON, num_stages=2)),
            "another argument type": define(arguments=(pointer("source", "u32", len), scalar("count"))),
            "another argument name": define(arguments=(pointer("sources", "i32", len), scalar("count"))),
            "another alignment": define(arguments=(pointer("source", "i32", len, alignment=4), scalar("count"))),
            "a wider scalar": define(arguments=(pointer("source", "i32", len), scalar("count", "i64"))),
            "one argument less": define(arguments=ARGUMENTS[:1]),
            "arguments in another order": define(arguments=ARGUMENTS[::-1]),
        }.items()
    },
}


@pytest.mark.parametrize("change", DIFFERS_ON)
def test_key_differs_on(parts, change):
    label, alter = DIFFERS_ON[change]
    before, after = make_key(**parts), make_key(**parts | alter(parts))
    assert before.digest != after.digest
    assert differing_labels(before, after) == (label,)


@pytest.mark.parametrize(
    "launch",
    [
        LaunchInfo(block=(64, 1, 1)),
        replace(LAUNCH, cluster=(2, 1, 1)),
        replace(LAUNCH, shared_bytes=1024),
        replace(LAUNCH, min_blocks=2),
        replace(LAUNCH, carveout_percent=100),
        replace(LAUNCH, carveout_percent=0),
        replace(LAUNCH, is_cooperative=True),
        replace(LAUNCH, is_programmatic=True),
    ],
)
def test_key_of_a_cute_program_differs_on_its_launch_facts(parts, launch):
    before = make_key(**parts | {"definition": define(CUTE)})
    after = make_key(**parts | {"definition": define(replace(CUTE, launch=launch))})
    assert differing_labels(before, after) == ("definition",)


def test_key_differs_on_options_and_environment_of_the_compile(parts, monkeypatch):
    before = make_key(**parts)
    monkeypatch.setitem(keys.COMPILE_OPTIONS, "triton", "--other")
    assert differing_labels(before, make_key(**parts)) == ("options",)
    monkeypatch.setitem(keys.COMPILE_OPTIONS, "triton", "")
    monkeypatch.setitem(keys.COMPILE_ENVIRONMENT, "triton", {"TRITON_DISABLE_LINE_INFO": "1"})
    assert differing_labels(before, make_key(**parts)) == ("environment",)


def test_dialects_differ_in_every_part_that_depends_on_the_compiler(parts):
    cute = make_key(**parts | {"definition": define(CUTE), "toolchain": replace(TOOLCHAIN, dialect="cute")})
    expected = ("definition", "toolchain", "driver", "options", "environment")
    assert differing_labels(make_key(**parts), cute) == expected


HASH_SAME: dict[str, Callable[[dict], dict]] = {
    "grid": lambda p: {"definition": replace(define(), grid=lambda scalars, resident_blocks: (9, 9, 9))},
    "element counts of arguments": lambda p: {
        "definition": define(arguments=(pointer("source", "i32", id), scalar("count")))
    },
    "a payload made from its fields": lambda p: {"payload": type(p["payload"]).from_fields({"block": 64, "warps": 1})},
    "module order": lambda p: {"sources": Sources(tuple(sorted(SOURCES.modules[::-1])))},
}


@pytest.mark.parametrize("change", HASH_SAME)
def test_key_is_the_same_with_another(parts, change):
    assert make_key(**parts | HASH_SAME[change](parts)) == make_key(**parts)


def test_every_label_is_there_once_and_in_order(parts):
    assert tuple(label for label, _ in make_key(**parts).parts) == LABELS


def test_equal_keys_differ_in_no_label(parts):
    assert differing_labels(make_key(**parts), make_key(**parts)) == ()


def test_a_label_that_the_other_key_lacks_differs(parts):
    key = make_key(**parts)
    older = Key(key.parts[:-1], "")
    assert differing_labels(key, older) == ("environment",)


def test_no_two_lists_of_parts_run_together_alike():
    pieces = ["", "a", "b", "ab", "a\0", "\0b", "'", '"', "\n", ",", "1", "a" * 300]
    lists = [((a, b.encode()), (c, d.encode())) for a, b, c, d in itertools.product(pieces, repeat=4)]
    lists += [((a, b.encode()),) for a, b in itertools.product(pieces, repeat=2)]
    assert len({hash_parts(parts) for parts in lists}) == len(lists)


# From here on keys are made as a build makes them, in fresh processes.
KEYS = """
import sys
from pathlib import Path
from planfreeze.keyed import key_plan
from planfreeze.plans import Plan
from planfreeze.target import target
from toys.families import AddPayload, CopyPayload
plan = Plan(model="toys", tp=1, target=target("sm_90a"), payloads=(AddPayload(block=64), CopyPayload()))
for program in key_plan(plan, Path(sys.argv[1])):
    print(program.key.digest)
"""


@pytest.fixture
def checkout(toys, tmp_path):
    """A private copy of the package ``toys``, to be changed by a test."""
    shutil.copytree(toys.folder, tmp_path / "checkout", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "checkout"


@pytest.fixture
def key_toys(interpreter, toolchains):
    """Make the keys of both families in a fresh process that sees a copy of the package."""

    def make(folder: Path | None = None, **environment: str) -> list[str]:
        folders = (folder, *interpreter.folders) if folder else interpreter.folders
        return replace(interpreter, folders=folders).run(KEYS, str(toolchains), **environment).split()

    return make


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_key_in_another_process_is_the_one_of_this_process(key_toys, built):
    assert key_toys() == [program.key.digest for program in built.keyed]


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "1"},
        {"HOME": "/", "TMPDIR": "/tmp", "LANG": "C", "TZ": "Asia/Tokyo", "USER": "somebody", "COLUMNS": "1"},
        {
            "TRITON_DEFAULT_FP_FUSION": "0",
            "TRITON_DISABLE_LINE_INFO": "0",
            "TRITON_PTXAS_PATH": "/nowhere/ptxas",
            "TRITON_CACHE_DIR": "/nowhere",
            "TRITON_KERNEL_OVERRIDE": "1",
        },
        {"CUTE_DSL_ARCH": "sm_120a", "CUTE_DSL_KEEP_IR": "1", "CUTE_DSL_ENABLE_ASSERTIONS": "1"},
        {"CUDA_VISIBLE_DEVICES": "3", "PTXAS_OPTIONS": "-O0", "NVCC_APPEND_FLAGS": "-G"},
    ],
    ids=["hash seed", "user and machine", "triton", "cute", "cuda"],
)
def test_key_does_not_depend_on_the_callers_environment(key_toys, built, environment):
    assert key_toys(**environment) == [program.key.digest for program in built.keyed]


def test_key_does_not_depend_on_place_time_or_unrelated_text(key_toys, built, checkout):
    append(checkout / "toys" / "unrelated.py", "# a comment\n")
    (checkout / "toys" / "new.py").write_text("import nothing_of_that_name\n")
    for path in checkout.rglob("*.py"):
        os.utime(path, (1, 1))
    assert key_toys(checkout) == [program.key.digest for program in built.keyed]


@pytest.mark.parametrize(
    ("module", "text", "changed"),
    [
        ("add_triton", "# a comment\n", [True, False]),
        ("copy_cute", "# a comment\n", [False, True]),
        ("shared", "AMOUNT = 8\n", [True, False]),
        ("families", "\n", [True, True]),
        ("__init__", "# a comment\n", [True, True]),
    ],
)
def test_key_depends_on_the_text_of_its_kernel_and_of_all_that_the_kernel_imports(
    key_toys, built, checkout, module, text, changed
):
    append(checkout / "toys" / f"{module}.py", text)
    before = [program.key.digest for program in built.keyed]
    assert [a != b for a, b in zip(before, key_toys(checkout), strict=True)] == changed


def test_key_does_not_depend_on_the_framework_itself(built):
    for program in built.keyed:
        modules = [name for name, _ in program.sources.modules]
        assert [name for name in modules if name.startswith("planfreeze.") and ".kernels." not in name] == []
        assert "toys.families" in modules


def test_what_a_family_says_of_markings_is_held_against_the_kernel_and_changes_no_key(parts):
    marked = replace(TRITON, markings=(("source", "specialized", ("",)),))
    assert make_key(**parts | {"definition": define(marked)}).digest == make_key(**parts).digest


def test_key_depends_on_the_driver_of_its_compiler_alone(parts, monkeypatch):
    asked = []
    monkeypatch.setattr(keys, "hash_source", lambda name: asked.append(name) or name)
    make_key(**parts)
    make_key(**parts | {"definition": define(CUTE)})
    assert asked == [*keys.DRIVERS["triton"], *keys.DRIVERS["cute"]]
    assert not set(keys.DRIVERS["triton"]) & set(keys.DRIVERS["cute"])


def test_sources_of_a_program_are_those_of_its_family_and_its_kernel(toys):
    families = toys.families
    for payload, kernel in ((families.AddPayload(block=64), "add_triton"), (families.CopyPayload(), "copy_cute")):
        family = family_of(payload)
        definition = family.define(payload, target("sm_90a"))
        assert source_roots(family, definition) == ("toys.families", f"toys.{kernel}")
        assert dialect_of(definition) == kernel.partition("_")[2]

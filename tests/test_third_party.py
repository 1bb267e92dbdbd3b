"""The example package of somebody else: installed, planned by name, built for real, replayed, and edited."""

import re
from pathlib import Path
from typing import Any

import pytest

from .third_party import EXAMPLE, VARIANTS, Installation, install, write_distribution
from .unfreezable import UNFREEZABLE


@pytest.fixture(scope="module")
def installed(toolchains: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(tmp_path_factory.mktemp("installed"), toolchains)


@pytest.fixture
def edited(toolchains: Path, tmp_path: Path) -> Installation:
    return install(tmp_path, toolchains)


@pytest.fixture(scope="module")
def built(installed: Installation) -> Any:
    """What building all families for sm_90a reported."""
    families = ",".join(VARIANTS)
    return installed.planfreeze("build", "--family", families, "--arch", "sm_90a", "--store", "store")


def test_declaring_and_planning_import_no_compiler_and_no_torch(installed: Installation) -> None:
    script = (
        "import sys; from planfreeze.explanations import find_family\n"
        "for name in sys.argv[1:]: assert find_family(name).payloads()\n"
        "print([name for name in sys.modules if name in ('torch', 'triton', 'cutlass', 'numpy')])"
    )
    assert installed.run("-c", script, *VARIANTS).stdout.strip() == "[]"


def test_families_are_planned_by_the_names_of_their_entry_points(installed: Installation) -> None:
    for name, count in VARIANTS.items():
        (plan,) = installed.planfreeze("plan", "--family", name, "--arch", "sm_90a")["plans"]
        assert plan["name"] == f"{name}-tp1-sm_90a"
        assert len(plan["programs"]) == count


def test_listing_a_family_says_what_would_shrink_it(installed: Installation) -> None:
    shown = installed.run("-m", "planfreeze", "plan", "--family", "sample_layer_norm", "--arch", "sm_90a")
    assert "note: sample_layer_norm: do_not_specialize='columns' leaves 1 of every 2 variants" in shown.stderr


@pytest.mark.usefixtures("hide_frameworks")
def test_a_plan_that_is_missing_names_the_families_that_build_it(installed: Installation, built: Any) -> None:
    plan = "sample_gemm-and-sample_softmax-tp1-sm_90a"
    said = installed.refused("replay", "--plan", plan, "--store", "store", status=3)
    assert "planfreeze build --family sample_gemm,sample_softmax --arch sm_90a" in said


@pytest.mark.usefixtures("hide_frameworks")
def test_every_variant_is_built_without_a_gpu_and_replays_under_the_guard(installed: Installation, built: Any) -> None:
    assert (built["compiled"], built["failed"]) == (sum(VARIANTS.values()), [])
    families = [part for name in VARIANTS for part in ("--family", name)]
    replayed = installed.planfreeze("replay", *families, "--arch", "sm_90a", "--store", "store")
    assert replayed["resolved"] == sum(VARIANTS.values())
    assert (replayed["missing"], replayed["damaged"], replayed["compiled"]) == ([], [], 0)


def test_the_frozen_plan_says_what_builds_it_again(installed: Installation, built: Any) -> None:
    script = (
        "import sys; from planfreeze.cache.store import Store; from pathlib import Path; "
        "from planfreeze.frozen_plans import FrozenPlan; "
        "print(FrozenPlan.decode(Store.open(Path('store')).get_plan(sys.argv[1])).build_command)"
    )
    (plan,) = built["plans"]
    _, *arguments = installed.run("-c", script, plan["root"]).stdout.split()
    assert arguments == ["build", "--family", ",".join(VARIANTS), "--arch", "sm_90a"]
    again = installed.planfreeze(*arguments, "--store", "store")
    assert (again["compiled"], again["plans"]) == (0, built["plans"])


def test_a_model_of_an_entry_point_is_built_by_its_name(installed: Installation, built: Any) -> None:
    report = installed.planfreeze("build", "--model", "sample_model", "--arch", "sm_90a", "--store", "store")
    assert (report["compiled"], report["reused"]) == (0, VARIANTS["sample_softmax"] + VARIANTS["sample_gemm"])
    assert report["plans"][0]["name"] == "sample_model-tp1-sm_90a"


def test_an_entry_point_may_offer_the_file_of_a_model(edited: Installation) -> None:
    (edited.folder / "models.py").write_text("from pathlib import Path\nFILE = Path(__file__).with_name('any.toml')\n")
    model = 'hidden = 256\nintermediate = 64\nexperts = 4\ntop_k = 2\nweight_format = "mxfp4"\n'
    (edited.folder / "any.toml").write_text(model + 'programs = "sample_kernels.families:list_programs"\n')
    write_distribution(edited.folder, "offers-models", {"planfreeze.models": {"offered": "models:FILE"}})
    (plan,) = edited.planfreeze("plan", "--model", "offered", "--arch", "sm_90a")["plans"]
    assert plan["name"] == "offered-tp1-sm_90a"
    assert len(plan["programs"]) == VARIANTS["sample_softmax"] + VARIANTS["sample_gemm"]
    (edited.folder / "any.toml").write_text(model.replace("4", "four"))
    assert "any.toml" in edited.refused("plan", "--model", "offered", status=2)


def test_a_payload_is_explained_by_the_name_of_its_family(installed: Installation, built: Any) -> None:
    fields = [*(f"{name}=f32" for name in "abc"), *(f"{name}=i32" for name in "mnk")]
    command = ["explain", "sample_gemm", *fields, "--arch", "sm_90a", "--store", "store"]
    assert "tile=16" in installed.run("-m", "planfreeze", *command, "tile=16").stdout
    text = installed.run("-m", "planfreeze", *command, "tile=64", status=3).stdout
    assert "tile: 16 -> 64" in text or "tile: 32 -> 64" in text
    assert "planfreeze build --family sample_gemm" in text


def test_a_constant_that_is_a_function_is_explained_by_its_name(installed: Installation, built: Any) -> None:
    sizes = [f"{name}=i32-by-16" for name in ("n", "k", "a_stride", "b_stride", "c_stride")]
    fields = ["a=f16", "b=f16", "c=f16", "m=i32", *sizes, "ACTIVATION=sample_kernels.reductions:relu"]
    tiles = ["BLOCK_M=64", "BLOCK_N=64", "BLOCK_K=32", "num_warps=4"]
    command = ("explain", "sample_matmul", *fields, *tiles, "--arch", "sm_90a", "--store", "store")
    assert "ACTIVATION=sample_kernels.reductions:relu" in installed.run("-m", "planfreeze", *command).stdout


def test_shared_memory_that_a_launch_leaves_to_the_dsl_is_launched_with(installed: Installation, built: Any) -> None:
    script = (
        "from pathlib import Path; from planfreeze.cache.store import Store\n"
        "from planfreeze.record import ProgramRecord\n"
        "store = Store.open(Path('store'))\n"
        "for entry in store.entries('record'):\n"
        "    record = ProgramRecord.decode(store.get_record(entry.name))\n"
        "    if record.family.endswith(':sample_gemm'): print(record.launch.block[0], record.launch.shared_bytes)"
    )
    assert sorted(installed.run("-c", script).stdout.split("\n")) == ["", "16 2048", "32 8192"]


EDITS = {
    "a helper called by attribute": ("reductions", "tl.max(row, axis=0)", "tl.min(row, axis=0)", "sample_softmax"),
    "a helper imported by name": ("reductions", "x * LOG2_E", "LOG2_E * x", "sample_softmax"),
    "a captured constexpr of another module": ("reductions", "1.4426950408889634", "1.5", "sample_softmax"),
    "a captured constexpr": ("softmax_triton", 'float("-inf")', "-1.0", "sample_softmax"),
    "a helper passed as a constant": ("reductions", "tl.maximum(x, 0.0)", "tl.minimum(x, 0.0)", "sample_matmul"),
    "a plain function run at trace time": ("gemm_cute", "stride=(columns, 1)", "stride=(1, rows)", "sample_gemm"),
    "a captured int": ("scale_add_cute", "THREADS = 128", "THREADS = 256", "sample_scale_add"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_changes_the_keys_of_what_it_reaches_and_of_nothing_else(edited: Installation, edit: str) -> None:
    module, old, new, family = EDITS[edit]
    before, unrelated = edited.keys(family), edited.keys("sample_layer_norm")
    edited.edit(module, old, new)
    after = edited.keys(family)
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    assert edited.keys("sample_layer_norm") == unrelated


def test_an_edit_of_a_captured_value_changes_the_bytes_too(edited: Installation) -> None:
    def blobs() -> set[str]:
        edited.planfreeze("build", "--family", "sample_scale_add", "--arch", "sm_90a", "--store", "store")
        return {path.name for path in (edited.folder / "store" / "objects").rglob("*") if path.is_file()}

    first = blobs()
    edited.edit("scale_add_cute", "THREADS = 128", "THREADS = 256")
    assert len(blobs() - first) == 2


def test_what_a_heuristic_would_choose_is_chosen_by_the_family(edited: Installation) -> None:
    def build() -> set[str]:
        report = edited.planfreeze("build", "--family", "sample_softmax", "--arch", "sm_90a", "--store", "store")
        assert (report["compiled"], report["failed"]) == (VARIANTS["sample_softmax"], [])
        return {path.name for path in (edited.folder / "store" / "objects").rglob("*") if path.is_file()}

    plain = build()
    edited.edit("softmax_triton", "@triton.jit", '@triton.heuristics({"BLOCK": lambda call: 1 // 0})\n@triton.jit')
    assert build() == plain, "the kernel below the decorator is compiled, with the family's constants"


@pytest.mark.parametrize("case", UNFREEZABLE)
def test_what_cannot_be_frozen_is_refused_by_name(edited: Installation, case: str) -> None:
    module, old, new, family, reason = UNFREEZABLE[case]
    edited.edit(module, old, new)
    refused = edited.refused("build", "--family", family, "--arch", "sm_90a", "--store", "store", status=1)
    assert re.search(reason, refused), refused
    assert not list((edited.folder / "store" / "refs").glob("*")), "no plan is frozen"


def test_a_script_and_the_helpers_beside_it_are_a_family_too(toolchains: Path, tmp_path: Path) -> None:
    files = {
        "helpers.py": "import triton\n\n@triton.jit\ndef double(x):\n    return x * 2\n",
        "kernels.py": (
            "import triton\nimport triton.language as tl\nimport helpers\n\n@triton.jit\n"
            "def max(x, y):\n    return tl.maximum(x, y)\n\n@triton.jit\n"
            "def kernel(out, n, wide):\n"
            "    tl.store(out, max(helpers.double(n), tl.max(tl.arange(0, 4), axis=0)) + wide)\n"
        ),
        "script.py": (
            "from planfreeze.declarations import integer, tensor, triton_family\n\n"
            "@triton_family(kernel='kernels:kernel', arguments=(tensor('out', 'i64'), integer('n', 1, 20), "
            "integer('wide', -(2**63), 2**63 - 1)))\n"
            "def script_family(scalars, constants):\n    return (1,)\n"
        ),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    here = Installation(tmp_path, toolchains)
    built = here.planfreeze("build", "--family", "script:script_family", "--arch", "sm_120a", "--store", "store")
    assert (built["compiled"], built["failed"]) == (3 * 5, [])
    before = here.keys("script:script_family")
    (tmp_path / "helpers.py").write_text(files["helpers.py"].replace("* 2", "* 3"))
    assert not set(before.values()) & set(here.keys("script:script_family").values())


def test_broken_and_colliding_entry_points_are_errors_only_when_asked_for(edited: Installation) -> None:
    groups = {
        "planfreeze.families": {
            "sample_gemm": "other.place:gemm",
            "topk_sum": "other.place:topk",
            "gone": "no_such_module:family",
            "raises": "raising:family",
            "nothing": "sample_kernels.families:INT_MAX",
        },
        "planfreeze.models": {"gone": "no_such_module:model", "nothing": "sample_kernels.families:INT_MAX"},
    }
    write_distribution(edited.folder, "other-kernels", groups)
    (edited.folder / "raising.py").write_text("raise RuntimeError('at import')")
    assert edited.planfreeze("plan", "--family", "sample_softmax", "--arch", "sm_90a")["plans"]
    for name, status, reason in [
        ("sample_gemm", 2, "is declared as"),
        ("topk_sum", 2, "planfreeze.kernels.moe.topk_sum:topk_sum and as other.place:topk"),
        ("gone", 3, "entry point gone of planfreeze.families = no_such_module:family"),
        ("raises", 3, "at import"),
        ("nothing", 3, "entry point nothing"),
    ]:
        assert reason in edited.refused("plan", "--family", name, "--arch", "sm_90a", status=status)
    assert "no_such_module" in edited.refused("plan", "--model", "gone", status=3)
    assert "it gives a int, not a model" in edited.refused("plan", "--model", "nothing", status=3)


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("--family", "planfreeze.kernels.moe.topk_sum:topk_sum"), 2, "does not say which payloads it is used with"),
        (("--family", "no_such_family"), 3, "no_such_family is not a kernel family here"),
        (("--family", "sample_gemm", "--model", "ds41"), 2, "with --arch alone"),
        (("--family", "sample_gemm", "--tp", "2"), 2, "with --arch alone"),
        ((), 2, "one of --model, --family, --plan is missing"),
    ],
)
def test_families_that_cannot_be_planned(
    installed: Installation, arguments: tuple[str, ...], status: int, reason: str
) -> None:
    assert reason in " ".join(installed.refused("plan", *arguments, status=status).replace("│", " ").split())


def test_the_launches_of_the_example_take_every_variant(installed: Installation) -> None:
    pytest.importorskip("torch")
    script = (
        "import sys, torch; sys.path.insert(0, sys.argv[1]); import launch_frozen as example\n"
        "taken = {family.name: set() for family in example.FAMILIES}\n"
        "for case in example.make_cases(torch.device('cpu')):\n"
        "    taken[case.family.name].add(case.family.specialize(*case.values, **case.constants))\n"
        "for family in example.FAMILIES:\n"
        "    assert taken[family.name] == set(family.payloads()), family.name\n"
        "print('all', 'triton' in sys.modules)"
    )
    assert installed.run("-c", script, str(EXAMPLE)).stdout == "all False\n"


def test_the_example_says_what_builds_its_plan_and_that_there_is_no_gpu(installed: Installation, built: Any) -> None:
    pytest.importorskip("torch")
    script = str(EXAMPLE / "launch_frozen.py")
    _, *arguments = installed.run(script, "--command").stdout.split()
    report = installed.planfreeze(*arguments, "--store", "store")
    assert (report["compiled"], report["reused"]) == (0, sum(VARIANTS.values()))
    environment_without_gpu = installed.run(script, "--store", "store", "--arch", "sm_90a", status=6)
    assert "no CUDA device" in environment_without_gpu.stderr

"""A script that knows nothing of planfreeze: recorded, built without a GPU, served with nothing left to compile."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from planfreeze.serving.programs import read_served

from .conftest import ALL_LAUNCHED


def tree_digest(folder: Path) -> str:
    """One digest over names, contents and times of all files of a folder."""
    parts = [(str(p), p.stat().st_mtime_ns, p.read_bytes()) for p in sorted(folder.rglob("*")) if p.is_file()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def test_a_served_run_lowers_nothing_benchmarks_nothing_and_starts_no_compiler(served_everywhere):
    output = served_everywhere.serve(FORBID="1")
    assert ALL_LAUNCHED in output
    assert "RuntimeWarning" not in output
    plan = served_everywhere.plan()
    assert len(plan.entries) == 4 and len(plan.choices) == 2
    assert len(read_served(served_everywhere.folder / "served")) == 4


def test_a_recording_has_what_was_launched_and_not_what_was_tried(served_everywhere):
    recorded = served_everywhere.record(name="again.json")
    launches = {
        (program["payload"]["kernel"], dict(program["payload"]["options"]).get("num_warps"), program["launches"])
        for program in recorded["programs"]
    }
    assert launches == {
        ("train:fill", None, 5),
        ("train:fill", None, 1),
        ("train:tuned", None, 1),
        ("train:tuned", None, 2),
    }
    assert {dict(choice["config"])["BLOCK"] for choice in recorded["choices"]} == {128}
    assert recorded["unused"] == 4  # two of three configurations, under each value of the heuristic
    assert recorded["archs"] == ["sm_90a"]
    assert recorded["versions"].keys() == {"triton", "ptxas"}
    assert recorded["source_roots"] == ["."]
    assert str(served_everywhere.folder) not in (served_everywhere.folder / "again.json").read_text()
    assert recorded == served_everywhere.record(name="again.json")


def test_a_plan_is_served_elsewhere(served_everywhere, tmp_path):
    # Other working directory, other home, other cache directory of Triton; the script's folder is read-only there.
    place = tmp_path / "place"
    shutil.copytree(served_everywhere.folder, place, ignore=shutil.ignore_patterns("home", "store"))
    (place / "elsewhere").mkdir()
    script = str(place / "train.py")
    output = served_everywhere.serve(script, FORBID="1", HOME=str(place), TRITON_CACHE_DIR=str(place / "elsewhere"))
    assert ALL_LAUNCHED in output
    assert list((place / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("switch", [{"TRITON_ALWAYS_COMPILE": "1"}, {"TRITON_DEFAULT_FP_FUSION": "0"}])
def test_switches_of_the_compiler_do_not_get_around_serving(built_project, switch):
    assert ALL_LAUNCHED in built_project.serve(FORBID="1", **switch)


def test_an_unplanned_program_is_explained_before_it_is_lowered(built_project):
    output = built_project.serve(FORBID="1", WARPS="8", status=1)
    assert "run-sm_90a holds fill otherwise; planned -> asked: num_warps: 4 -> 8" in output
    assert output.rstrip().endswith("RuntimeError: lowered")
    assert "train.py:" in output  # the user's line


def test_changed_text_of_a_kernel_is_named(built_project, copy_of):
    changed = copy_of(built_project)
    text = (changed.folder / "scaling.py").read_text()
    (changed.folder / "scaling.py").write_text(text.replace("tl.constexpr(2)", "tl.constexpr(3)"))
    output = changed.serve(FORBID="1", status=1)
    assert "holds fill otherwise; planned -> asked: the text of the kernel or of what it calls" in output


def test_a_program_left_out_of_the_plan_is_not_found(built_project, copy_of):
    import json

    changed = copy_of(built_project)
    recording = json.loads((changed.folder / "run.json").read_text())
    recording["programs"] = [p for p in recording["programs"] if p["payload"]["kernel"] != "train:fill"]
    (changed.folder / "less.json").write_text(json.dumps(recording))
    changed.build(recording="less.json")
    output = changed.serve(plan="less-sm_90a", FORBID="1", status=1)
    assert "less-sm_90a holds no program of the kernel fill" in output
    assert output.rstrip().endswith("RuntimeError: lowered")


def test_what_a_plan_lacks_is_compiled_aside_where_nothing_forbids_it(built_project, tmp_path):
    before = tree_digest(built_project.store)
    output = built_project.serve(WARPS="8", TMPDIR=str(tmp_path))
    assert "launched 9 benchmarked 0" in output and "num_warps: 4 -> 8" in output
    assert tree_digest(built_project.store) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["blob", "record"])
def test_a_program_lost_from_the_store_stops_the_process_when_it_imports_the_compiler(built_project, copy_of, kind):
    changed = copy_of(built_project)
    entry = changed.plan().entries[0]
    folder, name = ("objects", entry.blob) if kind == "blob" else ("records", entry.key)
    (changed.store / folder / name[:2] / name).unlink()
    output = changed.serve(status=1)
    assert "MissingPrograms" in output and "train:fill" in output
    assert "launched" not in output


def test_a_damaged_companion_stops_the_process(built_project, copy_of):
    from planfreeze.cache.store import Store
    from planfreeze.record import ProgramRecord

    changed = copy_of(built_project)
    entry = changed.plan().entries[0]
    record = ProgramRecord.decode(Store.open(changed.store).get_record(entry.key))
    digest = dict(record.companions)["triton.json"]
    path = changed.store / "objects" / digest[:2] / digest
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:100])
    assert "DamagedPrograms" in changed.serve(status=1)


def test_two_ranks_that_build_from_one_recording_have_one_plan(built_project, copy_of):
    other = copy_of(built_project)
    shutil.rmtree(other.store)
    # A compiler cache that is warm, and one that cannot be written.
    other.build(TRITON_CACHE_DIR=str(other.folder / "home" / ".triton" / "cache"))
    assert other.plan().root == built_project.plan().root
    shutil.rmtree(other.store)
    (other.folder / "sealed").mkdir(mode=0o500)
    other.build(TRITON_CACHE_DIR=str(other.folder / "sealed"), TRITON_ALWAYS_COMPILE="1")
    assert other.plan().root == built_project.plan().root


def test_a_recording_is_built_for_another_architecture(built_project, copy_of):
    other = copy_of(built_project)
    other.build("--arch", "sm_120a")
    assert other.plan("run-sm_120a").arch == "sm_120a"
    assert len(other.plan("run-sm_120a").entries) == 4


def test_a_built_recording_replays(built_project):
    assert '"resolved": 4' in built_project.planfreeze("replay", "--plan", "run.json", "--store", "store", "--json")
    assert '"resolved": 4' in built_project.planfreeze("replay", "--plan", "run-sm_90a", "--store", "store", "--json")


def test_a_frozen_recording_replays_elsewhere_when_it_is_told_where_the_kernels_are(built_project, tmp_path):
    command = [built_project.python, "-P", "-m", "planfreeze", "replay", "--plan", "run-sm_90a"]
    command += ["--store", str(built_project.store), "--source-root"]
    environment = built_project.environment()
    told = subprocess.run([*command, str(built_project.folder)], cwd=tmp_path, env=environment, capture_output=True)
    assert told.returncode == 0, told.stderr
    untold = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert untold.returncode != 0 and "train" in untold.stderr


def test_plan_diff_tells_unused_from_unplanned(built_project, copy_of):
    diff = ("plan", "diff", "run-sm_90a", "run.json", "--store", "store")
    assert "exactly what is planned" in built_project.planfreeze(*diff)
    changed = copy_of(built_project)
    changed.record(WARPS="8")
    output = changed.planfreeze(*diff, status=1)
    assert output.count("planned, not used: ") == 1 and output.count("used, not planned: ") == 1
    assert "num_warps: none -> 8" in output
    assert '"unused": [' in changed.planfreeze(*diff, "--json", status=1)


def test_every_value_of_a_class_is_served_after_one_of_it_was_recorded(project):
    (project.folder / "train.py").write_text(
        """
import sys
import device
import triton
import triton.language as tl
from device import Pointer, driver

@triton.jit
def fill(x, n):
    tl.store(x, n)

if __name__ == "__main__":
    values = [1, 7, 48] if len(sys.argv) < 2 else eval(sys.argv[1])
    for value in values:
        fill[(1,)](Pointer(), value)
    print("launched", len(driver.launched))
"""
    )
    assert len(project.record()["programs"]) == 3
    project.build()
    (project.folder / "all.py").write_text("import device, runpy, sys\ndevice.forbid_lowering()\n"
        "sys.argv.append('range(1, 4097)')\nrunpy.run_path('train.py', run_name='__main__')\n")  # fmt: skip
    # Run as the script it was recorded as, and imported under another name: the text is the same.
    assert "launched 4096" in project.serve("all.py")
    (project.folder / "all.py").write_text("import device, runpy, sys\ndevice.forbid_lowering()\n"
        "sys.argv.append('[2 ** 31]')\nrunpy.run_path('train.py', run_name='__main__')\n")  # fmt: skip
    assert "-> i64" in project.serve("all.py", status=1)

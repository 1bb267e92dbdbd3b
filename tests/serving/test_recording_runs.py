"""What a recording holds, refuses, merges and passes on."""

import json
import subprocess

import pytest

from planfreeze import recording
from planfreeze.errors import RecordingUnwritable

REFUSED = """
import textwrap
import device
import triton
import triton.language as tl
from device import Pointer

def make(step):
    @triton.jit
    def enclosed(x):
        tl.store(x, 1)
    return enclosed

@triton.jit
def named(x, CHANGE: tl.constexpr):
    tl.store(x, 2)

@triton.jit
def under_another_name_(x):
    tl.store(x, 3)

under_another_name, taken = under_another_name_, under_another_name_
del under_another_name_

if __name__ == "__main__":
    make(1)[(1,)](Pointer())
    named[(1,)](Pointer(), CHANGE=None)
    named[(1,)](Pointer(), CHANGE=object())
    under_another_name[(1,)](Pointer())
"""


def test_kernels_and_constants_without_a_name_are_refused_by_name(project):
    (project.folder / "odd.py").write_text(REFUSED)
    recorded = project.record("odd.py", status=1)
    assert [p["payload"]["kernel"] for p in recorded["programs"]] == ["odd:named", "odd:under_another_name"]
    refused = {entry["kernel"]: entry["reason"] for entry in recorded["refused"]}
    assert refused.keys() == {"__main__:make.<locals>.enclosed", "odd:named"}
    assert "no such kernel under any name" in refused["__main__:make.<locals>.enclosed"]
    assert "CHANGE" in refused["odd:named"] and "object" in refused["odd:named"]
    assert project.record("odd.py", name="again.json", status=1) == recorded
    output = project.planfreeze("record", "-o", "part.json", "--partial", "--", project.python, "odd.py")
    assert "left out: odd:named" in output


HOOKS = """
import device
import triton
import triton.language as tl
from device import Pointer

PLAIN = [triton.Config({}, num_warps=warps) for warps in (1, 2)]
HOOKED = [triton.Config({}, num_warps=warps, pre_hook=lambda arguments: None) for warps in (1, 2)]

class Tensor(Pointer):
    def zero_(self): pass
    def clone(self): return self
    def copy_(self, other): pass

def keep(configs, named_arguments, **options):
    return configs[:2]

def add(x, y, n):
    tl.store(x, tl.load(x) + tl.load(y))

@triton.autotune(PLAIN, key=["n"], reset_to_zero=["x"])
@triton.jit
def resetting(x, n):
    tl.store(x, n)

@triton.autotune(PLAIN, key=["n"], restore_value=["x"])
@triton.jit
def restoring(x, n):
    tl.store(x, n)

@triton.autotune(PLAIN, key=["n"], pre_hook=lambda arguments, reset_only=False: None)
@triton.jit
def hooking(x, n):
    tl.store(x, n)

@triton.autotune(HOOKED, key=["n"])
@triton.jit
def hooked(x, n):
    tl.store(x, n)

@triton.autotune(PLAIN * 2, key=["n"], prune_configs_by={"early_config_prune": keep})
@triton.jit
def pruned(x, n):
    tl.store(x, n)

if __name__ == "__main__":
    for kernel in (resetting, restoring, hooking, hooked, pruned):
        for n in (7, 7, 9):
            kernel[(1,)](Tensor(), n)
    print("benchmarked", len(device.driver.benchmarked))
"""


def test_choices_of_tuners_with_hooks_are_refused_by_name_and_others_are_served(project):
    (project.folder / "hooks.py").write_text(HOOKS)
    recorded = project.record("hooks.py", status=1)
    refused = {entry["kernel"]: entry["reason"] for entry in recorded["refused"]}
    assert refused.keys() == {f"hooks:{name}" for name in ("resetting", "restoring", "hooking", "hooked")}
    assert "reset_to_zero=['x']" in refused["hooks:resetting"]
    assert "restore_value=['x']" in refused["hooks:restoring"]
    assert "pre_hook of num_warps: 1" in refused["hooks:hooked"]
    assert {choice["kernel"] for choice in recorded["choices"]} == {"hooks:pruned"}
    project.build()
    # Four tuners with two keys and two configurations each go on choosing; the one that is served does not.
    assert "benchmarked 16" in project.serve("hooks.py")


INSIDE = """
import sys
import device, train
import planfreeze
from device import Pointer

kernel = train.tuned
train.fill[(1,)](Pointer(), 37, 0.5, BLOCK=64, CHANGE=train.scaling.double, num_warps=2)
with planfreeze.recording("inside.json"):
    train.fill[(1,)](Pointer(), 37, 0.5, BLOCK=64, CHANGE=train.scaling.double, num_warps=2)
    kernel[(1,)](Pointer(), 100)
    train.fill.warmup(Pointer(), 16, 0.5, BLOCK=256, CHANGE=train.scaling.double, grid=(1,))
train.fill[(1,)](Pointer(), 37, 0.5, BLOCK=32, CHANGE=train.scaling.double)
with planfreeze.recording("later.json"):
    kernel[(1,)](Pointer(), 100)
"""


def test_a_block_of_a_process_is_recorded_with_what_was_compiled_before_it(project):
    (project.folder / "inside.py").write_text(INSIDE)
    environment = project.environment()
    subprocess.run([project.python, "inside.py"], cwd=project.folder, env=environment, check=True)
    inside = json.loads((project.folder / "inside.json").read_text())
    launches = [(p["payload"]["kernel"], p["launches"]) for p in inside["programs"]]
    assert launches == [("train:fill", 1), ("train:tuned", 1)]
    assert dict(inside["programs"][0]["payload"]["options"]) == {"num_warps": 2}
    assert inside["unused"] == 3  # two configurations, and what was only warmed up
    later = json.loads((project.folder / "later.json").read_text())
    assert [p["payload"]["kernel"] for p in later["programs"]] == ["train:tuned"]
    assert later["choices"] == inside["choices"] != []


def test_a_recording_inside_another_has_the_same_choices(project):
    script = "import planfreeze, train\nwith planfreeze.recording('inner.json'):\n    train.main()"
    (project.folder / "nested.py").write_text(script)
    outer = project.record("nested.py")
    inner = json.loads((project.folder / "inner.json").read_text())
    assert inner["programs"] == outer["programs"]
    assert inner["choices"] == outer["choices"] != []


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        ("import train; train.main(); import sys; sys.exit(7)", 7, "ended with status 7"),
        ("import train; train.main(); import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "status 137"),
        ("import train", 3, "launched no Triton or CuTe program"),
    ],
)
def test_the_status_of_the_command_is_passed_on(project, script, status, message):
    (project.folder / "ending.py").write_text(script)
    command = [project.python, "-m", "planfreeze", "record", "-o", "run.json", "--", project.python, "ending.py"]
    done = subprocess.run(command, cwd=project.folder, env=project.environment(), capture_output=True, text=True)
    assert done.returncode == status
    assert message in done.stderr
    recorded = json.loads((project.folder / "run.json").read_text())
    assert len(recorded["programs"]) == (0 if status == 3 else 4)


@pytest.mark.parametrize(("command", "status"), [("nothing-of-that-name", 127), ("/tmp", 126)])
def test_a_command_that_cannot_be_started_is_told_as_shells_do(project, command, status):
    project.planfreeze("record", "-o", "run.json", "--", command, status=status)


@pytest.mark.parametrize("output", ["nowhere/run.json", "home"])
def test_a_place_that_cannot_be_written_is_told_before_the_command_starts(project, output):
    project.planfreeze("record", "-o", output, "--", "touch", "started", status=6)
    assert not (project.folder / "started").exists()
    with pytest.raises(RecordingUnwritable), recording(project.folder / output):
        pytest.fail("the block ran")


def test_a_sitecustomize_of_the_user_still_runs(project):
    (project.folder / "sitecustomize.py").write_text("print('the user came first')")
    recorded = subprocess.run(
        [project.python, "-m", "planfreeze", "record", "-o", "run.json", "--", project.python, "train.py"],
        cwd=project.folder,
        env=project.environment(PYTHONPATH=f"{project.folder}:{project.environment()['PYTHONPATH']}"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert recorded.stdout.count("the user came first") == 2  # the command line's process and the script's


OVERRIDDEN = """
import train
from device import Pointer
if __name__ == "__main__":
    train.fill[(1,)](Pointer(), 37, 0.5, BLOCK=64, CHANGE=train.scaling.double, ir_override="own.text")
"""


def test_ir_in_place_of_a_kernels_own_is_refused_when_recorded_and_when_built(project):
    (project.folder / "overridden.py").write_text(OVERRIDDEN)
    recorded = project.record("overridden.py", status=1)
    assert not recorded["programs"] and "ir_override" in recorded["refused"][0]["reason"]
    edited = project.record()
    edited["programs"][0]["payload"]["options"] = [["ir_override", "own.ttir"]]
    (project.folder / "run.json").write_text(json.dumps(edited))
    output = subprocess.run(
        [project.python, "-m", "planfreeze", "build", "--plan", "run.json", "--store", "store"],
        cwd=project.folder,
        env=project.environment(),
        capture_output=True,
        text=True,
    )
    assert output.returncode == 1
    assert "its option ir_override names files" in output.stdout + output.stderr


def test_settings_of_code_generation_are_recorded_and_refused_by_a_build(project):
    recorded = project.record(TRITON_DEFAULT_FP_FUSION="0", TRITON_DISABLE_LINE_INFO="0")
    assert recorded["environment"] == {"TRITON_DEFAULT_FP_FUSION": "0", "TRITON_DISABLE_LINE_INFO": "0"}
    output = subprocess.run(
        [project.python, "-m", "planfreeze", "build", "--plan", "run.json", "--store", "store"],
        cwd=project.folder,
        env=project.environment(),
        capture_output=True,
        text=True,
    )
    assert output.returncode == 2
    assert "recorded with TRITON_DEFAULT_FP_FUSION=0" in output.stderr

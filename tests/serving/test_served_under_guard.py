"""A served process under a raising guard: no attempt where all is planned, one before lowering where it is not."""

import json
import subprocess

import pytest

from planfreeze.guard import child_environment, read_log
from planfreeze.serving import open_service, serving_environment


@pytest.fixture
def guard(tmp_path):
    """Run a script of a project served and under a guard; return its status, its errors, and the attempts."""

    def run(project, mode="raise", *, plan="run-sm_90a", script="train.py", **variables):
        log = tmp_path / "attempts"
        log.unlink(missing_ok=True)
        environment = child_environment(project.environment(**variables), mode, log)
        pinned = open_service(plan, project.store).reference
        environment = serving_environment(environment, store=project.store, plan=pinned)
        command = [project.python, script]
        done = subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=300)
        return done, [entry.attempt for entry in read_log(log)]

    return run


def test_a_planned_run_makes_no_attempt(served_everywhere, guard):
    done, attempts = guard(served_everywhere)
    assert (done.returncode, attempts) == (0, []), done.stderr
    assert "launched 9 benchmarked 0" in done.stdout


def test_an_unplanned_program_is_refused_before_lowering_with_the_nearest_one(served_everywhere, guard):
    done, attempts = guard(served_everywhere, WARPS="8")
    assert done.returncode == 1
    assert [(attempt.road, attempt.kernel) for attempt in attempts] == [("triton", "__main__.fill")]
    last = done.stderr.rstrip().splitlines()[-1]
    assert "CompilationForbidden" in last and "train.py:" in last
    assert "run-sm_90a holds fill otherwise; planned -> asked: num_warps: 4 -> 8. Run: planfreeze record" in last
    assert "RuntimeWarning" not in done.stderr


def test_an_unplanned_program_is_counted_where_the_guard_counts(built_project, guard):
    done, attempts = guard(built_project, "count", WARPS="8")
    assert done.returncode == 0 and "launched 9" in done.stdout
    assert [attempt.road for attempt in attempts] == ["triton"]
    assert "num_warps: 4 -> 8" in done.stderr


def test_a_program_removed_from_the_plan_is_refused_by_name(built_project, copy_of, guard):
    changed = copy_of(built_project)
    recording = json.loads((changed.folder / "run.json").read_text())
    recording["programs"] = [p for p in recording["programs"] if p["payload"]["kernel"] != "train:tuned"]
    (changed.folder / "less.json").write_text(json.dumps(recording))
    changed.build(recording="less.json")
    done, attempts = guard(changed, plan="less-sm_90a")
    assert done.returncode == 1
    assert [(attempt.road, attempt.kernel) for attempt in attempts] == [("triton", "__main__.tuned")]
    assert "holds no program of the kernel tuned" in done.stderr


def test_a_tuning_key_without_a_choice_is_refused_before_the_first_trial(built_project, copy_of, guard):
    changed = copy_of(built_project)
    recording = json.loads((changed.folder / "run.json").read_text())
    recording["choices"] = [choice for choice in recording["choices"] if choice["key"][0] != 101]
    (changed.folder / "less.json").write_text(json.dumps(recording))
    changed.build(recording="less.json")
    done, attempts = guard(changed, plan="less-sm_90a")
    assert done.returncode == 1
    assert [attempt.road for attempt in attempts] == ["triton-autotune"]
    assert "holds no choice of train:tuned for this tuning key; it has those for (100, 'fp32')" in done.stderr

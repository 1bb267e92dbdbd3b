"""``planfreeze run`` with a plan: served, under the guard."""

import subprocess


def test_a_served_command_reaches_no_compiler_and_an_unplanned_one_ends_with_5(served_everywhere):
    project = served_everywhere
    command = [project.python, "-m", "planfreeze", "run", "--store", str(project.store), "--plan", "run-sm_90a", "--"]
    command += [project.python, "train.py"]

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        environment = project.environment(**variables)
        return subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=300)

    planned = run()
    assert planned.returncode == 0, planned.stderr
    assert "launched 9 benchmarked 0" in planned.stdout
    unplanned = run(WARPS="8")
    assert unplanned.returncode == 5
    assert "holds fill otherwise; planned -> asked: num_warps: 4 -> 8" in unplanned.stderr


def test_a_plan_that_is_not_there_stops_the_run_before_the_command(built_project):
    command = ("run", "--store", str(built_project.store), "--plan", "other-sm_90a", "--", "true")
    built_project.planfreeze(*command, status=3)

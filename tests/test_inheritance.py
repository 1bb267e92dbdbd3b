"""What the processes of a served or recorded command load at their start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planfreeze.inheritance import RECORDED_MODULES, SERVED_MODULES
from planfreeze.recorders.processes import RECORDERS
from planfreeze.serving.environment import STARTUP_FOLDER, recording_environment, serving_environment
from planfreeze.serving.processes import SERVERS


def test_what_is_waited_for_is_what_servers_and_recorders_hook():
    assert {name for server in SERVERS for name in server.modules} == SERVED_MODULES
    assert {name for recorder in RECORDERS for name in recorder.modules} == RECORDED_MODULES


LOADED = "import json, sys; print(json.dumps([name for name in sys.modules if name.startswith('planfreeze')]))"


@pytest.mark.parametrize("kind", ["served", "recorded"])
def test_a_process_without_a_compiler_loads_little_and_leaves_nothing(interpreter, tmp_path, kind):
    environment = interpreter.environment()
    if kind == "served":
        environment = serving_environment(environment, store=tmp_path / "none", plan="none-sm_90a")
    else:
        environment = recording_environment(environment, tmp_path)
    done = subprocess.run([sys.executable, "-c", LOADED], env=environment, capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert "planfreeze.inheritance" in loaded
    heavy = ("planfreeze.serving", "planfreeze.recorders", "planfreeze.plans", "planfreeze.cache")
    assert [name for name in loaded if name.startswith(heavy)] == []
    assert list(tmp_path.iterdir()) == [interpreter.home] or list(tmp_path.iterdir()) == []


def test_an_interpreter_without_planfreeze_starts_as_ever(tmp_path):
    environment = {"PYTHONPATH": STARTUP_FOLDER, "PLANFREEZE_SERVE": "plan", "HOME": str(tmp_path)}
    command = [sys.executable, "-S", "-c", "import sitecustomize, sys; print(sitecustomize in sys.modules.values())"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: No module named 'sitecustomize'" in done.stderr


def test_variables_travel_and_the_search_path_keeps_its_entries():
    environ = {"PYTHONPATH": os.pathsep.join(("/one", STARTUP_FOLDER, "", "/two")), "TRITON_ALWAYS_COMPILE": "1"}
    made = recording_environment(environ, Path("parts"))
    assert made["PYTHONPATH"].split(os.pathsep) == [STARTUP_FOLDER, "/one", "", "/two"]
    assert recording_environment({}, Path("parts"))["PYTHONPATH"] == STARTUP_FOLDER

"""The stress run, in its short form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(("kills", "collectors"), [(30, 0), (25, 2)])
def test_a_store_survives_kills_stops_and_jumping_clocks(kills, collectors):
    options = {"--kills": kills, "--collectors": collectors, "--seconds": 25, "--seed": os.getpid()}
    command = [sys.executable, "tools/stress_store.py", *(str(part) for pair in options.items() for part in pair)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert figures["kills"] >= 20
    assert figures["programs"] > 20
    assert figures["plans opened"] > 20
    assert figures["losses"] == figures["left locked"] == figures["failures"] == 0
    assert bool(figures["collections"]) == bool(collectors)
    # What a collector takes from a plan that has no name yet is compiled again.
    assert collectors or figures["compiled twice"] == 0

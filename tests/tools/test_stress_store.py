"""The stress run, in its short form."""

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_a_store_survives_kills_stops_and_jumping_clocks():
    command = [sys.executable, "tools/stress_store.py", "--kills", "60", "--seconds", "25", "--seed", str(os.getpid())]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert figures["kills"] >= 20
    assert figures["programs"] > 20
    assert figures["plans opened"] > 20
    assert figures["losses"] == figures["left locked"] == figures["compiled twice"] == 0

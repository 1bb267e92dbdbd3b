"""Fresh processes of tools/bench_launch.py, without a device."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.append(str(TOOLS))
bench_launch = import_module("bench_launch")

ROAD = """
import json, pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import imported
json.dump({"ready_s": 2.0, "done_s": 2.5}, sys.stdout)
"""


def test_a_start_loads_bytecode_and_leaves_it_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    road = tmp_path / "road.py"
    road.write_text(ROAD)
    (tmp_path / "imported.py").touch()
    monkeypatch.setattr(bench_launch, "STARTS_SCRIPT", road)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert bench_launch.start("planfreeze", bytecode=tmp_path / "bytecode").beyond_ms == 500
    assert [found.name.partition(".")[0] for found in (tmp_path / "bytecode").rglob("imported.*.pyc")] == ["imported"]

"""The bare command: what it says is there, and commands to go on with that are the right ones."""

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planfreeze.cache.store import Store
from planfreeze.cli import app


def greet() -> tuple[int, str]:
    """Call the bare command; return its status and all it printed."""
    done = CliRunner().invoke(app, [], prog_name="planfreeze")
    return done.exit_code, done.output


def steps(shown: str) -> list[str]:
    """The commands that it says to type."""
    lines = shown.split("What to do next:\n")[1].split("\n\n")[0].splitlines()
    assert all(purpose.startswith("  # ") for purpose in lines[::2])
    return [line.strip() for line in lines[1::2]]


def test_without_a_store_the_next_thing_is_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANFREEZE_STORE", str(tmp_path / "store"))
    status, shown = greet()
    assert status == 0 and f"There is no store at {tmp_path}/store yet" in shown
    assert "planfreeze build --model ds41" in steps(shown)
    assert not any("pip install" in step for step in steps(shown))
    assert not (tmp_path / "store").exists()


def test_without_compilers_they_are_installed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANFREEZE_STORE", str(tmp_path / "store"))
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert steps(greet()[1])[0] == "pip install 'planfreeze[build]'"


def test_a_store_without_a_plan_is_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store.open(tmp_path / "store", writable=True)
    monkeypatch.setenv("PLANFREEZE_STORE", str(tmp_path / "store"))
    status, shown = greet()
    assert status == 0 and "holds no frozen plan yet" in shown
    assert "planfreeze build --model ds41" in steps(shown)


def test_a_plan_that_is_there_is_proven_and_served_next(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANFREEZE_STORE", str(built.store.path))
    status, shown = greet()
    pinned = f"toys-tp1-sm_90a@sha256:{built.store.get_ref('toys-tp1-sm_90a')}"
    assert status == 0 and f"\n  {pinned}\n" in shown
    found = steps(shown)
    assert "planfreeze replay --plan toys-tp1-sm_90a" in found
    assert f"PLANFREEZE_PLAN={pinned} planfreeze run -- python serve.py" in found


def test_a_plan_of_a_recording_is_served_to_the_program(
    built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = built.copy(tmp_path / "store")
    root = store.get_ref("toys-tp1-sm_90a")
    (store.path / "refs" / "toys-tp1-sm_90a").rename(store.path / "refs" / "kernels-sm_90a")
    monkeypatch.setenv("PLANFREEZE_STORE", str(store.path))
    assert store.get_ref("kernels-sm_90a") == root
    assert "planfreeze run --plan kernels-sm_90a -- python serve.py" in steps(greet()[1])


def test_a_store_that_cannot_be_read_is_an_error(built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = built.copy(tmp_path / "store")
    (store.path / "format").chmod(0o644)
    (store.path / "format").write_text((store.path / "format").read_text().replace("1", "999"))
    monkeypatch.setenv("PLANFREEZE_STORE", str(store.path))
    status, shown = greet()
    assert status == 4 and "999" in shown

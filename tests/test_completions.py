"""Shell completion: the scripts that shells load, and what they are offered through the environment."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEADS = {"bash": "complete -o default -F", "zsh": "#compdef planfreeze", "fish": "complete --command planfreeze"}

INSTALLED = {
    "bash": ".bash_completions/planfreeze.sh",
    "zsh": ".zfunc/_planfreeze",
    "fish": ".config/fish/completions/planfreeze.fish",
}


def ask(line: str, shell: str = "bash", **environment: str) -> list[str]:
    """What a shell is offered behind a line; a line that ends in a space asks for a new word."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": line}
    done = complete(f"complete_{shell}", **asked, _TYPER_COMPLETE_FISH_ACTION="get-args", **environment)
    assert done.stderr == ""
    return done.stdout.split()


def complete(instruction: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Start planfreeze as a completion script does."""
    return subprocess.run(
        [sys.executable, "-m", "planfreeze"],
        env={**os.environ, "_PLANFREEZE_COMPLETE": instruction, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("shell", HEADS)
def test_a_shell_gets_a_script_that_calls_planfreeze(shell: str) -> None:
    done = complete(f"source_{shell}")
    assert done.returncode == 0 and HEADS[shell] in done.stdout
    assert f"_PLANFREEZE_COMPLETE=complete_{shell}" in done.stdout


@pytest.mark.parametrize(("shell", "place"), INSTALLED.items())
def test_a_shell_is_set_up_in_its_usual_place(tmp_path: Path, shell: str, place: str) -> None:
    command = [sys.executable, "-m", "planfreeze", "--install-completion", shell]
    # Without this variable of typer's the shell is the one that started the command, here none.
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"{shell} completion installed" in done.stdout
    assert f"_PLANFREEZE_COMPLETE=complete_{shell}" in (tmp_path / place).read_text()


def test_bash_completes_by_the_script_and_leaves_paths_to_itself(tmp_path: Path) -> None:
    command = tmp_path / "planfreeze"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m planfreeze "$@"\n')
    command.chmod(0o755)
    script = f"{complete('source_bash').stdout}\n" + (
        "ask() { COMP_WORDS=($1 $2 $3 $4); COMP_CWORD=3; _planfreeze_completion planfreeze; echo ${COMPREPLY[@]}; }\n"
        "ask planfreeze plan --model d; ask planfreeze ls --store /tm"
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["ds41", ""], done.stderr


def test_each_shell_is_offered_the_same_in_its_own_form() -> None:
    assert ask("planfreeze build --arch sm_9", "bash") == ["sm_90a"]
    assert ask("planfreeze build --arch sm_9", "fish") == ["sm_90a"]
    assert '"sm_90a"' in ask("planfreeze build --arch sm_9", "zsh")[-1]


def test_models_families_and_modes_are_offered(tmp_path: Path) -> None:
    installed = tmp_path / "mine-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    points = "[planfreeze.families]\nmyadd = mine:add\n[planfreeze.models]\nmymodel = mine:model\n"
    (installed / "entry_points.txt").write_text(points)
    path = {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    assert ask("planfreeze plan --model ", **path) == ["ds41", "kimi_k3", "mymodel"]
    assert ask("planfreeze build --family ", **path) == ["myadd"]
    for command in ("explain", "show"):
        assert {"myadd", "topk_sum"} <= set(ask(f"planfreeze {command} ", **path))
    assert ask("planfreeze run --mode w") == ["warn"]


@pytest.mark.parametrize(
    "line",
    [
        *("replay --store PLACE --plan ", "verify --store PLACE --plan t", "pack --store PLACE --plan "),
        *("show --store PLACE --plan ", "diff --store PLACE ", "report --store PLACE --plan "),
        *("run --store PLACE --plan ", "doctor --store PLACE --plan ", "plan diff --store PLACE "),
    ],
)
def test_plans_of_the_store_that_is_named_are_offered(built: Any, line: str) -> None:
    assert ask(f"planfreeze {line}".replace("PLACE", str(built.store.path))) == ["toys-tp1-sm_90a"]


def test_plans_come_from_the_usual_store_and_none_from_one_that_is_not_there(built: Any, tmp_path: Path) -> None:
    assert ask("planfreeze replay --plan ", PLANFREEZE_STORE=str(built.store.path)) == ["toys-tp1-sm_90a"]
    assert ask("planfreeze replay --plan ", PLANFREEZE_STORE=str(tmp_path / "nowhere")) == []
    assert ask("planfreeze replay --plan ", PLANFREEZE_TRUST_STORE="perhaps") == []

"""The start-up hook of a guarded child: it arms the guard, hides nobody's own hook, and imports little."""

import ast
import os
import subprocess
import sys
from pathlib import Path

from planfreeze.guard import child_environment
from planfreeze.search_path import STARTUP_FOLDER


def run_python(program: str, text: str, folder: Path, *search_path: str, **variables: str) -> tuple[int, str, str]:
    """Run text in an interpreter with an environment of its own."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": os.pathsep.join(search_path)}
    environ = child_environment(environ | variables, "count")
    done = subprocess.run([program, "-c", text], env=environ, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


SHOW = (
    "import sys, os; print('planfreeze.guard' in sys.modules, os.environ.get('SEEN'), 'sitecustomize' in sys.modules)"
)


def test_a_hidden_sitecustomize_runs_as_if_it_were_the_only_one(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text(
        "import os, sys\n"
        "os.environ['SEEN'] = f'{__name__} {__file__}'\n"
        "assert sys.modules['sitecustomize'].__dict__ is globals()\n"
        "assert not [entry for entry in sys.path if entry.endswith('planfreeze/startup')]\n"
    )
    status, said, errors = run_python(sys.executable, SHOW, tmp_path, str(theirs))
    assert (status, errors) == (0, "")
    assert said == f"True sitecustomize {theirs / 'sitecustomize.py'} True\n"


def test_a_hidden_sitecustomize_that_fails_is_reported_as_ever_and_the_guard_stands(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("1 / 0\n")
    status, said, errors = run_python(sys.executable, SHOW, tmp_path, str(tmp_path))
    assert (status, said) == (0, "True None False\n")
    assert "Error in sitecustomize" in errors and "division by zero" in errors


def test_without_another_sitecustomize_there_is_none(tmp_path: Path) -> None:
    bare = subprocess.run(
        [sys.executable, "-E", "-c", SHOW], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    status, said, errors = run_python(sys.executable, SHOW, tmp_path)
    assert (status, said, errors) == (0, f"True None {bare}\n", "")


def test_usercustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "usercustomize.py").write_text("import os\nos.environ['SEEN'] = __name__\n")
    # Within a virtual environment the user's site is off, and so is this.
    (tmp_path / "enable.pth").write_text("import usercustomize\n")
    script = f"import site; site.addsitedir({str(tmp_path)!r})\n" + SHOW
    status, said, errors = run_python(sys.executable, script, tmp_path, str(tmp_path))
    assert (status, errors) == (0, "") and said.startswith("True usercustomize")


def test_an_interpreter_that_planfreeze_is_not_installed_for_is_guarded_by_the_parents(tmp_path: Path) -> None:
    root = str(Path(STARTUP_FOLDER).parents[1])
    script = f"import planfreeze.guard as guard, sys; print(guard.__file__, {root!r} in sys.path)"
    status, said, errors = run_python(sys._base_executable, script + "\n" + SHOW, tmp_path)
    assert (status, errors) == (0, "")
    assert said.startswith(f"{Path(STARTUP_FOLDER).parent / 'guard' / '__init__.py'} False\nTrue")


def test_an_interpreter_that_cannot_import_planfreeze_starts_normally_and_silently(tmp_path: Path) -> None:
    lonely = tmp_path / "a" / "b" / "c"
    lonely.mkdir(parents=True)
    (lonely / "sitecustomize.py").write_text(Path(STARTUP_FOLDER, "sitecustomize.py").read_text())
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(lonely), "PLANFREEZE_GUARD": "raise"}
    bare = subprocess.run([sys._base_executable, "-E", "-c", SHOW], capture_output=True, text=True, check=True).stdout
    done = subprocess.run(
        [sys._base_executable, "-c", SHOW], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (bare, "")


def test_the_start_up_hook_is_text_that_every_python_parses() -> None:
    text = Path(STARTUP_FOLDER, "sitecustomize.py").read_text()
    assert ast.parse(text, feature_version=(3, 4)) and text.isascii()


def test_a_start_up_hook_without_a_mode_arms_nothing(tmp_path: Path) -> None:
    text = "from planfreeze.guard.watch import watch; print(watch.armed)"
    for variables in ({}, {"PLANFREEZE_GUARD": ""}, {"PLANFREEZE_GUARD": "off"}):
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": STARTUP_FOLDER} | variables
        done = subprocess.run([sys.executable, "-c", text], env=environ, capture_output=True, text=True, check=True)
        assert done.stdout == "()\n"


def test_a_mode_that_is_none_ends_the_child_instead_of_leaving_it_unguarded(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": STARTUP_FOLDER, "PLANFREEZE_GUARD": "loud"}
    done = subprocess.run(
        [sys.executable, "-c", "print('ran')"], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and done.stdout == ""
    assert "PLANFREEZE_GUARD='loud' is not raise, warn, count or off" in done.stderr


def test_the_start_up_hook_imports_no_compiler_and_little_else(tmp_path: Path) -> None:
    text = "import sys; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    said = run_python(sys.executable, text, tmp_path)[1]
    heavy = ("triton", "cutlass", "torch", "cuda", "numpy", "msgspec", "asyncio", "typer", "rich", "platformdirs")
    assert "planfreeze" in said and not [name for name in heavy if f"'{name}'" in said]

"""The oldest Triton that is supported, for tests that run under it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .shared import make_once, shared_folder

OLDEST_TRITON = "3.6.0"


@pytest.fixture(scope="session")
def oldest_triton(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, tuple[str, ...]]:
    """A Python with the oldest Triton that is supported, and the folders in front of its search path.

    The one that PLANFREEZE_TEST_TRITON36 names, else this one with a wheel in front, which the workers of a run share.
    """
    named = os.environ.get("PLANFREEZE_TEST_TRITON36")
    if named:
        return named, ()
    folder = make_once(shared_folder(tmp_path_factory) / "triton36", install_oldest_triton)
    return sys.executable, (str(folder),)


def install_oldest_triton(folder: Path) -> None:
    """Install it into a folder."""
    # Constraints of the environment pin the other version.
    environ = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
    done = subprocess.run(
        [*install, f"triton=={OLDEST_TRITON}"], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.fail(
            f"Triton {OLDEST_TRITON} is part of what is promised and cannot be installed here. Set "
            f"PLANFREEZE_TEST_TRITON36 to a Python that has it.\n{done.stderr}"
        )

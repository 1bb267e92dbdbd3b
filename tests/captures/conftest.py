"""Packages of modules whose kernel is checked for what it captures."""

import importlib
import itertools
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planfreeze.compilers.assignments import KeyedText
from planfreeze.compilers.captures import check_captures
from planfreeze.sources import read_sources

numbers = itertools.count()


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write a package of modules, import its ``kernels`` and check what ``kernel`` there captures."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(text: str, *, before: Callable[[Any], None] = lambda module: None, roots: Any = (), **modules: str) -> None:
        package = f"captured{next(numbers)}"
        (tmp_path / package).mkdir()
        for name, content in {"__init__": "", "kernels": text, **modules}.items():
            path = tmp_path / package / f"{name}.py"
            path.write_text(textwrap.dedent(content).replace("PACKAGE", package))
        module = importlib.import_module(f"{package}.kernels")
        before(module)
        names = (f"{package}.kernels", *(root.replace("PACKAGE", package) for root in roots))
        check_captures("the kernel", (module.kernel,), KeyedText(read_sources(names)))

    return run

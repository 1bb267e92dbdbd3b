"""Every block of code of the documents runs as it stands, and none is passed over."""

import ast
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MARKS = {
    "sh": {"run", "gpu", "by"},
    "python": {"run", "gpu", "file", "by"},
    "toml": {"file", "by"},
    "json": {"file", "by"},
    "yaml": {"file", "by"},
    "dockerfile": {"by"},
    "text": {"output", "by"},
}
OPTIONS = {"file", "by", "status", "when"}
READERS: dict[str, Callable[[str], object]] = {
    "python": ast.parse,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}


def test_every_block_has_a_language_and_a_mark_that_is_known(every_block) -> None:
    assert len(every_block) > 40
    for block in every_block:
        assert block.mark in MARKS.get(block.language, ()), f"{block}: {block.language!r} with mark {block.mark!r}"
        assert {name for name, _ in block.options} <= OPTIONS, f"{block}: {block.options}"


def test_every_block_is_text_of_its_language(every_block) -> None:
    for block in every_block:
        if block.language in READERS:
            try:
                READERS[block.language](block.text)
            except Exception as error:
                pytest.fail(f"{block}: {error}")


def test_a_block_that_another_test_runs_names_that_test_and_it_names_the_same_command(every_block) -> None:
    for block in every_block:
        if block.mark == "by":
            path, _, function = block.option("by").partition("::")
            text = (ROOT / path).read_text()
            assert re.search(rf"^def {function}\(", text, re.MULTILINE), f"{block}: no {function} in {path}"


def test_a_page_does_as_it_says_in_the_folder_where_the_tutorial_ended(page: str, request, every_block) -> None:
    if page == "tutorial.md":
        request.getfixturevalue("tutorial")  # runs it
        return
    bench = request.getfixturevalue("bench")
    bench.follow([block for block in every_block if block.page == page])

"""Every block of code of the documents runs as it stands, and none is passed over."""

import ast
import itertools
import re
import shlex
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
import typer.main
import yaml

from planfreeze.cli import app

ROOT = Path(__file__).resolve().parents[2]
MARKS = {
    "sh": {"run", "gpu", "by", "needs"},
    "python": {"run", "gpu", "file", "by"},
    "toml": {"file", "by"},
    "json": {"file", "by"},
    "yaml": {"file", "by"},
    "dockerfile": {"by"},
    "text": {"output", "by"},
}
OPTIONS = {"file", "by", "needs", "status"}
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
            except (SyntaxError, ValueError, yaml.YAMLError) as error:
                pytest.fail(f"{block}: {error}")


def test_a_block_that_another_test_runs_names_that_test_and_imports_what_is_there(every_block) -> None:
    for block in every_block:
        if block.mark == "by":
            path, _, function = block.option("by").partition("::")
            assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), f"{block}: no {function}"
            if block.language == "python":
                imports = [node for node in ast.parse(block.text).body if isinstance(node, ast.Import | ast.ImportFrom)]
                exec(compile(ast.Module(imports, []), str(block), "exec"), {})


def test_every_command_of_planfreeze_is_one_that_its_command_line_takes(every_block, readme) -> None:
    group = typer.main.get_command(app)
    blocks = [*every_block, *readme]
    commands = [
        (block, text[found.start(1) :])
        for block in blocks
        for text in [block.text.replace("\\\n", " ")]
        for found in re.finditer(r"^(?:\w+=\S+ )*(planfreeze )", text, re.MULTILINE)
    ]
    assert len(commands) > 40
    for block, command in commands:
        lexer = shlex.shlex(command, posix=True, punctuation_chars="|&>;\n")
        lexer.whitespace, lexer.whitespace_split = " \t", True
        words = list(itertools.takewhile(lambda word: not set(word) & set("|&>;\n"), lexer))[1:]
        if not words or words[0].startswith("-"):
            continue  # what planfreeze itself does, and no command of it
        try:
            name, found, rest = group.resolve_command(typer.Context(group), words)
            found.make_context(name, rest)  # reads options and arguments, and runs nothing
        except typer.Exit:  # of --help
            pass
        except Exception as error:
            raise AssertionError(f"{block}: {words}: {error}") from error


def test_a_page_says_so_where_nothing_here_can_run_a_block(every_block) -> None:
    for block in every_block:
        if block.mark == "needs":
            assert find_spec(block.option("needs")) is None, f"{block}: it can be run here, so run it"
            assert "was run with what is on this page" in (ROOT / "docs" / block.page).read_text()


def test_a_page_does_as_it_says_in_the_folder_where_the_tutorial_ended(page: str, request, every_block) -> None:
    if page == "tutorial.md":
        request.getfixturevalue("tutorial")  # runs it
        return
    bench = request.getfixturevalue("bench")
    bench.follow([block for block in every_block if block.page == page])

"""Write the pages of the reference that follow from the code: python tools/reference_pages.py FOLDER.

Commands come from the command line itself, settings from the docstrings of ``planfreeze.settings``, errors from
``planfreeze.errors``, roads from the registry of the guard. docs/conf.py calls it; the pages are never committed.
"""

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from planfreeze import errors, settings
from planfreeze.cli import app
from planfreeze.guard.watch import ROADS

__all__ = ["PAGES", "write_pages"]

EXAMPLES = re.compile(r"^Examples:\n((?: +\S.*\n?)+)", re.MULTILINE)
SETTING = re.compile(r"^(\w+) : .+\n +``(PLANFREEZE_\w+)``: ((?:.+\n?(?!\w+ : ))+)", re.MULTILINE)


def write_pages(folder: Path) -> None:
    """Write every page into a folder; a page that would not change is left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in PAGES.items():
        page, text = folder / f"{name}.md", write()
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def commands_page() -> str:
    """Return the page of the command line."""
    command = typer.main.get_command(app)
    written = get_docs_for_click(obj=command, ctx=typer.Context(command), name="planfreeze", title="Commands")
    for name, summary in summaries(command):  # typer cuts them off
        written = re.sub(rf"^\* `{name}`: .*\.\.\.$", f"* `{name}`: {summary}", written, flags=re.MULTILINE)
    return EXAMPLES.sub(lambda found: f"**Examples**:\n\n```sh\n{unindent(found[1])}```\n", written)


def summaries(group: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the first sentence of every command of a group and of the groups in it."""
    for name, command in group.commands.items():
        yield name, " ".join((command.help or "").partition("\n\n")[0].split())
        if hasattr(command, "commands"):
            yield from summaries(command)


def unindent(text: str) -> str:
    """Return lines without what they begin with."""
    return "".join(f"{line.strip()}\n" for line in text.splitlines())


def settings_page() -> str:
    """Return the page of environment variables, once each."""
    rows: dict[str, tuple[str, str, str]] = {}
    for found in (value for value in vars(settings).values() if hasattr(value, "_field_defaults")):
        defaults = found._field_defaults
        for name, variable, meaning in SETTING.findall(inspect.getdoc(found) or ""):
            rows.setdefault(variable, (f"`{variable}`", default_of(defaults.get(name)), plain(meaning)))
    return page(
        "Settings",
        "Every environment variable that planfreeze reads. A value that is not of its type is an error "
        "(`InvalidSetting`), never the default.",
        table(("variable", "default", "meaning"), (rows[name] for name in sorted(rows))),
    )


def default_of(default: object) -> str:
    """Return how the default of a setting is spelled in the environment."""
    if default in (None, (), frozenset()):
        return "not set"
    return f"`{int(default)}`" if isinstance(default, int) else f"`{default}`"


def errors_page() -> str:
    """Return the page of errors with the status that a command ends with."""
    parts = [
        "Each cause has a class. `planfreeze` ends with its status and prints its message: what was found, why that is "
        "refused, what to type next. The values are attributes of the error.",
    ]
    for found in pkgutil.iter_modules(errors.__path__):
        module = importlib.import_module(f"planfreeze.errors.{found.name}")
        classes = [getattr(module, name) for name in module.__all__ if isinstance(getattr(module, name), type)]
        rows = [(f"`{kind.__name__}`", str(kind.exit_code), plain(inspect.getdoc(kind) or "")) for kind in classes]
        heading = plain(inspect.getdoc(module) or "").rstrip(".")
        parts += [f"## {heading}", table(("error", "status", "when"), rows)]
    return page("Errors", *parts)


def roads_page() -> str:
    """Return the page of roads to a compiler."""
    rows = [(f"[{road.name}](#{road.name})", f"`{road.package}`", str(len(road.attempts))) for road in ROADS]
    parts = [
        "The ways to a compiler that a guard watches, in the order of its registry. "
        "[The guard](../guard.md) says at which point each raises, and "
        "[what no guard sees](../guard.md#what-it-cannot-see).",
        table(("road", "there with", "deliberate attempts of a proof"), rows),
    ]
    for road in ROADS:
        watched = ", ".join(f"`{name}`" for name in road.modules)
        parts += [f"## {road.name}", code_marks(inspect.getdoc(road.file) or ""), f"Watched modules: {watched}."]
    return page("Roads to a compiler", *parts)


def page(title: str, *parts: str) -> str:
    """Return a page of parts."""
    return "\n\n".join((f"# {title}", *parts)) + "\n"


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ("---",) * len(heads), *rows))


def plain(text: str) -> str:
    """Return the first paragraph of a docstring on one line, as a table holds it."""
    return code_marks(" ".join(text.partition("\n\n")[0].split())).replace("|", "\\|")


def code_marks(text: str) -> str:
    """Return the text of a docstring with the marks that Markdown has for code."""
    return re.sub(r":\w+:`(~?)([^`]+)`", r"`\2`", text).replace("``", "`")


PAGES = {"commands": commands_page, "settings": settings_page, "errors": errors_page, "roads": roads_page}


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))

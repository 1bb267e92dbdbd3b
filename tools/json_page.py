"""Write docs/reference/json.md, what ``--json`` prints, from the JSON Schemas beside it."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["main", "page_of"]

SCHEMAS = Path(__file__).resolve().parents[1] / "docs" / "reference" / "schemas"
INTRODUCTION = """# What `--json` prints

With `--json` a command prints one JSON object on standard output and nothing else there; `planfreeze run` prints it as
one line behind what the command itself printed. Progress, notes and errors go to standard error, so a pipe gets the
object alone:

```sh by=tests/test_manners.py::test_json_is_as_its_schema_says_and_quiet_leaves_only_errors
planfreeze plan --model ds41 --json | jq '.plans[].programs | length'
```

- The object comes with status 0, and also where the answer is no: a replay that finds programs missing prints them and
  exits with 3. With an error before there is an answer, such as wrong usage, nothing is printed on standard output.
- Each key below is always there. What is not known is `null` or empty, as its line says.
- Later versions may add keys. A key keeps its meaning and type; where that cannot be, the changelog says so.
- Each object has a JSON Schema, linked below. This page is made from them (`tools/json_page.py`), and tests hold what
  the commands print against them, key by key.

In the tables `plans[].name` is the key `name` of every item of the list `plans`, and `guard.*` every key of `guard`.
"""


def page_of(schemas: Path) -> str:
    """Return the text of the page.

    Parameters
    ----------
    schemas : Path
        Folder with a schema for each command, named after it.
    """
    paths = sorted(schemas.glob("*.json"))
    return "\n".join([INTRODUCTION, *(section_of(path) for path in paths)])


def section_of(path: Path) -> str:
    """Return what the page says of one command."""
    schema = json.loads(path.read_text())
    rows = "".join(f"| `{name}` | {kind} | {meaning} |\n" for name, kind, meaning in rows_of(schema, ""))
    head = f"## `planfreeze {path.stem.replace('-', ' ')}`\n\n{schema['description']}"
    return f"{head} Schema: [{path.name}](schemas/{path.name})\n\n| key | type | what it is |\n|---|---|---|\n{rows}"


def rows_of(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of every key below a schema."""
    for key, inner in schema.get("properties", {}).items():
        name = f"{prefix}{key}"
        yield name, kind_of(inner), inner["description"]
        items = inner.get("items", {})
        yield from rows_of(inner, f"{name}.")
        yield from rows_of(items, f"{name}[].")


def kind_of(schema: Mapping[str, Any]) -> str:
    """Return the type of a value, for people."""
    kinds = schema.get("type", "any")
    if kinds == "array":
        return f"list of {kind_of(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {kind_of(schema['additionalProperties'])}"
    if "enum" in schema:
        return " or ".join(f'`"{value}"`' for value in schema["enum"])
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def main() -> None:
    """Write the page."""
    (SCHEMAS.parent / "json.md").write_text(page_of(SCHEMAS))


if __name__ == "__main__":
    sys.exit(main())

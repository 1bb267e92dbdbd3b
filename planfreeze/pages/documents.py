"""Documents: one HTML file with its styles, its script and its data inside."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any

__all__ = ["make_document"]

SCRIPTS = ("elements.js", "charts.js", "table.js", "page.js")
# No character of the data can end its element or begin another, whatever a program is called; the rest is ASCII.
ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def make_document(report: Mapping[str, Any]) -> str:
    """Return the page of a report.

    Parameters
    ----------
    report : mapping
        What ``planfreeze report --json`` prints; the page holds it once, as it is, and draws from it alone.

    Notes
    -----
    The page's own policy allows the two pieces of text that it was made with, by their digests, and nothing else: no
    request, no other script, no other style.
    """
    style = read_text("page.css")
    script = "\n".join(map(read_text, SCRIPTS))
    names = ", ".join(plan["name"] for plan in report["plans"])
    return Template(read_text("page.html")).substitute(
        title=html.escape(f"{names} \N{MIDDLE DOT} planfreeze").encode("ascii", "xmlcharrefreplace").decode(),
        style=style,
        style_digest=policy_digest(style),
        script=script,
        script_digest=policy_digest(script),
        report=json.dumps(report, separators=(",", ":")).translate(ESCAPES),
    )


def read_text(name: str) -> str:
    """Return a part of the page."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def policy_digest(text: str) -> str:
    """Return how a content security policy names a piece of text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

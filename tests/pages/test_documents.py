"""The page as text: whole in one file, with its data once, closed to everything else; and part of the package."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planfreeze.pages.documents import SCRIPTS, make_document

ROOT = Path(__file__).parents[2]
ELEMENT = re.compile(r"<(script|style)\b([^>]*)>(.*?)</\1>", re.DOTALL)


def elements(page: str) -> dict[str, str]:
    """Content of every script and style, by its tag and attributes."""
    return {tag + attributes: content for tag, attributes, content in ELEMENT.findall(page)}


def test_the_page_holds_what_json_prints_once(reported):
    found = elements(reported.page.read_text())
    assert list(found) == ["style", 'script type="application/json" id="report"', 'script type="module"']
    assert json.loads(found['script type="application/json" id="report"']) == reported.content


def test_the_policy_names_the_one_script_and_the_one_style_and_allows_no_request(reported):
    page = reported.page.read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)[1]
    found = elements(page)
    digests = {
        name: base64.b64encode(hashlib.sha256(found[element].encode()).digest()).decode()
        for name, element in (("style", "style"), ("script", 'script type="module"'))
    }
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digests['style']}'; script-src 'sha256-{digests['script']}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def test_the_page_names_nothing_beside_it(reported):
    page = reported.page.read_text()
    assert re.findall(r"\b(?:src|action|srcset|poster)=", page) == []
    assert re.findall(r'\bhref="([^"]*)"', page) == ["data:,"]
    assert re.findall(r"@import|url\(|\bfetch\(|\bimport\b\s*[({\"']", page) == []
    assert set(re.findall(r"[a-z]+://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--<script>", "&lt;\u2028\u2029", "$title ${x} \\u003c", "\ud83d"]
)
def test_no_text_of_the_data_ends_its_element(reported, text):
    told = {**reported.content, "store": text, "plans": [{**reported.content["plans"][0], "name": text}]}
    page = make_document(told)
    page.encode()
    found = elements(page)
    assert len(found) == 3 and page.count("<script") == page.count("</script") == 2
    assert json.loads(found['script type="application/json" id="report"']) == told
    assert "<title>" in page and "<script" not in re.search("<title>(.*?)</title>", page, re.DOTALL)[1]


def test_the_wheel_holds_every_part_of_the_page(reported, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("planfreeze", "kernels", "cache"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    made = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=source, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    # Read from the archive itself, so that nothing but what the wheel holds can be found.
    make = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from planfreeze.pages import documents\n"
        "assert documents.__file__.startswith(sys.argv[1])\n"
        "sys.stdout.write(documents.make_document(json.load(sys.stdin)))"
    )
    shown = subprocess.run(
        [sys.executable, "-I", "-c", make, str(wheel)],
        input=json.dumps(reported.content),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == reported.page.read_text()


def test_every_file_beside_the_code_of_the_page_is_a_part_of_it():
    parts = {path.name for path in (ROOT / "planfreeze" / "pages").iterdir() if path.suffix not in (".py", "")}
    assert parts == {"page.html", "page.css", *SCRIPTS}


def test_parts_of_the_page_are_short():
    longer = {
        path.name: lines
        for path in (ROOT / "planfreeze" / "pages").iterdir()
        if path.is_file() and (lines := len(path.read_text().splitlines())) >= 300
    }
    assert longer == {}


DOCUMENT = (ROOT / "docs" / "reference" / "report.md").read_text()


def test_the_commands_of_the_document_do_what_it_says(report, reported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("store").symlink_to(reported.store.path)
    Path("later.json").symlink_to(reported.recording)
    commands = [line.split() for line in re.findall(r"^planfreeze report (.*)$", DOCUMENT, re.MULTILINE)]
    assert len(commands) == 3
    for command in commands:
        status, stdout, stderr = report(*command, "--trust-store")
        assert status == 0, stderr
        assert ("report.html" in command) is stdout.startswith("report.html: ")
    assert elements(Path("report.html").read_text()).keys() == elements(reported.page.read_text()).keys()


def test_the_document_names_every_part_of_the_json(reported):
    tables = DOCUMENT.split("## As JSON")[1]
    rows = dict(re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|$", tables, re.MULTILINE))
    assert {part for names in rows for part in re.findall(r"`(\w+)`", names)} == set(reported.content)
    found = {name: set(re.findall(r"`(\w+)`", text)) for name, text in rows.items()}
    content = reported.content
    assert found["`plans`"] == set(content["plans"][0]) and found["`builds`"] == set(content["builds"][0])
    assert found["`targets`"] == set(content["targets"]["sm_90a"])
    assert found["`coverage`"] == {*content["coverage"], *content["coverage"]["plans"][0], "nearest"}
    shown = set(content["programs"][0]) - {"group", "fields", "plans", "launches"}
    assert found["`programs`"] | shown == set(content["programs"][0]) and "key" in shown

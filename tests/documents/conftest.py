"""The pages of docs/, their marked blocks of code, and a place where these run as they stand."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TUTORIAL = "tutorial.md"
DIRECTIVES = ("{toctree}", "{include}", "{literalinclude}")
HAS_DEVICE = Path("/dev/nvidiactl").exists()
WITHOUT_DEVICE = re.compile(r"no CUDA device|no NVIDIA driver|libcuda|CUDA driver", re.IGNORECASE)


@dataclass(frozen=True)
class Block:
    """One block of code of a page.

    Its mark, the words behind the language, says what becomes of it: ``run``, ``gpu`` (run, and without a device
    refused for that), ``file=PATH`` (written), ``output`` (lines that the block before prints), ``by=TEST`` (another
    test runs it), ``needs=PACKAGE`` (not run, for want of it). ``status=N`` is the status it ends with.
    """

    page: str
    line: int
    language: str
    mark: str
    options: tuple[tuple[str, str], ...]
    text: str

    def __str__(self) -> str:
        return f"docs/{self.page}:{self.line}"

    def option(self, name: str, default: str = "") -> str:
        return dict(self.options).get(name, default)


def read_blocks(page: Path, docs: Path = DOCS) -> list[Block]:
    """Return the blocks of code of a page in order, those without a mark with an empty one."""
    blocks = []
    for token in MarkdownIt().parse(page.read_text()):
        if token.type in ("fence", "code_block") and not token.info.startswith(DIRECTIVES):
            language, *words = token.info.split() or [""]
            pairs = [tuple(word.split("=", 1)) if "=" in word else (word, "") for word in words]
            mark, *options = pairs or [("", "")]
            kept = [mark] if mark[1] else []
            line = token.map[0] + 1 if token.map else 0
            name = str(page.relative_to(docs))
            blocks.append(Block(name, line, language, mark[0], (*kept, *options), token.content))  # type: ignore[arg-type]
    return blocks


def pages() -> list[str]:
    """Return every page, the tutorial first."""
    found = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "generated" not in page.parts)
    return sorted(found, key=lambda name: name != TUTORIAL)


@pytest.fixture(scope="session")
def every_block() -> list[Block]:
    return [block for page in pages() for block in read_blocks(DOCS / page)]


@pytest.fixture(scope="session")
def readme() -> list[Block]:
    return read_blocks(ROOT / "README.md", ROOT)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that takes ``page`` every page with something to run."""
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", [page for page in pages() if is_run(read_blocks(DOCS / page))])


def is_run(blocks: list[Block]) -> bool:
    """Tell whether a page has more than text."""
    return any(block.mark in ("run", "gpu", "file") for block in blocks)


# What an environment is without, by how the names of its installed files begin. Frameworks take seconds to import in
# every proof of a guard; only what runs up to a launch needs them.
FRAMEWORKS = ("torch", "functorch", "cupy")
COMPILERS = ("triton", "nvidia_cutlass", "cutlass")


def make_environment(folder: Path, without: tuple[str, ...] = ()) -> Path:
    """Make a virtual environment with this checkout and what is installed here; return its ``bin``."""
    venv.EnvBuilder(symlinks=True).create(folder)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if installed.name != "planfreeze" and not installed.name.startswith(("__editable__", *without)):
            (packages / installed.name).symlink_to(installed)
    (packages / "documents.pth").write_text(f"{ROOT}\n")
    for name, call in {
        "planfreeze": "from planfreeze.cli import main; main()",
        "pytest": "import pytest; sys.exit(pytest.main())",
    }.items():
        script = folder / "bin" / name
        script.write_text(f"#!{folder}/bin/python\nimport sys\n{call}\n")
        script.chmod(0o755)
    return folder / "bin"


@dataclass(frozen=True)
class Environments:
    """``bin`` of virtual environments: with all that is installed, without frameworks, without compilers either."""

    whole: Path
    building: Path
    serving: Path

    def variables(self, bin: Path) -> dict[str, str]:
        """Return what a process of one of them starts with."""
        home = self.building.parent
        return {
            "PATH": f"{bin}:{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "COLUMNS": "200",
        }


@dataclass(frozen=True)
class Done:
    """How a command ended and what it printed."""

    status: int
    output: str


@dataclass(frozen=True)
class Bench:
    """A folder that blocks run in, one after the other; what a block exports the next one finds."""

    folder: Path
    environments: Environments

    def run(self, text: str, bin: Path) -> Done:
        """Run lines of a shell."""
        kept = shlex.quote(str(self.folder.with_suffix(".sh")))
        variables = self.environments.variables(bin)
        script = (
            f"if [ -f {kept} ]; then . {kept}; fi\ntrap 'export -p > {kept}' EXIT\n"
            f"PATH={shlex.quote(variables['PATH'])}\n{text}"
        )
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return Done(done.returncode, done.stdout)

    def follow(self, blocks: list[Block]) -> None:
        """Do what each block's mark says, and fail with the block that does not end as it should."""
        done = Done(0, "")
        for block in blocks:
            if block.mark == "file":
                place = self.folder / block.option("file")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(block.text)
            elif block.mark == "output":
                missing = missing_line(block.text, done.output)
                assert missing is None, f"{block}: {missing!r} is not printed in\n{done.output}"
            elif block.mark == "gpu" and not HAS_DEVICE:
                done = self.run_block(block)
                assert done.status != 0, f"{block} ended well without a device"
                assert WITHOUT_DEVICE.search(done.output), f"{block}: no word of a device in\n{done.output}"
            elif block.mark in ("run", "gpu"):
                done = self.run_block(block)
                expected = int(block.option("status", "0"))
                assert done.status == expected, f"{block} ended with {done.status}:\n{done.output}"

    def run_block(self, block: Block) -> Done:
        """Run a block in the language it is written in."""
        if block.language == "python":
            script = self.folder.with_name(f"{self.folder.name}-block.py")
            script.write_text(block.text)
            return self.run(f"PYTHONPATH=. python {shlex.quote(str(script))}", self.environments.whole)
        is_light = block.mark != "gpu"
        return self.run(block.text, self.environments.building if is_light else self.environments.whole)


def missing_line(expected: str, printed: str) -> str | None:
    """Return the first line that was not printed, in order; ``...`` stands for anything, spaces for any of them."""
    left = [" ".join(line.split()) for line in printed.splitlines()]
    for line in filter(str.strip, expected.splitlines()):
        pattern = ".*".join(re.escape(" ".join(part.split())) for part in line.split("..."))
        at = next((at for at, text in enumerate(left) if re.search(pattern, text)), None)
        if at is None:
            return line
        left = left[at + 1 :]
    return None


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """The virtual environments that blocks and examples run in."""
    folder = tmp_path_factory.mktemp("environments")
    return Environments(
        whole=make_environment(folder / "whole"),
        building=make_environment(folder / "building", FRAMEWORKS),
        serving=make_environment(folder / "serving", FRAMEWORKS + COMPILERS),
    )


@pytest.fixture(scope="session")
def tutorial(environments: Environments, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The folder where the tutorial ended: kernels, a store and a pack, all built for real. Read only."""
    folder = tmp_path_factory.mktemp("tutorial") / "work"
    folder.mkdir()
    bench = Bench(folder, environments)
    bench.follow(read_blocks(DOCS / TUTORIAL))
    return bench


@pytest.fixture
def bench(tutorial: Bench, tmp_path: Path) -> Bench:
    """A copy of the folder where the tutorial ended, its exported variables with it."""
    shutil.copytree(tutorial.folder, tmp_path / "work", symlinks=True)
    shutil.copy(tutorial.folder.with_suffix(".sh"), tmp_path / "work.sh")
    return Bench(tmp_path / "work", tutorial.environments)


# Where a command is not run but noted, and, asked to, ends as a test says.
NOTED = """#!/bin/sh
printf '%s\\n' "$*" >> "$NOTES"
"""


@pytest.fixture(scope="session")
def context(tutorial, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a repository holds that deploys the kernels of the tutorial; ``stubs`` beside it stands in for pip."""
    made = tmp_path_factory.mktemp("deployment") / "context"
    shutil.copytree(tutorial.folder, made)
    for example in (ROOT / "examples" / "deploy").iterdir():
        shutil.copy(example, made)
    listed = subprocess.run(
        [tutorial.environments.serving / "planfreeze", "ls", "--store", "store", "--json"],
        cwd=made,
        env=tutorial.environments.variables(tutorial.environments.serving),
        capture_output=True,
        check=True,
    )
    (plan,) = json.loads(listed.stdout)["plans"]
    (made / "plan.lock").write_text(f"{plan['name']}@sha256:{plan['root'].removeprefix('sha256:')}\n")
    stub = made.with_name("stubs") / "pip"
    stub.parent.mkdir()
    stub.write_text(NOTED)
    stub.chmod(0o755)
    return made


@pytest.fixture
def building(environments, context: Path) -> dict[str, str]:
    """What a process starts with where the compilers are."""
    return with_stubs(environments.variables(environments.building), context.with_name("stubs"))


@pytest.fixture
def serving(environments, context: Path) -> dict[str, str]:
    """What a process starts with where no compiler is."""
    return with_stubs(environments.variables(environments.serving), context.with_name("stubs"))


def with_stubs(variables: dict[str, str], stubs: Path) -> dict[str, str]:
    return variables | {"PATH": f"{stubs}:{variables['PATH']}"}

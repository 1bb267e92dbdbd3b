"""A store that was built in two builds for two targets, a recorded run of it, its report, and a real browser."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.cli import app
from planfreeze.plans import Plan
from planfreeze.recordings import RecordedProgram, Recording

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

VARIANTS = ((64, 1), (256, 2), (1024, 4), (2048, 1))
# Nothing leaves the machine, and nothing of another run or user is seen.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)


WIDE = 1280
CSS = "css selector"  # as selenium names it, which may not be here
COLUMNS = [
    *("Program", "Target", "Registers", "Spilled bytes", "Shared bytes", "Threads"),
    *("CTAs per SM", "Occupancy", "Cubin bytes", "Compile s", "Launches"),
]


@dataclass(frozen=True)
class Reported:
    """A store with a report of it: the page, what ``--json`` printed, and the recording it was made with."""

    store: Store
    recording: Path
    page: Path
    content: dict[str, Any]


def run_report(*arguments: str | Path) -> tuple[int, str, str]:
    """Run ``planfreeze report`` in this process."""
    done = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def report() -> Callable[..., tuple[int, str, str]]:
    """Run ``planfreeze report``; return status, standard output and standard error."""
    return run_report


@pytest.fixture(scope="session")
def reported(built, toys, toolchains: Path, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """Programs of ``add`` for two targets beside those of ``built``; a run on sm_90a used some, and one of its own."""
    folder = tmp_path_factory.mktemp("reported")
    store, add = built.copy(folder / "store"), toys.families.AddPayload
    payloads = [add(block=block, warps=warps) for block, warps in VARIANTS]
    plans: list[Plan] = [toys.plan(*payloads, model="sums", arch=arch) for arch in ("sm_90a", "sm_120a")]
    made = build_plans(plans, store, jobs=2, toolchains=toolchains)
    assert made.count("failed") == 0, made.outcomes
    used = [(payloads[0], 3), (payloads[2], 1200), (add(block=4096), 1)]
    recording = folder / "later.json"
    Recording(
        archs=("sm_90a",),
        versions=(),
        environment=(),
        source_roots=(),
        programs=tuple(
            RecordedProgram(family="toys.families:add", payload=payload, launches=count) for payload, count in used
        ),
        choices=(),
        refused=(),
        unused=0,
    ).write(recording)
    page = folder / "report.html"
    status, stdout, stderr = run_report("--store", store.path, "--recording", recording, "-o", page, "--json")
    assert status == 0, stderr
    return Reported(store, recording, page, json.loads(stdout))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Chrome"]:
    """Chromium without a window and with a profile of its own; skipped where there is none, but in CI."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        assert os.environ.get("PLANFREEZE_TEST_CHROMIUM") != "required", "chromium and chromedriver have to be here"
        pytest.skip("no chromium and chromedriver on PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    opened.set_page_load_timeout(60)
    yield opened
    opened.quit()


class Page:
    """A page in the browser, and what the tests ask of it."""

    def __init__(self, browser: "Chrome", content: dict[str, Any]) -> None:
        self.browser, self.programs = browser, content["programs"]

    def ask(self, script: str, *arguments: object) -> Any:
        """Return the value of an expression in the page."""
        return self.browser.execute_script(f"return {script}", *arguments)

    def find(self, selector: str) -> Any:
        return self.browser.find_element(CSS, selector)

    def resize(self, width: int, *, is_phone: bool = False) -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": is_phone}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def marks(self, selector: str, *attributes: str) -> list[list[str]]:
        """Attributes of every mark, its programs first."""
        read = "marks.map((mark) => ['data-programs', ...arguments[1]].map((name) => mark.getAttribute(name)))"
        return self.browser.execute_script(
            f"const marks = [...document.querySelectorAll(arguments[0])]; return {read}", selector, attributes
        )

    def texts(self, selector: str) -> list[str]:
        """Texts of elements, also of those in charts."""
        return self.ask(
            "[...document.querySelectorAll(arguments[0])].map((e) => e.innerText ?? e.textContent)", selector
        )

    @property
    def order(self) -> list[int]:
        """Places of the programs that the table shows, from top to bottom."""
        rows = "[...document.querySelectorAll('tbody tr[data-index]')]"
        return self.ask(f"{rows}.filter((row) => row.checkVisibility()).map((row) => Number(row.dataset.index))")

    @property
    def bright(self) -> list[int]:
        """Places of the programs whose mark among the families is not dimmed, in order."""
        return sorted(int(shown) for (shown,) in self.marks("#strips .mark:not(.off)"))

    def cells(self, index: int) -> list[str]:
        """Texts of a program's row."""
        return self.texts(f"tr[data-index='{index}'] td")

    def head(self, name: str) -> Any:
        return self.browser.find_elements(CSS, "thead button")[COLUMNS.index(name)]

    def sorted_by(self) -> dict[str, str]:
        """Columns that say that they are sorted, and how."""
        told = self.ask("[...document.querySelectorAll('th')].map((head) => head.getAttribute('aria-sort'))")
        return {name: how for name, how in zip(COLUMNS, told, strict=True) if how != "none"}

    def problems(self) -> list[str]:
        return [entry["message"] for entry in self.browser.get_log("browser")]


@pytest.fixture
def open_page(browser: "Chrome") -> Callable[[Path, dict[str, Any]], Page]:
    """Open a page, wide and light, with nothing logged before."""

    def open_page(path: Path, content: dict[str, Any]) -> Page:
        browser.get_log("browser")
        page = Page(browser, content)
        page.resize(WIDE)
        page.prefer("light")
        browser.get(path.as_uri())
        return page

    return open_page


@pytest.fixture
def page(open_page: Callable[[Path, dict[str, Any]], Page], reported: Reported) -> Iterator[Page]:
    """The page of the report, wide and light, as it is when it was just opened; it must not complain."""
    opened = open_page(reported.page, reported.content)
    yield opened
    assert opened.problems() == []

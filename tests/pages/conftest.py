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

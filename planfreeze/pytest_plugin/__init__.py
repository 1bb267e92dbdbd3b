"""The pytest plugin: tests that may not compile, and whole runs that have to replay frozen plans.

pytest imports this module wherever planfreeze is installed, so it imports the rest at its first use.
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from planfreeze.guard import Guard
    from planfreeze.guard.guards import Explain
    from planfreeze.pytest_plugin.replay import ReplayRun
    from planfreeze.pytest_plugin.witness import Witness

__all__ = [
    "forbid_compilation",
    "pytest_addoption",
    "pytest_configure",
    "pytest_load_initial_conftests",
    "pytest_runtest_call",
    "pytest_unconfigure",
]

LOG = "PLANFREEZE_GUARD_LOG"
WITNESS = pytest.StashKey["Witness"]()
REPLAY = pytest.StashKey["ReplayRun"]()
RESOURCES = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of a replay."""
    group = parser.getgroup("planfreeze")
    group.addoption(
        "--planfreeze-replay",
        action="append",
        default=[],
        metavar="PLAN",
        help="Fail the run unless every program of this frozen plan (name or root digest) is used and nothing is "
        "compiled. Several are allowed.",
    )
    group.addoption(
        "--planfreeze-store",
        metavar="DIR",
        help="The store of these plans. Default: PLANFREEZE_STORE, else the user's cache.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Arm the guard of a replay before any conftest is imported."""
    if early_config.known_args_namespace.planfreeze_replay:
        arm_replay(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; find the plans of a replay and prove its guard awake."""
    config.addinivalue_line("markers", "no_compilation: the test fails when it tries to compile a kernel.")
    plans: list[str] = config.getoption("planfreeze_replay")
    if plans:
        replay = arm_replay(config)
        replay.begin(tuple(plans), config.getoption("planfreeze_store"))
        config.pluginmanager.register(replay, "planfreeze-replay")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Release the guard of a replay."""
    if RESOURCES in config.stash:
        config.stash[RESOURCES].close()


def arm_replay(config: pytest.Config) -> "ReplayRun":
    """Arm the guard of a replay, once per process, and return the replay."""
    from planfreeze.pytest_plugin.replay import ReplayRun

    if REPLAY not in config.stash:
        resources = config.stash[RESOURCES] = ExitStack()
        replay = config.stash[REPLAY] = ReplayRun(config)
        replay.witness = resources.enter_context(witnessed(config, replay.explain))
    return config.stash[REPLAY]


@contextmanager
def witnessed(config: pytest.Config, explain: "Explain | None" = None) -> Iterator["Witness"]:
    """Forbid compiling, here and in Python children, and witness what tried."""
    from planfreeze.pytest_plugin.witness import Witness
    from planfreeze.settings import read_guard_settings

    with ExitStack() as undo:
        log = read_guard_settings().log
        if log is None:
            log = Path(undo.enter_context(TemporaryDirectory(prefix="planfreeze-")), "attempts")
            undo.enter_context(pytest.MonkeyPatch.context()).setenv(LOG, str(log))
        elif hasattr(config, "workerinput"):
            # A worker of xdist shares the log with the others; the process that started them reads it.
            log = None
        witness = Witness(log=log, explain=explain)
        witness.arm()
        undo.callback(witness.release)
        yield witness


@pytest.fixture(name="no_compilation")
def forbid_compilation(request: pytest.FixtureRequest) -> Iterator["Guard"]:
    """Forbid compiling while the fixture lives; yield the guard. The test fails if anything tried, error or not."""
    with witnessed(request.config) as witness:
        request.node.stash[WITNESS] = witness
        yield witness
        text = describe_attempts(witness)
    if text:
        pytest.fail(text, pytrace=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Run a marked test under a guard; fail a guarded one that tried to compile."""
    with ExitStack() as undo:
        witness = item.stash.get(WITNESS, None)
        if witness is None and item.get_closest_marker("no_compilation"):
            witness = undo.enter_context(witnessed(item.config))
        outcome = yield
        text = describe_attempts(witness) if witness else ""
        if not text:
            return
        item.add_report_section("call", "planfreeze", text)
        if outcome.excinfo is None or issubclass(outcome.excinfo[0], pytest.skip.Exception):
            outcome.force_exception(pytest.fail.Exception(text, pytrace=False))


def describe_attempts(witness: "Witness") -> str:
    """Return a line per attempt that was not told yet, and how often it was made."""
    from planfreeze.runs.guarded import count_attempts

    lines = [f"{found.attempt} ({found.count} times)" for found in count_attempts(witness.take())]
    return "\n".join(["nothing may be compiled in this test:", *lines]) if lines else ""

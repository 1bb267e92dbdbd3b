"""The no-compilation sentinel: every known road to a kernel compiler in this process, refused or counted.

>>> from planfreeze.guard import no_compilation
>>> with no_compilation() as guard:
...     pass
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planfreeze.guard.attempts import Attempt, Mode
    from planfreeze.guard.children import child_environment, without_guard
    from planfreeze.guard.guards import Guard, no_compilation
    from planfreeze.guard.logs import LoggedAttempt, read_log
    from planfreeze.guard.proofs import Proof, prove, self_test
    from planfreeze.guard.watch import attempt_totals, expose_attempts, installed_roads, road_names

__all__ = [
    "Attempt",
    "Guard",
    "LoggedAttempt",
    "Mode",
    "Proof",
    "attempt_totals",
    "child_environment",
    "expose_attempts",
    "installed_roads",
    "no_compilation",
    "prove",
    "read_log",
    "road_names",
    "self_test",
    "without_guard",
]

HOMES = {
    "Attempt": "attempts",
    "Guard": "guards",
    "LoggedAttempt": "logs",
    "Mode": "attempts",
    "Proof": "proofs",
    "attempt_totals": "watch",
    "child_environment": "children",
    "expose_attempts": "watch",
    "installed_roads": "watch",
    "no_compilation": "guards",
    "prove": "proofs",
    "read_log": "logs",
    "road_names": "watch",
    "self_test": "proofs",
    "without_guard": "children",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: children of a run start without roads that nothing guards there."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)

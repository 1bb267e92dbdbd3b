"""The no-compilation sentinel: every known road to a kernel compiler in this process, refused or counted.

>>> from planfreeze.guard import no_compilation
>>> with no_compilation() as guard:
...     pass
"""

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

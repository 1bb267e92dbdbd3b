"""The no-compilation sentinel: every known road to a kernel compiler in this process, refused or counted.

>>> from planfreeze.guard import no_compilation
>>> with no_compilation() as guard:
...     pass
"""

from planfreeze.guard.attempts import Attempt, Mode
from planfreeze.guard.guards import Guard, no_compilation
from planfreeze.guard.proofs import Proof, prove, self_test
from planfreeze.guard.watch import installed_roads

__all__ = [
    "Attempt",
    "Guard",
    "Mode",
    "Proof",
    "installed_roads",
    "no_compilation",
    "prove",
    "self_test",
]

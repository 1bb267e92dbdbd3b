"""Compile every GPU kernel a model can ask for ahead of time, and forbid compiling while it serves."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planfreeze.guard import no_compilation
    from planfreeze.process_session import session
    from planfreeze.recorders import recording
    from planfreeze.sessions import Session

__version__ = "0.1.0"
__all__ = ["Session", "__version__", "no_compilation", "recording", "session"]

HOMES = {
    "Session": "sessions",
    "no_compilation": "guard",
    "recording": "recorders",
    "session": "process_session",
}


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that importing planfreeze costs nothing."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)

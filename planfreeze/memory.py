"""Memory between processes: short texts in a folder of the user's, each sealed, so that a torn one counts as none."""

import hashlib
import os
from pathlib import Path

from planfreeze.cache.claims import create_claimed, find_abandoned

__all__ = ["recall", "remember"]

PARTIAL = "partial-"  # begins the name of a text that is being written


def recall(path: Path) -> str | None:
    """Return a remembered text, or None when there is no whole one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    text = content.rpartition(b" ")[0].decode("utf-8", "replace")
    return text if content == seal(path, text) else None


def seal(path: Path, text: str) -> bytes:
    """Return what is kept: the text, and a sha256 that binds it to what it is remembered for, the file's name."""
    return f"{text} {hashlib.sha256(f'{path.name} {text}'.encode()).hexdigest()}\n".encode()


def remember(path: Path, text: str) -> None:
    """Keep a text; a directory that cannot be written only costs time. What killed processes left goes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for abandoned in find_abandoned(path.parent, PARTIAL):
            abandoned.unlink()
        partial, handle = create_claimed(path.parent, PARTIAL)
        with os.fdopen(handle, "wb") as file:
            file.write(seal(path, text))
            file.flush()
            partial.replace(path)
    except OSError:
        return

"""Digests: sha256 of bytes, as 64 lower-case hexadecimal digits."""

import hashlib
import re

from planfreeze import errors

__all__ = ["check_digest", "digest_of", "is_digest"]

DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")


def digest_of(data: bytes) -> str:
    """Return the sha256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """Tell whether ``text`` has the form of a digest (or of a key, which is written alike)."""
    return DIGEST_PATTERN.fullmatch(text) is not None


def check_digest(text: str) -> str:
    """Return ``text`` when it has the form of a digest or key; it then names one file and no other path.

    Raises
    ------
    InvalidEntryName
        It has another form.
    """
    if not is_digest(text):
        raise errors.InvalidEntryName("digest or key", text, "64 lower-case hexadecimal digits")
    return text

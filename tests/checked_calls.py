"""Calls that are checked, with the extension that takes tensors in one go or without it."""

from typing import Any

import pytest

from planfreeze.binding import Signature
from planfreeze.tensor_checks import take_nothing


def check_words(signature: Signature, *values: Any, **named: Any) -> bytes:
    """Check a call and return its words."""
    words = bytearray(8 * len(signature.arguments))
    signature.check(values, named, memoryview(words))
    return bytes(words)


def without_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let signatures that are made from now on look at tensors one by one."""
    monkeypatch.setattr("planfreeze.binding.make_check", lambda torch, device, rows: take_nothing)

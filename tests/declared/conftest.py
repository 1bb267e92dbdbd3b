"""Fixtures of declared families."""

import pytest

from planfreeze import family as families


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the families that a test declares."""
    monkeypatch.setattr(families, "registry", dict(families.registry))

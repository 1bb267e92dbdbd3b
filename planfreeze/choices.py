"""Choices of autotuners, as plans keep them."""

from msgspec import Struct

from planfreeze.payload import Field

__all__ = ["Choice"]


class Choice(Struct, frozen=True, kw_only=True):
    """What an autotuner chose for one tuning key.

    Parameters
    ----------
    kernel : str
        The tuned kernel, as "module:qualified name".
    space : str
        Digest of what it chose among; a choice counts for the same configurations alone.
    key : tuple of Field
        The tuning key.
    config : tuple of (str, Field)
        The chosen configuration: constants and options by name.
    """

    kernel: str
    space: str
    key: tuple[Field, ...]
    config: tuple[tuple[str, Field], ...]

"""Hooks: something around a method of someone else's class, taken off again where nobody else came after."""

from collections.abc import Callable
from typing import Any

__all__ = ["hook_method"]


def hook_method(owner: type, name: str, surround: Callable[[Any], Any]) -> Callable[[], None]:
    """Put something around a method of a class.

    Parameters
    ----------
    owner, name : type, str
        The class and its method; static methods stay static.
    surround : callable
        From the method's function to what stands in its place.

    Returns
    -------
    callable
        Takes it off, unless someone else has changed the method since.
    """
    found = vars(owner)[name]
    made = staticmethod(surround(found.__func__)) if isinstance(found, staticmethod) else surround(found)
    setattr(owner, name, made)

    def release() -> None:
        if vars(owner)[name] is made:
            setattr(owner, name, found)

    return release

"""Families declared by ranges of arguments and values of constants; ``planfreeze.declarations`` makes them."""

from planfreeze.declared.families import DeclaredFamily

__all__ = ["DeclaredFamily"]

"""Recorders: note every program that a process launches, whichever compiler's runtime launches it.

>>> import planfreeze
>>> with planfreeze.recording("softmax.json"):  # doctest: +SKIP
...     softmax[(rows,)](out, x, columns)
"""

from planfreeze.recorders.processes import recording

__all__ = ["recording"]

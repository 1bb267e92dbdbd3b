"""Scratch folders: where a compile process keeps its files, removed when it ends or by a later one."""

import os
import shutil
import tempfile
from pathlib import Path

from planfreeze.cache.claims import create_claimed, find_abandoned

__all__ = ["ScratchFolder"]

PREFIX = "planfreeze-worker-"


class ScratchFolder:
    """A private folder among the temporary files.

    Attributes
    ----------
    path : Path
        The folder.
    handle : int
        Claims the folder. A process that uses the folder gets a copy, so that nobody removes it as long as that
        process or its parent lives.

    Notes
    -----
    Folders whose processes were all killed are removed when the next one is made by the same user.
    """

    def __init__(self) -> None:
        place = Path(tempfile.gettempdir())
        for abandoned in find_abandoned(place, PREFIX):
            if abandoned.lstat().st_uid == os.geteuid():
                shutil.rmtree(abandoned, ignore_errors=True)
        self.path, self.handle = create_claimed(place, PREFIX, is_folder=True)

    def close(self) -> None:
        """Remove the folder; what cannot be removed now is left to the next one that is made."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.handle)

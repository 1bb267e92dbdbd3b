"""What a disk may hold when the power fails: every state that the flushes so far allow, from recorded operations."""

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(eq=False)
class File:
    """A file: what was written, and how much of it is safe."""

    data: bytes = b""
    flushed: bytes = b""

    @property
    def is_flushed(self) -> bool:
        return self.data == self.flushed


@dataclass(eq=False)
class Folder:
    """A folder: its names as processes see them, those that are safe, and the changes between the two."""

    names: dict[str, Any] = field(default_factory=dict)
    flushed: dict[str, Any] = field(default_factory=dict)
    changes: list[tuple[str, Any]] = field(default_factory=list)

    def change(self, name: str, item: Any) -> None:
        """Give a name to an item, or take it away with None."""
        self.changes.append((name, item))
        enter(self.names, name, item)


def enter(names: dict[str, Any], name: str, item: Any) -> None:
    names.pop(name, None) if item is None else names.__setitem__(name, item)


class PowerModel:
    """A disk in memory that knows what is flushed.

    Only what the standard promises counts: a file's bytes are safe after its fsync, a name after the fsync of its
    folder. Until then any of the changes to a folder may be on the disk, in any order, and any part of the bytes.
    """

    def __init__(self) -> None:
        self.root = Folder()
        self.handles: dict[int, Any] = {}

    def find(self, path: str) -> Any:
        item: Any = self.root
        for name in Path(path).parts:
            item = item.names[name]
        return item

    def change(self, path: str, item: Any) -> None:
        folder, name = os.path.split(path)
        self.find(folder).change(name, item)

    def apply(self, operation: Any) -> None:
        """Take the next operation of a recording; what changes nothing is passed over."""
        act = getattr(self, f"_{operation.call.replace(' ', '_')}", None)
        if act is not None:
            act(operation)

    def _open_to_write(self, operation: Any) -> None:
        folder, name = os.path.split(operation.path)
        found = self.find(folder).names.get(name)
        if found is None:
            self.change(operation.path, File())
        elif operation.flags & os.O_TRUNC:
            found.data = b""
        self._open_to_read(operation)

    def _open_to_read(self, operation: Any) -> None:
        self.handles[operation.handle] = self.find(operation.path)

    def _write(self, operation: Any) -> None:
        self.handles[operation.handle].data += operation.data

    def _fsync(self, operation: Any) -> None:
        item = self.handles[operation.handle]
        if isinstance(item, File):
            item.flushed = item.data
        else:
            item.flushed, item.changes = dict(item.names), []

    def _link(self, operation: Any) -> None:
        self.change(operation.target, self.find(operation.path))

    def _rename(self, operation: Any) -> None:
        item = self.find(operation.path)
        self.change(operation.path, None)
        self.change(operation.target, item)

    def _mkdir(self, operation: Any) -> None:
        self.change(operation.path, Folder())

    def _unlink(self, operation: Any) -> None:
        self.change(operation.path, None)

    def write(self, place: Path, keep_names: Callable[[Folder], dict[str, Any]], keep: Callable[[File], bytes]) -> None:
        """Write a state out as real files."""
        write_folder(self.root, place, keep_names, keep)


def write_folder(
    folder: Folder, place: Path, keep_names: Callable[[Folder], dict[str, Any]], keep: Callable[[File], bytes]
) -> None:
    place.mkdir()
    for name, item in keep_names(folder).items():
        if isinstance(item, Folder):
            write_folder(item, place / name, keep_names, keep)
        else:
            (place / name).write_bytes(keep(item))


def all_names(folder: Folder) -> dict[str, Any]:
    return folder.names


def safe_names(folder: Folder) -> dict[str, Any]:
    return folder.flushed


def all_bytes(file: File) -> bytes:
    return file.data


def safe_bytes(file: File) -> bytes:
    return file.flushed


def torn_bytes(file: File) -> bytes:
    return file.data if file.is_flushed else file.flushed + file.data[len(file.flushed) :][: len(file.data) // 2]


def some_names(chance: random.Random) -> Callable[[Folder], dict[str, Any]]:
    """Of the changes that are not flushed, some, in some order."""

    def keep(folder: Folder) -> dict[str, Any]:
        names = dict(folder.flushed)
        for name, item in chance.sample(folder.changes, chance.randint(0, len(folder.changes))):
            enter(names, name, item)
        return names

    return keep


def some_bytes(chance: random.Random) -> Callable[[File], bytes]:
    return lambda file: chance.choice((all_bytes, safe_bytes, torn_bytes))(file)


def states(chance: random.Random) -> Iterable[tuple[str, Callable[[Folder], dict[str, Any]], Callable[[File], bytes]]]:
    """The states that are tried after each operation: a kill, the least that is safe, and mixtures."""
    yield "killed", all_names, all_bytes
    yield "least", safe_names, safe_bytes
    yield "names without bytes", all_names, safe_bytes
    yield "names with torn bytes", all_names, torn_bytes
    for number in range(2):
        yield f"mixture {number}", some_names(chance), some_bytes(chance)

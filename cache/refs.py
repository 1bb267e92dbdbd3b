"""References: names that point to plans, the only entries of a store that are ever replaced."""

from planfreeze import errors
from planfreeze.cache.digest import check_digest, is_digest
from planfreeze.cache.files import flush_entries, is_plain_file, quarantine_file, read_file, reading, replace_file
from planfreeze.cache.layout import KINDS, REF_PATTERN, Layout

__all__ = ["get_ref", "list_refs", "set_ref"]


def set_ref(layout: Layout, name: str, root: str) -> None:
    """Point ``name`` to a plan in one step; nothing is written when it points there already.

    What lies in its place and is no file is quarantined.

    Raises
    ------
    MissingEntry
        The plan is not in the store: a reference never points to nothing.
    StoreUnusable
        The store cannot be written; the reference points where it did.
    """
    path, plan = layout.entry("ref", name), layout.entry("plan", root)
    if not is_plain_file(plan):
        raise errors.MissingEntry(f"plan {root}", str(layout.root))
    content = f"{check_digest(root)}\n".encode()
    with reading(layout, path, f"reference {name}"):
        present = read_file(path) if is_plain_file(path) else None
    if present == content:
        return
    if present is None and path.is_dir() and not path.is_symlink():
        quarantine_file(layout, path, "not a plain file")  # nothing else keeps a file from taking its place
    flush_entries(layout, [plan])
    replace_file(layout, path, content)


def get_ref(layout: Layout, name: str) -> str | None:
    """Return the root digest ``name`` points to, or None when there is no such reference.

    Raises
    ------
    DamagedEntry
        The reference holds something else than a digest, or is not a plain file.
    """
    path = layout.entry("ref", name)
    with reading(layout, path, f"reference {name}"):
        content = read_file(path)
    if content is None:
        return None
    root = content[:-1].decode("ascii", "replace")
    if content[-1:] != b"\n" or not is_digest(root):
        raise errors.DamagedEntry(f"reference {name}", str(path), f"it holds {content[:80]!r}")
    return root


def list_refs(layout: Layout) -> dict[str, str]:
    """Return all references: name to root digest, sorted by name.

    Raises
    ------
    DamagedEntry
        One of them holds something else than a digest.
    """
    folder = layout.root / KINDS["ref"]
    try:
        names = sorted(path.name for path in folder.iterdir() if REF_PATTERN.fullmatch(path.name))
    except FileNotFoundError:
        return {}
    roots = ((name, get_ref(layout, name)) for name in names)
    return {name: root for name, root in roots if root is not None}

"""Finding and making a store: the format file makes a folder a store."""

from planfreeze import errors
from planfreeze.cache.files import NotPlainFile, publish_file, read_file, writing
from planfreeze.cache.folders import make_folder
from planfreeze.cache.layout import CACHEDIR_TAG, FORMAT_TEXT, Layout, check_format

__all__ = ["create", "has_format"]


def has_format(layout: Layout) -> bool:
    """Tell whether there is a store at the root.

    Raises
    ------
    DamagedStore, StoreTooNew
        There is something else, a damaged format file, or a later format.
    StoreUnusable
        It cannot be read.
    """
    for _ in range(2):
        try:
            text = read_file(layout.format)
            if text is not None:
                check_format(layout.root, text)
                return True
            names = {path.name for path in layout.root.iterdir()}
        except FileNotFoundError:
            return False
        except (NotPlainFile, NotADirectoryError) as error:
            raise errors.DamagedStore(str(layout.root), "it is no folder with a format file") from error
        except OSError as error:
            raise errors.StoreUnusable(str(layout.root), f"it cannot be read: {error.strerror}") from error
        made_first = {layout.temporaries.name, layout.tag.name}
        if names <= made_first:
            return False
        # Entries come after the format file: another process may have made the store between the two looks.
    raise errors.DamagedStore(str(layout.root), f"it holds {min(names - made_first)} but no format file")


def create(layout: Layout) -> None:
    """Make an empty store; of several processes that do so at once, each finds the same store."""
    with writing(layout, layout.format, len(FORMAT_TEXT)):
        make_folder(layout.root)
    publish_file(layout, layout.tag, CACHEDIR_TAG)
    publish_file(layout, layout.format, FORMAT_TEXT)
    with writing(layout, layout.root, 0):
        for folder in layout.folders:
            make_folder(folder)

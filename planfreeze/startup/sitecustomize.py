"""Serve or record this process as its environment asks, then run the sitecustomize that this file hides.

It stands first on the search path of every Python process of a served or recorded command, also of an interpreter
that is too old for planfreeze or does not have it: it must parse everywhere and change nothing there.
"""

import sys

if __name__ == "sitecustomize":
    here = __file__.rsplit("/", 1)[0]
    sys.path[:] = [entry for entry in sys.path if entry != here]
    is_installed = False
    try:
        if sys.version_info >= (3, 11):  # noqa: UP036 - not always an interpreter that planfreeze is installed for
            from planfreeze.inheritance import start_inherited

            is_installed = True
    except ImportError:
        is_installed = False
    try:
        if is_installed:
            start_inherited()
    except Exception as error:  # noqa: BLE001 - whatever it is: going on would record or serve nothing, unseen
        sys.exit(str(error))
    del sys.modules["sitecustomize"]
    # The hidden one. Where there is none, this fails as the import of sitecustomize would have without this file.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401

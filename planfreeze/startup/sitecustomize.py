"""Do what the environment asks of this process at its start, then run the sitecustomize that this file hides.

It stands first on the search path of every Python process of a guarded, served or recorded command, also of an
interpreter that is too old for planfreeze or does not have it: it must parse everywhere, and change nothing there but
what it is asked for.
"""

import sys

if __name__ == "sitecustomize":
    here = __file__.rsplit("/", 1)[0]
    sys.path[:] = [entry for entry in sys.path if entry != here]
    is_here = False
    if sys.version_info >= (3, 11):  # noqa: UP036 - not always an interpreter that planfreeze is installed for
        # Last: where planfreeze is not installed, the parent's serves. A guard needs the standard library alone.
        sys.path.append(here.rsplit("/", 2)[0])
        try:
            from planfreeze.inheritance import start_inherited

            is_here = True
        except ImportError:
            is_here = False
        finally:
            sys.path.pop()
    try:
        if is_here:
            start_inherited()
    except Exception as error:  # noqa: BLE001 - whatever it is: going on as if it were done would prove nothing
        sys.exit(str(error))
    del sys.modules["sitecustomize"]
    # The hidden one. Where there is none, this fails as the import of sitecustomize would have without this file.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401

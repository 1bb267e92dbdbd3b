"""Arm the guard that this process inherits, then run the sitecustomize that this file hides.

It stands first on the search path of every Python process that a guarded one starts, also of an interpreter that
is too old for planfreeze: it must parse everywhere, and change nothing but the guard.
"""

import sys

if __name__ == "sitecustomize":
    here = __file__.rsplit("/", 1)[0]
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if sys.version_info >= (3, 11):  # noqa: UP036 - not always an interpreter that planfreeze is installed for
        # Last: where planfreeze is not installed, the parent's serves. The guard needs the standard library alone.
        sys.path.append(here.rsplit("/", 3)[0])
        try:
            from planfreeze.guard.inherited import arm_inherited

            is_armable = True
        except ImportError:
            is_armable = False
        finally:
            sys.path.pop()
    else:
        is_armable = False
    try:
        if is_armable:
            arm_inherited()
    except Exception as error:  # noqa: BLE001 - whatever it is: going on unguarded would prove nothing
        sys.exit(str(error))
    del sys.modules["sitecustomize"]
    # The hidden one. Where there is none, this fails as the import of sitecustomize would have without this file.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401

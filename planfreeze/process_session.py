"""The process's session, made once from the settings, and sessions of one's own."""

import threading
from pathlib import Path

from planfreeze import errors
from planfreeze.sessions import Session
from planfreeze.settings import Settings, read_settings, store_path

__all__ = ["session"]

process_session: list[Session] = []
process_lock = threading.Lock()


def session(
    *plans: str,
    store: str | Path | None = None,
    pack: str | Path | None = None,
    device: int | None = None,
    build: bool = False,
    is_trusted: bool | None = None,
) -> Session:
    """Return the process's session, or with plans a new one.

    Parameters
    ----------
    *plans : str
        Frozen plans; see :class:`Session`. None given: the process's session, made at the first call from the
        arguments, ``PLANFREEZE_STORE`` and ``PLANFREEZE_PLAN``, and again after it was closed.
    store : path, optional
        The store; None takes ``PLANFREEZE_STORE``, else the user's cache directory.
    pack : path, optional
        A pack in place of a store. Where the store is a pack and no plan is named, all its plans are prepared.
    device, build, is_trusted
        See :class:`Session`; ``is_trusted`` None takes ``PLANFREEZE_TRUST_STORE``.

    Raises
    ------
    SessionState
        The process's session exists, with another store or device than the ones given; or both a store and a pack
        are given.
    """
    if store is not None and pack is not None:
        raise errors.SessionState(
            f"both store {store} and pack {pack} are given", "planfreeze.session(PLAN, pack=FILE)"
        )
    store = store if pack is None else pack
    with process_lock:
        if not plans and process_session and not process_session[0].is_closed:
            return same_session(process_session[0], store, device)
        settings = read_settings()
        place = Path(store) if store is not None else store_path(settings)
        made = Session(
            plans or settings.plans or packed_plans(place, settings),
            place,
            device=device,
            build=build,
            is_trusted=settings.is_store_trusted if is_trusted is None else is_trusted,
            trusted_keys=settings.trusted_keys,
        )
        if not plans:
            process_session[:] = [made]
        return made


def same_session(made: Session, store: str | Path | None, device: int | None) -> Session:
    """Return the process's session unless something else is asked for."""
    for name, asked, there in (("store", store and Path(store), made.store), ("device", device, made.ordinal)):
        if asked is not None and asked != there:
            raise errors.SessionState(
                f"the process's session has {name} {there}, not {asked}", "planfreeze.session(PLAN, ...) for another"
            )
    return made


def packed_plans(place: Path, settings: Settings) -> tuple[str, ...]:
    """Return the names of all plans of a pack; none for a store."""
    if not place.is_file():
        return ()
    from planfreeze.cache.pack import Pack  # not needed to serve from a store

    return tuple(Pack.open(place, trusted_keys=settings.trusted_keys).list_refs())

"""What a process does at its start because the command that started it asked for it: be served, be recorded."""

from planfreeze.settings import read_inherited_settings

__all__ = ["start_inherited"]


def start_inherited() -> None:
    """Put in place what the environment asks for; a compiler is hooked when it is imported.

    Raises
    ------
    InvalidSetting
        The variables do not say what to do.
    """
    settings = read_inherited_settings()
    if settings.plan is not None:
        from planfreeze.serving.processes import serve_process

        serve_process(settings.plan, settings.store, is_trusted=settings.is_store_trusted, log=settings.log)
    if settings.folder is not None:
        from planfreeze.recorders import record_process

        record_process(settings.folder)

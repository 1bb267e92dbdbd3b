"""What commands give back: results on standard output, errors as a message and an exit status."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import typer

from planfreeze import errors

__all__ = ["exit_codes", "print_note", "print_result"]

INTERRUPTED = 130


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Turn the errors of planfreeze and an interrupt into a message and an exit status."""
    try:
        yield
    except errors.PlanfreezeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("interrupted: what is published stays; the same command goes on from there", err=True)
        raise typer.Exit(INTERRUPTED) from None


def print_note(text: str, *, is_quiet: bool) -> None:
    """Print on standard error what is good to know and no error, unless quiet was asked for."""
    if not is_quiet:
        typer.echo(text, err=True)


def print_result(as_json: dict[str, Any] | None, show: Callable[[], object]) -> None:
    """Print a result as JSON, or let ``show`` print it for people."""
    if sys.stdout is None:
        raise errors.OutputUnwritable("it is closed")
    try:
        if as_json is None:
            show()
        else:
            sys.stdout.write(f"{json.dumps(as_json, indent=2)}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise errors.OutputUnwritable(error.strerror or str(error)) from error

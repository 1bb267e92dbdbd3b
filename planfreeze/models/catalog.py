"""Where models come from: the catalog in this package, a TOML file, a Hugging Face configuration."""

import json
import tomllib
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from planfreeze import errors
from planfreeze.entry_points import MODELS, find_entry_point, list_entry_points
from planfreeze.models.huggingface import read_huggingface
from planfreeze.models.model import Model, check_model, model_name
from planfreeze.spellings import nearest_spelling

__all__ = ["catalog_names", "load_model", "model_names"]


def catalog_names() -> tuple[str, ...]:
    """Return the names of the models that come with planfreeze, sorted."""
    entries = (entry.name for entry in files("planfreeze.models").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in entries if name.endswith(".toml")))


def model_names() -> tuple[str, ...]:
    """Return the names of all models here, of the catalog and of installed packages, sorted."""
    return tuple(sorted({*catalog_names(), *list_entry_points(MODELS)}))


def load_model(source: str) -> Model:
    """Load a model.

    Parameters
    ----------
    source : str
        A name of the catalog, or of an entry point ``planfreeze.models``; or the path of a TOML file with a model's
        fields; or the path of a Hugging Face ``config.json``, or of the folder that holds one. A name wins over a
        file, the catalog over an entry point.

    Raises
    ------
    UnknownModel
        Neither a name of the catalog nor a file.
    MalformedModelFile
        The file cannot be read as TOML or JSON.
    MissingModelField, UnknownModelField, InvalidModelField
        The file lacks a field, has one that no model has, or has one of another type.
    NotMixtureOfExperts
        The configuration describes a model without routed experts.
    UnsupportedActivation
        The kernels do not compute the model's activation.
    AmbiguousEntryPoint, BrokenEntryPoint
        Installed packages disagree about the name, or what is declared gives no model.

    Examples
    --------
    >>> load_model("ds41").hidden
    5120
    """
    if source in catalog_names():
        text = (files("planfreeze.models") / f"{source}.toml").read_text(encoding="utf-8")
        return check_model(tomllib.loads(text), path=f"{source}.toml", name=source)
    offered = find_entry_point(MODELS, source)
    if offered is not None:
        return load_offered(source, offered)
    return read_model(source)


def load_offered(name: str, value: str) -> Model:
    """Load what an entry point offers: a function that returns a model, or the path of a model's file."""
    module, _, attribute = value.partition(":")
    try:
        found = getattr(import_module(module), attribute)
        found = found() if callable(found) else found
    except Exception as error:  # the package that declares it may raise anything
        raise errors.BrokenEntryPoint(MODELS, name, value, repr(error)) from error
    if isinstance(found, (str, Path)):
        return replace(read_model(str(found)), name=name)
    if not isinstance(found, Model):
        raise errors.BrokenEntryPoint(MODELS, name, value, f"it gives a {type(found).__name__}, not a model")
    return found


def read_model(source: str) -> Model:
    """Read a model from a file, or say which names there are."""
    path = Path(source)
    try:
        path = path / "config.json" if path.is_dir() else path
        is_file = path.is_file()
    except OSError:  # such as a name longer than the file system takes
        is_file = False
    if not is_file:
        names = model_names()
        raise errors.UnknownModel(source, names, nearest_spelling(source, names))
    if path.suffix == ".toml":
        return check_model(parse_file(path, "TOML", tomllib.loads), path=str(path), name=model_name(path.stem))
    if path.suffix == ".json":
        fields = read_huggingface(parse_file(path, "JSON", json.loads), path=str(path))
        return check_model(fields, path=str(path), name=configuration_name(path))
    raise errors.MalformedModelFile(str(path), "TOML or JSON", f"its name ends in {path.suffix or 'no suffix'}")


def parse_file(path: Path, language: str, parse: Callable[[str], object]) -> Mapping[str, Any]:
    """Read a file of one table."""
    try:
        parsed = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise errors.MalformedModelFile(str(path), language, str(error)) from error
    if not isinstance(parsed, dict):
        raise errors.MalformedModelFile(str(path), language, f"it holds a {type(parsed).__name__}, not an object")
    return parsed


def configuration_name(path: Path) -> str:
    """Name a model after its configuration: the file, or the folder of a file named config.json."""
    if path.stem != "config":
        return model_name(path.stem)
    folders = path.absolute().parent.parts
    # A hub cache keeps config.json at models--<owner>--<model>/snapshots/<commit>/.
    cached = [folder for folder in folders if folder.startswith("models--")]
    return model_name(cached[-1].rpartition("--")[2] if cached else folders[-1])

"""Where models come from: the catalog in this package, a TOML file, a Hugging Face configuration."""

import difflib
import json
import tomllib
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from planfreeze.errors import MalformedModelFile, UnknownModel
from planfreeze.models.huggingface import read_huggingface
from planfreeze.models.model import Model, check_model, model_name

__all__ = ["catalog_names", "load_model"]


def catalog_names() -> tuple[str, ...]:
    """Return the names of the models that come with planfreeze, sorted."""
    entries = (entry.name for entry in files("planfreeze.models").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in entries if name.endswith(".toml")))


def load_model(source: str) -> Model:
    """Load a model.

    Parameters
    ----------
    source : str
        A name of the catalog; or the path of a TOML file with a model's fields; or the path of a Hugging Face
        ``config.json``, or of the folder that holds one. The catalog wins over a file of the same name.

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

    Examples
    --------
    >>> load_model("ds41").hidden
    5120
    """
    names = catalog_names()
    if source in names:
        text = (files("planfreeze.models") / f"{source}.toml").read_text(encoding="utf-8")
        return check_model(tomllib.loads(text), path=f"{source}.toml", name=source)
    path = Path(source)
    try:
        path = path / "config.json" if path.is_dir() else path
        is_file = path.is_file()
    except OSError:  # such as a name longer than the file system takes
        is_file = False
    if not is_file:
        near = next(iter(difflib.get_close_matches(source, names, 1)), None)
        raise UnknownModel(source, names, near)
    if path.suffix == ".toml":
        return check_model(parse_file(path, "TOML", tomllib.loads), path=str(path), name=model_name(path.stem))
    if path.suffix == ".json":
        fields = read_huggingface(parse_file(path, "JSON", json.loads), path=str(path))
        return check_model(fields, path=str(path), name=configuration_name(path))
    raise MalformedModelFile(str(path), "TOML or JSON", f"its name ends in {path.suffix or 'no suffix'}")


def parse_file(path: Path, language: str, parse: Callable[[str], object]) -> Mapping[str, Any]:
    """Read a file of one table."""
    try:
        parsed = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MalformedModelFile(str(path), language, str(error)) from error
    if not isinstance(parsed, dict):
        raise MalformedModelFile(str(path), language, f"it holds a {type(parsed).__name__}, not an object")
    return parsed


def configuration_name(path: Path) -> str:
    """Name a model after its configuration: the file, or the folder of a file named config.json."""
    if path.stem != "config":
        return model_name(path.stem)
    folders = path.absolute().parent.parts
    # A hub cache keeps config.json at models--<owner>--<model>/snapshots/<commit>/.
    cached = [folder for folder in folders if folder.startswith("models--")]
    return model_name(cached[-1].rpartition("--")[2] if cached else folders[-1])

"""Models: geometry as data, from the catalog, a TOML file or a Hugging Face configuration."""

from planfreeze.models.catalog import catalog_names, load_model, model_names
from planfreeze.models.model import IdType, Model, WeightFormat
from planfreeze.models.options import ARMS, Arm, PlanOptions, parse_options

__all__ = [
    "ARMS",
    "Arm",
    "IdType",
    "Model",
    "PlanOptions",
    "WeightFormat",
    "catalog_names",
    "load_model",
    "model_names",
    "parse_options",
]

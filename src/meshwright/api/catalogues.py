"""What is known by name: the functions behind `meshwright models` and `meshwright chips`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meshwright.platforms.given import read_hf_config
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.catalogue import ChipRow, chip_rows, find_row
from meshwright.values.hardware.parse import Server, servers
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.params import ModelInfo, ModelRow, model_info, models_info

__all__ = ["describe_chip", "describe_model", "list_chips", "list_models", "list_servers"]


def list_models() -> list[ModelRow]:
    """Return the models that are known by name: shape, parameters, what is published of them."""
    return models_info()


def describe_model(name: str | None = None, /, *, hf: str | Path | None = None) -> ModelInfo:
    """Return a model's dims and parameters by part: `describe_model("qwen3-30b-a3b")`, or its dims,
    `"layers=32,hidden=4096,..."`.

    `hf` is a config.json of Hugging Face, or its folder, to read instead; the notes say what the
    shape leaves out of it.
    """
    if (name is None) == (hf is None):
        raise ConfigError("a model: give either a name or a config")
    if hf is None:
        return model_info(named_model(name or ""))
    reading = read_hf_config(Path(hf))
    return replace(model_info(reading.spec), notes=reading.notes)


def list_chips() -> tuple[ChipRow, ...]:
    """Return the chips of clusters, each with its server, its links and its sources."""
    return chip_rows()


def describe_chip(name: str, /) -> ChipRow:
    """Return one chip by name or alias, `describe_chip("h100")`; UnknownNameError for none."""
    return find_row(name)


def list_servers() -> tuple[Server, ...]:
    """Return the servers that are sold, by the names that `cluster` takes: `p5.48xlarge:32`."""
    return servers()

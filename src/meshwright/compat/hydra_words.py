"""Hydra words, such as `training=gpt3/5b`, composed over a tree of configurations."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.platforms.files import make_folder, put_file
from meshwright.values.errors import ConfigError, MissingExtraError, nearest_names

__all__ = [
    "MISSING",
    "HydraWord",
    "compose_tree",
    "entries",
    "near_keys",
    "read_words",
    "require_hydra",
]

_WORD = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?", re.DOTALL)
MISSING = "???"


class HydraWord:
    """One word of a line."""

    def __init__(self, text: str, *, example: str) -> None:
        """Read it; ConfigError where it is none."""
        found = _WORD.fullmatch(text)
        if found is None or (found["value"] is None and found["sign"] != "~"):
            raise ConfigError(f"{text}: expected key=value, such as {example}")
        self.text, self.key = text, found["key"]
        self.sign, self.value = found["sign"] or "", found["value"] or ""


def read_words(words: Sequence[str], *, example: str) -> list[HydraWord]:
    """Read the words of a line."""
    return [HydraWord(word, example=example) for word in words]


def require_hydra() -> None:
    """MissingExtraError where Hydra is not installed."""
    try:
        import hydra  # noqa: F401
        import omegaconf  # noqa: F401  # hydra's own, named in case it alone is absent
    except ImportError:
        raise MissingExtraError("hydra-core", "nemo") from None


def compose_tree(
    texts: Mapping[str, str], words: Sequence[str], *, may_miss: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the configuration of some words over files of YAML by their names in the tree, every
    interpolation resolved; ConfigError names a wrong key, value or missing `???`.

    Keys of `may_miss` may stay without a value where nothing is made of them.
    """
    require_hydra()
    import hydra

    with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
        for name, text in texts.items():
            path = Path(folder) / f"{name}.yaml"
            make_folder(path.parent)
            put_file(path, text)
        with hydra.initialize_config_dir(config_dir=folder, version_base="1.3"):
            return _composed(list(words), may_miss)


def entries(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its dotted path, and its value."""
    for key, value in values.items():
        yield f"{prefix}{key}", value
        if isinstance(value, Mapping):
            yield from entries(value, f"{prefix}{key}.")


def near_keys(key: str, known: Collection[str]) -> Collection[str]:
    """Return known keys that are like it, those with a like last part where none is; all of them
    where there are none either."""
    last = {path.rsplit(".", 1)[-1]: path for path in sorted(known, reverse=True)}
    ends = nearest_names(key.rsplit(".", 1)[-1], last)
    return nearest_names(key, known) or [last[name] for name in ends] or known


def _composed(words: list[str], may_miss: Sequence[str]) -> dict[str, Any]:
    import math

    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    OmegaConf.register_new_resolver("multiply", lambda x, y: x * y, replace=True)
    OmegaConf.register_new_resolver("divide_ceil", lambda x, y: math.ceil(x / y), replace=True)
    OmegaConf.register_new_resolver("divide_floor", lambda x, y: int(x // y), replace=True)
    try:
        config = hydra.compose("config", overrides=words, return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        _require_complete(config, may_miss)
        return {str(key): _value(config, str(key)) for key in config if key != "hydra"}
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_one_line(error)) from None


def _value(config: Any, key: str) -> Any:
    """One entry in plain types; None where it may be missing and is."""
    from omegaconf import OmegaConf

    if OmegaConf.is_missing(config, key):
        return None
    value = config[key]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _require_complete(config: Any, may_miss: Sequence[str]) -> None:
    """Every `???` that the rest is made of needs a value."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    own = {key: value for key, value in plain.items() if key != "hydra"}
    for key in (path for path, value in entries(own) if value == MISSING):
        if f"${{{key}}}" in str(own) or key not in may_miss:
            raise ConfigError(
                f"{key}: a value is missing ({MISSING} in config.yaml); give it as {key}=VALUE"
            )


def _one_line(error: Exception) -> str:
    stripped = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in stripped if line and not line.startswith("Set the env")]
    return " ".join(lines)[:400]

"""A calibration as a YAML file.

calibration: 1                # the form's version
meshwright: 0.1.0
chip: h100
stack: megatron
profile: measured by ...      # only where the runs were predicted with one
models: ["hidden=4096,ffn=14336,heads=32,kv_heads=8"]
runs: ["train.log: llama3-8b, 16 chips, tp=2 ...: 8.61 s, 61.2 GiB"]
factors:
  compute: {value: 0.93, prior_width: 0.14, width: 0.02}
links:
  domain: {name: nvlink4, bytes_per_s: 372e9, latency_s: 2.1e-6, setup_s: 0.0, half_message_bytes:
          1e6, source: all_reduce_perf ...}
settings: {dispatcher: flex}  # only what `meshwright anchor` found
step_time: {runs: 3, before_frac: 0.08, after_frac: 0.01, left_out_frac: 0.02, spread: 0.03}
peak_memory: ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from meshwright.trust.calibration import Calibration, Fitted, LinkRates, Misses
from meshwright.values.errors import ConfigError

__all__ = ["CALIBRATION_MARK", "calibration_to_yaml", "parse_calibration"]

_VERSION = 1
CALIBRATION_MARK = "calibration: "
"""How the file of a calibration begins."""


class _Form(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _FactorForm(_Form):
    value: float
    prior_width: float
    width: float


class _LinkForm(_Form):
    name: str
    bytes_per_s: float
    latency_s: float
    setup_s: float
    half_message_bytes: float
    source: str


class _MissesForm(_Form):
    runs: int
    before_frac: float
    after_frac: float
    left_out_frac: float | None = None
    spread: float


class _FileForm(_Form):
    calibration: Literal[1]
    meshwright: str = ""
    chip: str
    stack: str
    profile: str = ""
    models: list[str] = []
    runs: list[str] = []
    factors: dict[str, _FactorForm] = {}
    links: dict[Literal["domain", "network"], _LinkForm] = {}
    settings: dict[str, str | float] = {}
    step_time: _MissesForm | None = None
    peak_memory: _MissesForm | None = None


def calibration_to_yaml(calibration: Calibration) -> str:
    """Return the YAML form, which reads back to the same calibration."""
    import yaml

    fields = {
        "calibration": _VERSION,
        "meshwright": calibration.version,
        "chip": calibration.chip,
        "stack": calibration.stack,
        "profile": calibration.profile or None,
        "models": list(calibration.models),
        "runs": list(calibration.runs),
        "factors": {f.name: _without(asdict(f), "name") for f in calibration.factors},
        "links": {rates.level: _without(asdict(rates), "level") for rates in calibration.links},
        "settings": dict(calibration.settings),
        "step_time": None if calibration.step_time is None else asdict(calibration.step_time),
        "peak_memory": None if calibration.peak_memory is None else asdict(calibration.peak_memory),
    }
    return yaml.safe_dump(
        {k: v for k, v in fields.items() if v not in (None, {}, [])},
        sort_keys=False,
        allow_unicode=True,
        width=120,
    )


def _without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


def parse_calibration(text: str, *, source: str = "calibration") -> Calibration:
    """Read the YAML form; ConfigError in one line names `source` and the place."""
    import yaml

    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: no YAML: {str(error).splitlines()[0][:120]}") from None
    if not isinstance(content, Mapping) or "calibration" not in content:
        raise ConfigError(f"{source}: no calibration; expected what `meshwright calibrate` writes")
    try:
        return _calibration(
            _FileForm.model_validate({str(key): value for key, value in content.items()})
        )
    except ValidationError as error:
        raise ConfigError(f"{source}: {_one_line(error)}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _calibration(form: _FileForm) -> Calibration:
    return Calibration(
        chip=form.chip,
        stack=form.stack,
        runs=tuple(form.runs),
        factors=tuple(Fitted(name=name, **dict(found)) for name, found in form.factors.items()),
        links=tuple(LinkRates(level=level, **dict(found)) for level, found in form.links.items()),
        step_time=None if form.step_time is None else Misses(**dict(form.step_time)),
        peak_memory=None if form.peak_memory is None else Misses(**dict(form.peak_memory)),
        version=form.meshwright,
        profile=form.profile,
        models=tuple(form.models),
        settings=tuple(form.settings.items()),
    )


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "file"
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}"

"""What `meshwright profile` is asked to measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from meshwright.errors import ConfigError, UnknownNameError
from meshwright.hardware.profile import Effort
from meshwright.models.spec import ModelSpec

__all__ = ["DTYPES", "DeviceKind", "Dtype", "ProfileRequest", "read_dtypes"]

Dtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
DeviceKind = Literal["cuda", "cpu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileRequest:
    """Device, precisions, effort, and a model whose own shapes are measured too."""

    device: DeviceKind | None = None
    """None: a GPU where torch sees one, else the CPU."""
    dtypes: tuple[Dtype, ...] | None = None
    """None: on a GPU bf16, and fp8 where it has it; on the CPU fp32."""
    effort: Effort = "standard"
    model: ModelSpec | None = None

    def __post_init__(self) -> None:
        if self.device not in (None, *get_args(DeviceKind)):
            raise UnknownNameError("device", str(self.device), get_args(DeviceKind))


def read_dtypes(text: str) -> tuple[Dtype, ...]:
    """Read `bf16,fp8`; UnknownNameError with the nearest names."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError(f"dtype={text!r}: expected some of {','.join(DTYPES)}")
    for word in words:
        if word not in DTYPES:
            raise UnknownNameError("dtype", word, DTYPES)
    return tuple(dtype for dtype in DTYPES if dtype in words)

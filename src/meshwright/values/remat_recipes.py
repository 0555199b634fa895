"""MaxText's own benchmark configurations, by release.

`scripts/distil_recipes.py maxtext CLONE` writes the table `recipes.csv` from the public repository;
no line is typed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

from meshwright.values.data import package_rows

__all__ = ["REMAT_OF", "RematRecipe", "find_remat", "remat_models", "remat_releases"]

REMAT_OF = "maxtext"
"""The stack whose releases have them."""
_TABLE = "software/maxtext/recipes.csv"
_QKV_OFFLOADED = "qkv_proj_offloaded"


@dataclass(frozen=True, kw_only=True, slots=True)
class RematRecipe:
    """What a release keeps on the chip and in host memory for a model."""

    release: str
    model: str
    """The catalogue's name."""
    gpu: str
    precision: str
    """Empty where the configuration is for any."""
    seq_len: int
    """0 where it says none."""
    remat_policy: str
    source: str
    """Its file."""
    offloaded: tuple[str, ...]
    """Named results that wait in host memory."""

    @property
    def offloads_inputs(self) -> bool:
        """Whether the layers' inputs are among them."""
        return "decoder_layer_input" in self.offloaded

    @property
    def offloads_outputs(self) -> bool:
        """Whether what a feed-forward hands back is."""
        return "mlpwo" in self.offloaded

    @property
    def offloads_kept(self) -> bool:
        """Whether any named result is."""
        return bool(self.offloaded) or self.remat_policy == _QKV_OFFLOADED


@cache
def _recipes() -> tuple[RematRecipe, ...]:
    return tuple(
        RematRecipe(
            release=row["release"],
            model=row["meshwright_model"],
            gpu=row["gpu"],
            precision=row["precision"],
            seq_len=int(row["seq_len"] or 0),
            remat_policy=row["remat_policy"],
            source=row["source"],
            offloaded=tuple(sorted(row["offloaded"].split())),
        )
        for row in package_rows(_TABLE)
        if row["meshwright_model"]
    )


@cache
def remat_models() -> frozenset[str]:
    """Return the models that have recipes."""
    return frozenset(recipe.model for recipe in _recipes())


def remat_releases() -> tuple[str, ...]:
    """Return the releases that have recipes, oldest first."""
    return tuple(dict.fromkeys(recipe.release for recipe in _recipes()))


def find_remat(
    *, model: str, gpu: str, precision: str = "", seq_len: int = 0
) -> RematRecipe | None:
    """Return the recipe of the newest release that has any for the model on the chip; of several,
    those in the number format and then nearest in length of sequences go first, and what most of
    them do counts (they differ in size)."""
    fitting = [recipe for recipe in _recipes() if (recipe.model, recipe.gpu) == (model, gpu)]
    if not fitting:
        return None
    newest = [recipe for recipe in fitting if recipe.release == fitting[-1].release]

    def apart(recipe: RematRecipe) -> tuple[bool, int]:
        known = seq_len and recipe.seq_len
        return (
            bool(precision) and recipe.precision not in ("", precision),
            abs(recipe.seq_len - seq_len) if known else 0,
        )

    least = min(map(apart, newest))
    nearest = [(one.offloaded, one.remat_policy) for one in newest if apart(one) == least]
    most = Counter(nearest).most_common(1)[0][0]
    return next(
        one for one in newest if apart(one) == least and (one.offloaded, one.remat_policy) == most
    )

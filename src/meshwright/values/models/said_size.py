"""Whether a built model has as many parameters as its name or a table says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.values.errors import UnknownNameError
from meshwright.values.models.catalogue import find_preset
from meshwright.values.models.params import Params, model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import format_count

__all__ = ["SaidSize", "model_notes", "size_in_name", "size_of_cell", "wrong_size"]

_WITHIN = 0.05
"""A count that is further off than this, and than the digits that are said, is another model's."""
_LEAST_SHARED = 0.6
"""`8x22b` counts what its experts share in each of them: Mixtral 8x22B has 0.80 of 8 times 22 B,
NeMo's 8x3B 0.76; the least of published ones less a fifth."""
_ACTIVE_WITHIN = 0.15
"""Active parameters are counted with the embedding, without it, or with one of its two halves."""
_UNITS = {"b": 1e9, "m": 1e6, "t": 1e12}
_NUMBER = r"(\d{1,4}(?:\.\d{1,3})?)"
_MIXTURE = re.compile(rf"(?<![a-z0-9.])(\d{{1,4}})x{_NUMBER}b(?![a-z0-9])")
_EACH_TOKEN = re.compile(rf"(?<![a-z0-9.]){_NUMBER}b-\d{{1,4}}e(?![a-z0-9])")
_SIZE = re.compile(rf"(?<![a-z0-9.]){_NUMBER}([bmt])(?![a-z0-9])")
_CUT = re.compile(r"truncat|proxy|\bcut\b|reduced|\d+[-_ ]?layers?\b|\d+l\b")
"""A model cut from the one of its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SaidSize:
    """What a name or a cell says of a model's parameters."""

    words: str
    """As it says it: `7b`, `params_b=7.0`."""
    least: float
    most: float
    counts: str = "all"
    """`all` parameters, or the `active` ones that a token visits (Llama 4's 17B-16E)."""

    def holds(self, params: Params) -> bool:
        """Say whether a count is within what was said; counts without the embedding, and with
        layers for further tokens, are published as well."""
        if self.counts == "active":
            return self.least <= params.active <= self.most
        table = params.embedding + params.positions
        counts = (params.total, params.total + params.mtp, params.total - table, params.layers)
        return any(self.least <= count <= self.most for count in counts)


def size_in_name(name: str) -> SaidSize | None:
    """Return what a name says of its size: `foo-13b`, `8x7b`, `235b-a22b`, `17b-16e`; None for a
    name without a size, or that says itself that it is cut."""
    text = name.lower().rsplit("/", 1)[-1].replace("_", "-")
    if _CUT.search(text):
        return None
    if found := _MIXTURE.search(text):
        whole = float(found[1]) * _rounded(found[2], 1e9, words="").most
        least = float(found[1]) * float(found[2]) * 1e9 * _LEAST_SHARED
        return SaidSize(words=found[0], least=least, most=whole)
    if found := _EACH_TOKEN.search(text):
        count = float(found[1]) * 1e9
        least, most = count * (1 - _ACTIVE_WITHIN), count * (1 + _ACTIVE_WITHIN)
        return SaidSize(words=found[0], least=least, most=most, counts="active")
    sizes = [found for found in _SIZE.finditer(text) if found[2] != "t"] or [*_SIZE.finditer(text)]
    billions = [found for found in sizes if found[2] == "b"] or sizes
    if not billions:
        return None
    return _rounded(billions[0][1], _UNITS[billions[0][2]], words=billions[0][0])


def size_of_cell(billions: float) -> SaidSize:
    """Return what a cell with billions of parameters says, whole ones rounded or cut."""
    return _rounded(f"{billions:g}", 1e9, words=f"params_b={billions:g}")


def wrong_size(spec: ModelSpec, *, said: SaidSize | None = None) -> str:
    """Return a sentence for people where a model has other parameters than `said`, else than its
    name says; empty where they agree, and for a published model under its own name."""
    params = model_params(spec)
    published = _published(spec.name)
    if published is not None:
        if _near(params.total, published.total) or (said is not None and said.holds(params)):
            return ""
        what = f"the model of this name has {format_count(published.total)}"
    else:
        claim = said or size_in_name(spec.name)
        if claim is None or claim.holds(params):
            return ""
        what = f"{claim.words} says otherwise"
    active = params.active < params.total
    count = f"{format_count(params.total)} parameters" + (
        f" ({format_count(params.active)} active)" if active else ""
    )
    return f"{spec.name}: {count} by its dims, but {what}"


def model_notes(spec: ModelSpec) -> tuple[str, ...]:
    """Return what a reader of any price must know of a model: parameters that are not those of its
    name, parts that its shape lacks, layers whose speed nobody published."""
    notes = [wrong_size(spec)]
    try:
        preset = find_preset(spec.name)
    except UnknownNameError:
        preset = None
    if preset is not None and preset.left_out and preset.spec == spec:
        notes.append(f"{spec.name}: {preset.left_out}")
    if spec.delta is not None:
        notes.append(
            f"{spec.name}: {spec.delta.num_layers} layers of delta attention are taken to run at"
            " the rate of Mamba-2's kernels; no published run tells"
        )
    return tuple(filter(None, notes))


def _published(name: str) -> Params | None:
    try:
        return model_params(find_preset(name).spec)
    except UnknownNameError:
        return None


def _near(count: float, other: float) -> bool:
    return abs(count / other - 1) <= _WITHIN


def _rounded(digits: str, unit: float, *, words: str) -> SaidSize:
    """What is printed as 7 may be 6.5 to 8: rounded, or cut as Qwen2 7B's 7.6 is."""
    value, last = float(digits), float(10.0 ** -len(digits.partition(".")[2]))
    return SaidSize(
        words=words,
        least=min(value - last / 2, value * (1 - _WITHIN)) * unit,
        most=max(value + last, value * (1 + _WITHIN)) * unit,
    )

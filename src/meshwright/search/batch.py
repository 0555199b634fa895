"""Which global batch a search may use when none is given: the table `search/batch_rule.csv`."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.values.data import package_rows
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import format_count

__all__ = ["BatchRule", "batch_rule"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRule:
    """The largest batch that published runs of this size used."""

    tokens_per_step: int
    source: str

    def max_gbs(self, seq_len: int) -> int:
        """Return the batch in sequences, at least one."""
        return max(1, self.tokens_per_step // seq_len)

    def words(self, seq_len: int) -> str:
        """Say the rule for people."""
        tokens = format_count(self.tokens_per_step)
        return (
            f"no batch given: up to {self.max_gbs(seq_len)} sequences ({tokens} tokens a step) for"
            f" this size; {self.source}"
        )


def batch_rule(model: ModelSpec) -> BatchRule:
    """Return the first row whose `params` are not below the model's parameters."""
    size = model_params(model).total
    for row in package_rows("search/batch_rule.csv"):
        if not row["params"] or size <= int(row["params"]):
            return BatchRule(tokens_per_step=int(row["tokens_per_step"]), source=row["source"])
    raise AssertionError("search/batch_rule.csv: the last row has no upper bound")

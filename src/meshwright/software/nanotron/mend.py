"""The few values of a nanotron YAML that another layout needs."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import Imported, ImportSource, Mended
from meshwright.software.mending import fewest, nodes_note, says_layout
from meshwright.software.nanotron.export import NAME, words_of_layout
from meshwright.software.nanotron.read import nanotron_matches, read_nanotron
from meshwright.software.plan import TrainingPlan, completed
from meshwright.values.edited import edited_values
from meshwright.values.errors import ConfigError
from meshwright.values.text import read_yaml

__all__ = ["NANOTRON_SOURCE", "mended"]

_ASYNC = "tp_linear_async_communication"


def mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    """Return the YAML with the fewest values changed that make it say a plan's layout."""
    plan = completed(plan)
    layout = plan.layout
    if layout.cp > 1 and found.layout.get("cp", 1) == 1:
        raise ConfigError(
            f"{NAME}: cp={layout.cp} needs another model class than the file's; `plan --from FILE"
            " --export DIR` writes it"
        )

    def same(tried: str) -> bool:
        try:
            read = read_nanotron(tried)
        except ConfigError:
            return False
        return says_layout(
            {"gbs": read.work.gbs, **read.layout}, layout, layers=plan.model.num_layers
        )

    words: dict[str, Any] = words_of_layout(plan)
    text = fewest(text, [words], form="yaml", same=same)
    if not layout.sp and read_yaml(text, what=NAME)["parallelism"].get(_ASYNC):
        # its ParallelismArgs assert that it goes with REDUCE_SCATTER alone
        text = edited_values(text, {f"parallelism.{_ASYNC}": False}, form="yaml")
    return Mended(text=text, notes=(nodes_note(plan),))


NANOTRON_SOURCE = ImportSource(
    name=NAME,
    title="nanotron's YAML",
    matches=nanotron_matches,
    read=read_nanotron,
    mend=mended,
)

"""Training runs as their files describe them: the layout that `plan --from` improves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.errors import ConfigError

if TYPE_CHECKING:
    from meshwright.exports import Imported
    from meshwright.search.asked import Asked
    from meshwright.search.problem import Problem
    from meshwright.search.quote import Quote
    from meshwright.search.result import PlanResult

__all__ = ["Run", "price_of", "print_change", "read_run"]

_OF_WORK = ("seq_len", "gbs", "decoder_seq_len", "precision", "attention")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A file and what was read from it."""

    path: Path
    found: Imported

    def fields(self) -> dict[str, Any]:
        """Return what the file says of a request."""
        from dataclasses import asdict

        from meshwright.search.problem import dims_of

        found = self.found
        details = {
            name: value for name, value in asdict(found.details).items() if value is not None
        }
        values: dict[str, Any] = {name: getattr(found.work, name) for name in _OF_WORK}
        values |= {
            "gbs": found.layout.get("gbs"),
            "stack": found.stack,
            "megatron_version": found.megatron_version,
        }
        return {
            "model": dims_of(found.model, details=details),
            **{name: value for name, value in values.items() if value is not None},
        }

    def asked(self, problem: Problem) -> Asked:
        """Return the file's layout in the problem, without what the file leaves off of its
        software; on other chips than its own the number of replicas follows."""
        from meshwright.search.asked import ask

        layout = {name: value for name, value in self.found.layout.items() if name != "gbs"}
        if self.found.num_chips != problem.num_chips:
            layout.pop("dp", None)
        if problem.request.gbs is None and "gbs" in self.found.layout:
            layout["gbs"] = self.found.layout["gbs"]
        if problem.request.gbs is None and "gbs" not in layout:
            raise ConfigError(
                f"{self.path}: the file leaves the global batch to its software; add"
                f" --gbs{_usual_batch(layout, problem)}"
            )
        try:
            return ask(layout, self._as_it_is(problem))
        except ConfigError as error:
            raise ConfigError(
                f"{self.path}: its layout does not run as it is: {error}; leave its words out of"
                " the file to plan without it"
            ) from None

    def _as_it_is(self, problem: Problem) -> Problem:
        from dataclasses import replace

        setting = problem.setting
        return replace(
            problem, setting=replace(setting, stack=setting.stack.without(self.found.left_off))
        )

    def set_names(self) -> list[str]:
        """Return the names of the training settings that the file gives: no part of a request."""
        from dataclasses import fields

        settings = self.found.settings
        return [
            field.name
            for field in fields(settings)
            if getattr(settings, field.name) != field.default
        ]

    def lines(self) -> Iterator[str]:
        """Yield what a reader must know."""
        found = self.found
        yield f"{self.path}: {found.model.name} as {found.source} has it"
        for warning in found.warnings:
            yield f"warning: {warning}"
        if found.passed_through:
            yield f"passed through: {' '.join(found.passed_through)}"


def _usual_batch(layout: dict[str, Any], problem: Problem) -> str:
    """One micro batch for each rank of the file's layout, where its ranks are whole."""
    split = layout.get("tp", 1) * layout.get("cp", 1) * layout.get("pp", 1)
    replicas, rest = divmod(problem.num_chips, split)
    if rest or layout.get("pp", 1) > 1 or "mbs" not in layout:
        return " N"
    return f" {layout['mbs'] * replicas}, which is {layout['mbs']} on each of {replicas} ranks"


def read_run(path: Path, flags: dict[str, Any]) -> Run:
    """Read a file of any kind that is known; ConfigError where a flag and the file both name the
    model."""
    from meshwright.exports import import_text
    from meshwright.exports.registry import find_source

    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: {getattr(error, 'strerror', None) or 'not a text in UTF-8'}"
        ) from None
    if "model" in flags:
        raise ConfigError(f"--from {path} names a model of its own; leave the other out")
    if "cluster" not in flags:
        raise ConfigError(
            f"--from {path}: the file does not say which chips it runs on; add --cluster, such as"
            " h100:64"
        )
    source = find_source(path.name, text)
    try:
        found = import_text(text, source=source)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return Run(path=path, found=found)


def price_of(asked: Asked) -> Quote:
    """Return the simulated price of a layout in its problem."""
    from meshwright.search.quote import quotes
    from meshwright.search.requote import requote, setting_of

    return requote(quotes([asked.layout], setting_of(asked.problem)), asked.problem)[0]


def print_change(current: Asked, result: PlanResult, *, problem: Problem) -> None:
    """Print the file's layout against the best: what differs, what each difference means, and both
    prices. `problem` is the best's, in which the software has all that it can do."""
    from dataclasses import replace

    from meshwright.cli._layout_case import narrow_console
    from meshwright.report.diff_text import print_comparison, print_prices
    from meshwright.search.diff import compare
    from meshwright.search.result import layout_dict

    console, mine = narrow_console(), price_of(current)
    console.print(
        f"\nA, the file's layout: {mine.layout.words()}: {mine.step_s:.3f} s a step, fits:"
        f" {mine.verdict}",
        soft_wrap=True,
    )
    if not result.plans:
        return
    best = replace(current, layout=result.plans[0].layout, problem=problem)
    console.print(
        f"B, the best: {best.layout.words()}: {result.plans[0].step_s:.3f} s a step\n",
        soft_wrap=True,
    )
    experts = problem.setting.model.moe is not None
    print_comparison(
        compare(layout_dict(mine.layout), layout_dict(best.layout), has_experts=experts), console
    )
    print_prices(mine, price_of(best), console)

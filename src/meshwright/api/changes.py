"""What a change in a repository does to the training runs that its files describe: the function
behind `meshwright ci`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from meshwright.api.existing import price_of, run_of
from meshwright.api.problems import problem_of
from meshwright.search.quote import Quote
from meshwright.search.request import PlanRequest
from meshwright.search.titles import TIME_READINGS
from meshwright.software.registry import find_source
from meshwright.trust.intervals import Fits
from meshwright.values.errors import ConfigError
from meshwright.values.units import GIB

__all__ = ["ChangedRun", "PricedRun", "Verdict", "changed_runs"]

Verdict = Literal[
    "does not fit any more",
    "does not run any more",
    "is at risk now",
    "slower",
    "as fast",
    "faster",
    "fits now",
    "runs now",
    "does not fit",
    "does not run",
    "new",
    "gone",
]
_LEAST_CHANGE = 0.005
"""Rates that are nearer are said to be the same: what is printed has two digits of a per cent."""
_LARGEST_FILE = 1_000_000
"""Bytes; larger texts are no configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PricedRun:
    """One version of a file."""

    layout: str | None
    """None where it does not run, and `refused` says why; so are the figures."""
    step_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    peak_memory_gib: float | None = None
    fits: Fits | None = None
    refused: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedRun:
    """A file before and after a change."""

    file: str
    verdict: Verdict
    before: PricedRun | None
    """None where there was none."""
    after: PricedRun | None
    change_frac: float | None = None
    """Of the time that a sequence takes; 0.12 is 12 % slower."""
    reason: str = ""
    """The term that moved most, and another batch."""

    @property
    def is_worse(self) -> bool:
        """Whether a run that started before does not start now."""
        return self.verdict in ("does not fit any more", "does not run any more")

    def words(self) -> str:
        """Say it in a line."""
        if self.verdict in ("slower", "faster"):
            assert self.change_frac is not None
            return f"{abs(self.change_frac):.1%} {self.verdict}{self.reason}".replace("%", " %")
        after = self.after
        if after is not None and after.refused is not None:
            return f"{self.verdict}: {after.refused}"
        if after is not None and after.fits != "yes":
            return f"{self.verdict}: {after.peak_memory_gib:.1f} GiB on the fullest chip"
        return self.verdict

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {**asdict(self), "says": self.words()}


def changed_runs(
    repository: Path,
    *,
    base: str,
    head: str | None = None,
    fields: Mapping[str, Any],
    files: Sequence[str] = (),
) -> list[ChangedRun]:
    """Return every run whose file changed since `head` left `base`, priced before and after on the
    cluster of `fields`; None of a head is the working tree.

    `fields` are those of a PlanRequest without the model; `files` are git's patterns of those to
    look at, none is all. ConfigError where git refuses.
    """
    start = _git(repository, "merge-base", base, head or "HEAD").strip()
    found = []
    for old, new in _changes(repository, start, head, files):
        before = None if old is None else _text_at(repository, start, old)
        after = None if new is None else _text_at(repository, head, new)
        known = [
            text is not None and _is_run(name, text) for name, text in ((old, before), (new, after))
        ]
        if any(known):
            runs = [
                _priced(str(name), text, fields) if is_run and text is not None else None
                for name, text, is_run in zip((old, new), (before, after), known, strict=True)
            ]
            found.append(_compared(str(new or old), runs))
    return found


def _git(repository: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *words], capture_output=True, check=False
        )
    except OSError as error:
        raise ConfigError(f"git: {error.strerror}; `meshwright ci` asks it what changed") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no answer"]
        hint = "; the base must be there: fetch it, or check out with fetch-depth: 0"
        raise ConfigError(f"git {words[0]}: {lines[0]}{hint if words[0] == 'merge-base' else ''}")
    return done.stdout.decode("utf-8", "replace")


def _changes(
    repository: Path, start: str, head: str | None, files: Sequence[str]
) -> Iterator[tuple[str | None, str | None]]:
    """Yield the names before and after of each file that differs."""
    ends = [start] if head is None else [start, head]
    words = ["diff", "--name-status", "--find-renames", "-z", *ends, "--", *files]
    parts = iter(_git(repository, *words).split("\0"))
    for status in parts:
        if not status:
            return
        name = next(parts)
        if status[0] == "R":
            yield name, next(parts)
        else:
            yield None if status[0] == "A" else name, None if status[0] == "D" else name


def _text_at(repository: Path, revision: str | None, name: str) -> str | None:
    """Return a file's text; None for what is no text of a configuration's size."""
    if revision is not None:
        text = _git(repository, "show", f"{revision}:{name}")
    else:
        root = Path(_git(repository, "rev-parse", "--show-toplevel").strip())
        text = (root / name).read_bytes().decode("utf-8", "replace")
    return None if "\0" in text or len(text) > _LARGEST_FILE else text


def _is_run(name: str | None, text: str) -> bool:
    try:
        find_source(Path(str(name)).name, text)
    except ConfigError:
        return False
    return True


def _priced(name: str, text: str, fields: Mapping[str, Any]) -> tuple[PricedRun, Quote | None]:
    try:
        run = run_of(Path(name), text, fields)
        problem = problem_of(PlanRequest.of({**run.fields(), **fields}))
        quote = price_of(run.asked(problem))
    except ConfigError as error:
        return PricedRun(layout=None, refused=str(error).removeprefix(f"{name}: ")), None
    tokens = quote.layout.gbs * problem.setting.work.seq_len
    priced = PricedRun(
        layout=quote.layout.words(),
        step_s=quote.step_s,
        tokens_per_s_per_gpu=tokens / quote.step_s / problem.num_chips,
        peak_memory_gib=quote.peak_bytes / GIB,
        fits=quote.verdict,
    )
    return priced, quote


def _compared(name: str, versions: Sequence[tuple[PricedRun, Quote | None] | None]) -> ChangedRun:
    before, after = (None if one is None else one[0] for one in versions)
    quotes = [one[1] for one in versions if one is not None and one[1] is not None]
    change, reason = None, ""
    if len(quotes) == len(versions):
        change = _time_per_sequence(quotes[1]) / _time_per_sequence(quotes[0]) - 1
        reason = _reason(*quotes)
    return ChangedRun(
        file=name,
        verdict=_verdict(before, after, change),
        before=before,
        after=after,
        change_frac=change,
        reason=reason,
    )


def _verdict(before: PricedRun | None, after: PricedRun | None, change: float | None) -> Verdict:
    if before is None or after is None:
        return "gone" if after is None else "new"
    old, new = before.fits, after.fits
    if new is None:
        return "does not run" if old is None else "does not run any more"
    if new == "no":
        return "does not fit" if old in ("no", None) else "does not fit any more"
    if old is None or change is None:
        return "runs now"
    if old == "no":
        return "fits now"
    if new == "at risk" and old == "yes":
        return "is at risk now"
    if abs(change) < _LEAST_CHANGE:
        return "as fast"
    return "slower" if change > 0 else "faster"


def _time_per_sequence(quote: Quote) -> float:
    return quote.step_s / quote.layout.gbs


def _reason(before: Quote, after: Quote) -> str:
    """Name the term whose time per sequence moved most, and another batch."""
    old, new = (
        {term: seconds / one.layout.gbs for term, seconds in one.time_s.items()}
        for one in (before, after)
    )
    moved = {term: new.get(term, 0.0) - old.get(term, 0.0) for term in TIME_READINGS}
    sign = 1 if sum(moved.values()) > 0 else -1
    term = max(moved, key=lambda name: sign * moved[name])
    batches = (before.layout.gbs, after.layout.gbs)
    batch = f"; global batch {batches[0]} -> {batches[1]}" if batches[0] != batches[1] else ""
    return f", mostly {TIME_READINGS[term].title}{batch}"

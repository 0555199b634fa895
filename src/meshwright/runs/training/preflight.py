"""What is looked at before a GPU is burnt: each finding with its words; nothing is changed."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np

from meshwright.cost.ends import padded_vocab
from meshwright.data.indexed import IndexedFile
from meshwright.data.verifying import quick_look, verify
from meshwright.platforms.job import Mount, parse_mount
from meshwright.runs.training.prepare import Prepared, divide
from meshwright.runs.training.request import held_out, written
from meshwright.runs.trial import OWN_TRAINER
from meshwright.trainer.checks import VOCAB_MULTIPLE
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.secrets import is_secret
from meshwright.values.units import GIB, HOUR_S, counted, format_count, format_digits

__all__ = ["Finding", "Look", "preflight", "problems", "require_clear"]

Verdict = Literal["ok", "warning", "problem"]
Look = Literal["quick", "full"]
"""At data: the index and a part of the ids, or every byte."""
_PROBE = 1 << 24
"""Ids that are looked at where no manifest says the vocabulary, as in the embedded trainer."""
_LINE_BYTES = 1500
"""Of one report in a log: the embedded trainer's are about 900 bytes, Megatron's 400."""
_MANY_EPOCHS = 4.0
"""Repeated data are worth almost as much as new ones up to about four epochs: Muennighoff et al.,
arXiv:2305.16264."""
_ASKED = re.compile(r"\$\{oc\.env:([A-Za-z_][A-Za-z0-9_]*)\}|\$\{([A-Z][A-Z0-9_]*)\}")
"""Variables of the environment in a configuration, as OmegaConf and shells write them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    words: str


def preflight(prepared: Prepared, *, look: Look = "quick") -> tuple[Finding, ...]:
    """Look at everything that can be seen from here."""
    return tuple(
        Finding(name=name, verdict=verdict, words=words)
        for part in _PARTS
        for name, verdict, words in part(prepared, look)
    )


def problems(findings: Sequence[Finding], *, allow: Collection[str] = ()) -> list[Finding]:
    """Return what stands in the way and is not allowed by name; ConfigError for a wrong name."""
    names = [finding.name for finding in findings]
    for name in allow:
        if name not in names:
            raise UnknownNameError("finding of preflight", name, names)
    return [one for one in findings if one.verdict == "problem" and one.name not in allow]


def require_clear(findings: Sequence[Finding], *, allow: Collection[str] = ()) -> None:
    """Return where nothing stands in the way; ConfigError with the first problem otherwise."""
    for finding in problems(findings, allow=allow):
        raise ConfigError(f"{finding.name}: {finding.words}")


_Found = Iterator[tuple[str, Verdict, str]]


def _layout(prepared: Prepared, _look: Look) -> _Found:
    pool = prepared.problem.setting.pool
    found = divide(prepared.layout, gpus=pool.num_chips, gpus_per_node=pool.node.chips_per_node)
    yield "replicas", "ok" if found.divides else "problem", found.words(prepared.layout)


def _memory(prepared: Prepared, _look: Look) -> _Found:
    limit = prepared.problem.setting.limit_bytes / GIB
    words = f"{prepared.peak_gib:.1f} of {limit:.1f} GiB on the fullest chip, predicted"
    verdict, more = _BY_FIT.get(prepared.fits, ("ok", ""))
    yield "memory", verdict, f"{words}{more}"


_BY_FIT: Mapping[str, tuple[Verdict, str]] = {
    "no": ("problem", ": it does not fit; `meshwright why-oom` has a ladder of fixes"),
    "at risk": ("warning", ": it may not fit, the upper end of the prediction does not"),
}


def _length(prepared: Prepared, _look: Look) -> _Found:
    tokens = prepared.total_steps * prepared.tokens_per_step
    words = (
        f"{counted(prepared.total_steps, 'step')} of {prepared.tokens_per_step:,} tokens:"
        f" {format_count(tokens)} tokens in {_hours(prepared.train_s)} by prediction"
        f" ({_hours(prepared.total_steps * prepared.slow_step_s)} at its slow end)"
    )
    needed, most = prepared.needed_jobs(), prepared.request.most_jobs
    if prepared.limits is not None:
        jobs = "1 job" if needed == 1 else f"{needed} jobs"
        words += f"; {jobs} of {_hours(prepared.limits.steps_s)} of steps each"
    if most is not None and most < needed:
        words += f", and --jobs allows {most}: `meshwright train {prepared.folder}` goes on"
        yield "length", "warning", f"{words} from there"
        return
    if needed > 1 and not prepared.platform.chains:
        words += "; this platform starts none behind another: --follow sends the next, or the"
        words += " same command again"
    yield "length", "ok", words


def _limits(prepared: Prepared, _look: Look) -> _Found:
    limits, platform, software = prepared.limits, prepared.platform, prepared.software
    if limits is None:
        words = "no limit is given (--time); the platform's own holds, if it has one"
        yield "time", "ok" if platform.launcher == "local" else "warning", words
        return
    where = platform.limit.format(time=written(limits.platform_s, platform.form))
    if limits.framework_s is None:
        words = (
            f"{where}; {software.name} knows no end by its own clock: up to"
            f" {prepared.settings.save_interval} steps are lost at the limit"
        )
        yield "time", "warning", words
    else:
        stop = " ".join(software.stop_words(limits.framework_s))
        order = f"{where} > {stop} ({written(limits.framework_s, 'days:hours:minutes:seconds')})"
        words = f"{order} > {limits.margin_s} s to save, of which {limits.needed_s} s are needed"
        short = limits.margin_s < limits.needed_s
        more = ": too few, the last checkpoint may be cut off" if short else ""
        yield "time", "warning" if short else "ok", f"{words} by prediction{more}"
    for caveat in platform.caveats:
        yield "time", "warning", caveat


def _hours(seconds: float) -> str:
    if seconds < 2 * HOUR_S:
        return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
    if seconds < 72 * HOUR_S:
        return f"{seconds / HOUR_S:.1f} h"
    return f"{seconds / HOUR_S / 24:.1f} days"


def _data(prepared: Prepared, look: Look) -> _Found:
    data = prepared.settings.data
    if not data:
        words = "none is given (--data): random or mock tokens, which teach nothing"
        yield "data", "warning", words
    files: list[IndexedFile] = []
    for dataset in data:
        here = _remote(prepared, dataset.path)
        if here is None:
            words = "the job sees it, this machine does not; it was not looked at"
            yield "data", "warning", f"{dataset.path}: {words}"
        elif not prepared.software.reads_indexed:
            yield _text(prepared, here)
        elif (wrong := _wrong(here, look)) is not None:
            yield "data", "problem", wrong
        else:
            files.append(IndexedFile(here))
            yield from _indexed(prepared, here, files[-1], dataset.weight, look)
    tokens = sum(file.num_tokens for file in files)
    epochs = prepared.total_steps * prepared.tokens_per_step / (tokens or math.inf)
    if epochs > _MANY_EPOCHS:
        words = f"{epochs:.1f} epochs of {format_count(tokens)} tokens: repeated data teach less"
        yield "data", "warning", f"{words} beyond about four"


def _text(prepared: Prepared, here: str) -> tuple[str, Verdict, str]:
    there, verdict = "it is there", "ok"
    if not Path(here).exists():
        there, verdict = "it is not there, unless that is a name of Hugging Face's", "warning"
    words = f"{here}: text that {prepared.software.name} reads itself; {there}"
    return "data", cast("Verdict", verdict), words


def _wrong(here: str, look: Look) -> str | None:
    """What is wrong with a pair of .bin and .idx; None where nothing is."""
    try:
        found = verify([here])[0] if look == "full" else quick_look(here)
    except ConfigError as error:
        return str(error)
    failed = (f"{here}: {one.name}: {one.found}" for one in found.checks if not one.passed)
    return next(failed, None)


def _indexed(prepared: Prepared, here: str, file: IndexedFile, weight: float, look: Look) -> _Found:
    own = prepared.software.name == OWN_TRAINER
    if file.num_documents < 2 and own and held_out(prepared.settings) is not None:
        words = "1 document, and one is held out for the validation loss: nothing is left;"
        yield "data", "problem", f"{here}: {words} --setting split=100,0,0 holds none out"
    how = "its index fits its ids (--verify-data reads every byte)"
    if look == "full":
        how = "every byte was read"
    documents, tokens = counted(file.num_documents, "document"), format_count(file.num_tokens)
    yield "data", "ok", f"{here}: {documents}, {tokens} tokens, weight {weight:g}; {how}"


def _remote(prepared: Prepared, path: str) -> str | None:
    """Return a path of the job as this machine sees it; None where it does not."""
    mounts = _mounts(prepared)
    if mounts is None:
        return path
    for mount in mounts:
        if mount.kind == "path" and _is_below(path, mount.target):
            here = mount.source + path[len(mount.target.rstrip("/")) :]
            if Path(f"{here}.idx").exists() or Path(here).exists() or Path(mount.source).is_dir():
                return here
            return None
    return None


def _mounts(prepared: Prepared) -> tuple[Mount, ...] | None:
    """Return what a container sees; None where the job sees what this machine does."""
    options = prepared.request.options()
    if prepared.platform.sees_here and options.image is None:
        return None
    return tuple(map(parse_mount, options.mounts))


def _is_below(path: str, folder: str) -> bool:
    return path == folder.rstrip("/") or path.startswith(folder.rstrip("/") + "/")


def _vocabulary(prepared: Prepared, _look: Look) -> _Found:
    setting = prepared.problem.setting
    vocab, own = setting.model.vocab, prepared.software.name == OWN_TRAINER
    multiple = VOCAB_MULTIPLE if own else setting.stack.vocab_multiple
    tp = np.array([1.0 if own else float(prepared.layout.tp)])
    padded = int(padded_vocab(vocab, tp, multiple)[0])
    words = (
        f"the model has {vocab:,} ids, padded to {padded:,} (multiples of"
        f" {multiple}{'' if own or tp[0] == 1 else f' * tp {tp[0]:.0f}'})"
    )
    worst: tuple[int, str] | None = None
    for dataset in prepared.settings.data if prepared.software.reads_indexed else ():
        here = _remote(prepared, dataset.path)
        most = None if here is None else _highest(here)
        if most is not None and (worst is None or most > worst[0]):
            worst = (most, str(here))
    if worst is None:
        yield "vocabulary", "ok", words
    elif worst[0] >= vocab:
        fix = f"train with vocab={worst[0] + 1} or more, or tokenize with the model's own tokenizer"
        yield "vocabulary", "problem", f"{words}, and {worst[1]} has id {worst[0]:,}: {fix}"
    else:
        yield "vocabulary", "ok", f"{words}; the highest id seen in the data is {worst[0]:,}"


def _highest(prefix: str) -> int | None:
    """The highest of the first ids; None where the pair is broken, which is said elsewhere."""
    try:
        return int(IndexedFile(prefix).tokens[:_PROBE].max(initial=0))
    except (ConfigError, OSError, ValueError):
        return None


def _storage(prepared: Prepared, _look: Look) -> _Found:
    settings = prepared.settings
    size, params = prepared.checkpoint.total_bytes, prepared.checkpoint.params
    keeps = prepared.keeps
    writes = -(-prepared.total_steps // (settings.save_interval or prepared.total_steps))
    kept = writes if keeps is None else min(keeps, writes)
    logs = prepared.total_steps / (settings.log_interval or 1) * _LINE_BYTES
    peak = (kept + 1) * size + logs
    how = f"all {writes} stay" if keeps is None else f"{kept} stay"
    words = (
        f"a checkpoint is {_gib(size)} ({size / params:.3g} bytes * {format_count(params)}"
        f" parameters), one every {settings.save_interval:,} steps, {how} and one is being written;"
        f" logs {_gib(logs)}: {_gib(peak)}"
    )
    if (lost := _lost(prepared)) is not None:
        yield "storage", "problem", f"checkpoints go to {settings.save_dir or ''}, {lost}"
    free, what = _free(prepared)
    if free is None:
        words += f"; {settings.save_dir or ''} is not seen from here, and no --quota is given"
        yield "storage", "warning", words
    elif peak > free:
        words += f", and {what} is {_gib(free)}; save less often, keep fewer, or save elsewhere"
        yield "storage", "problem", words
    else:
        yield "storage", "ok", f"{words}, of {what} {_gib(free)}"


def _lost(prepared: Prepared) -> str | None:
    """Why checkpoints would go with the container or the node; None where they stay."""
    mounts, platform = _mounts(prepared), prepared.platform
    if mounts is None:
        return None
    at = [mount for mount in mounts if _is_below(prepared.settings.save_dir or "", mount.target)]
    if all(mount.read_only for mount in at):
        return "which no writable mount of the container holds: give --mount and --save-dir"
    if platform.copies_paths and not any("://" in mount.source for mount in at):
        return (
            f"a path that {platform.launcher} copies to each node and drops with it: mount a"
            " bucket, such as --mount s3://NAME:/ckpt, and give --save-dir"
        )
    return None


def _gib(count: float) -> str:
    return f"{format_digits(count / GIB)} GiB"


def _free(prepared: Prepared) -> tuple[float | None, str]:
    if prepared.request.quota_bytes is not None:
        return float(prepared.request.quota_bytes), "the quota"
    here = _remote(prepared, prepared.settings.save_dir or "")
    if here is None:
        return None, ""
    place = Path(here)
    while not place.exists() and place != place.parent:
        place = place.parent
    return float(shutil.disk_usage(place).free), "what is free there"


def _container(prepared: Prepared, _look: Look) -> _Found:
    options = prepared.request.options()
    try:
        prepared.written(number=1, label="mw-0-1")
    except ConfigError as error:  # what the platform can't do without, or has no word for
        yield "job", "problem", str(error)
    if options.image is None:
        words = "none: the program runs by the nodes' own software, and sees their paths"
        yield "image", "ok", words
        return
    mounts = ", ".join(options.mounts)
    words = f"{options.image}; it sees {mounts or 'nothing outside itself (--mount)'}"
    yield "image", "ok" if mounts else "warning", words


def _environment(prepared: Prepared, _look: Look) -> _Found:
    job = prepared.job()
    given = {variable.name: variable.value for variable in job.environment}
    hidden = {name: "***" if is_secret(name) else value for name, value in given.items()}
    taken = [f"{name} (from your shell, or the platform's secrets)" for name in job.secrets]
    listed = ", ".join([*(f"{name}={value}" for name, value in hidden.items()), *taken]) or "none"
    yield "environment", "ok", f"set for the program: {listed}"
    unset = [name for name in job.secrets if name not in os.environ]
    if unset and prepared.platform.sees_here:
        yield "environment", "problem", f"not set in this shell: {', '.join(unset)}"
    given |= dict.fromkeys(job.secrets, "")
    inherits = prepared.platform.sees_here and prepared.request.options().image is None
    texts = [*job.command, *(file.text for file in job.files)]
    asked = sorted(
        {name for text in texts for pair in _ASKED.findall(text) for name in pair if name}
    )
    absent = [name for name in asked if name not in given and not (inherits and name in os.environ)]
    if absent:
        words = f"the program's files read {', '.join(absent)}, which nothing sets"
        yield "environment", "problem", f"{words}: --env {absent[0]}=..."


def _adds(prepared: Prepared, _look: Look) -> _Found:
    """What training adds to the plan, which says none of it."""
    settings = prepared.settings
    added = [f"save_dir={settings.save_dir}", f"save_interval={settings.save_interval}"]
    added += [f"load_dir={settings.load_dir}"] if settings.load_dir else []
    added += [" ".join(prepared.stop_words)] if prepared.stops_itself else []
    yield "adds", "ok", f"to the plan's own words: {'; '.join(added)}"


_PARTS: tuple[Callable[[Prepared, Look], _Found], ...] = (
    *(_layout, _memory, _length, _limits, _data, _vocabulary),
    *(_storage, _container, _environment, _adds),
)

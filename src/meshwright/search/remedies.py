"""Where nothing fits: the layout that comes nearest, and the least changes under which one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from meshwright.search.axes import axes_of
from meshwright.search.exhaustive import Found, search_space
from meshwright.search.finetune import FINETUNE_STACK, USUAL_RANK, is_usual_case, with_host
from meshwright.search.problem import Files, Problem, problem_on
from meshwright.search.quote import quotes
from meshwright.search.refine import reprice
from meshwright.search.request import Finetune
from meshwright.search.result import NearestMiss, Plan, Remedy
from meshwright.search.rules.software import stack_rules
from meshwright.search.space import Rejections, make_space
from meshwright.values.errors import ConfigError
from meshwright.values.units import GIB
from meshwright.values.workload import Frozen

__all__ = ["has_more_ways", "nearest_miss", "way_notes", "with_chips"]

MOST_DOUBLINGS = 12
"""Clusters of up to 4096 times the chips are tried for a plan that fits."""
MOST_HOST_DOUBLINGS = 5
"""Up to 16 times the main memory is tried."""
LEAST_SEQUENCE = 512
"""Sequences are not shortened below it: tokens of a short dialogue."""


def with_chips(problem: Problem, num_chips: int) -> Problem:
    """Return the problem on another number of the same chips."""
    setting = problem.setting
    return replace(
        problem, setting=replace(setting, pool=replace(setting.pool, num_chips=num_chips))
    )


def nearest_miss(problem: Problem, misses: Found) -> NearestMiss:
    """Return the layout that needs least memory, and changes under which one fits."""
    [priced] = reprice(problem, [misses.layouts.row(0)])
    return NearestMiss(
        layout=priced.layout,
        over_bytes=priced.peak_bytes - problem.setting.limit_bytes,
        memory_bytes=priced.memory_bytes,
        remedies=tuple(_remedies(problem)),
    )


def _remedies(problem: Problem) -> Iterator[Remedy]:
    """Without the pins, with less to train or more beside the chips, on more chips, and without
    pins on more chips."""
    free = replace(problem, request=problem.request.model_copy(update={"pins": {}}))
    if problem.request.pins:
        found = _first_fit(free)
        if found is not None:
            yield _remedy(
                free,
                found,
                "leave the pins out: --set "
                + " --set ".join(f"{k}=..." for k in problem.request.pins),
            )
    yield from _changed(problem, _host_changes, _finetune_changes, _length_changes)
    yield from _more_chips(problem, free)
    yield from _changed(problem, _adapter_changes)


def _more_chips(problem: Problem, free: Problem) -> Iterator[Remedy]:
    """The chips doubled until a layout fits, or else one without pins does."""
    for case, words in ((problem, ""), (free, " and no pins")):
        if words and not problem.request.pins:
            continue
        for doubling in range(1, MOST_DOUBLINGS):
            larger = with_chips(case, problem.num_chips * 2**doubling)
            found = _first_fit(larger)
            if found is not None:
                chip = problem.setting.pool.node.chip.name
                yield _remedy(
                    larger, found, f"more chips: --cluster {chip}:{larger.num_chips}{words}"
                )
                return


def _changed(
    problem: Problem, *kinds: Callable[[Problem], Iterator[tuple[Problem, str]]]
) -> Iterator[Remedy]:
    """The least change of each kind after which it fits on the same chips."""
    for kind in kinds:
        for case, words in kind(problem):
            found = _first_fit(case)
            if found is not None:
                yield _remedy(case, found, words)
                break


def _host_changes(problem: Problem) -> Iterator[tuple[Problem, str]]:
    """More main memory for what waits there, doubled until it is enough."""
    host = problem.setting.pool.node.host
    if problem.request.finetune is None:
        return
    if host is None or len(stack_rules(problem.setting.stack).offloads) < 2:
        return
    for doubling in range(1, MOST_HOST_DOUBLINGS):
        size = host.memory_bytes * 2**doubling
        request = problem.request.model_copy(update={"host_memory_gib": size / GIB})
        pool = with_host(problem.setting.pool, request)
        setting = replace(problem.setting, pool=pool)
        changed = replace(problem, request=request, setting=setting, ways="all")
        yield changed, f"more main memory for offloading: --host-memory-gib {size / GIB:g}"


def _finetune_changes(problem: Problem) -> Iterator[tuple[Problem, str]]:
    """Adapters in place of all weights; frozen weights in four bits."""
    request, work = problem.request, problem.setting.work
    if request.finetune is None:
        return
    rank = work.lora_rank or USUAL_RANK
    able = "nf4" in stack_rules(problem.setting.stack).frozen
    steps: tuple[tuple[Finetune, Frozen, bool], ...] = (
        ("lora", "half", request.finetune == "full"),
        ("qlora", "nf4", request.finetune != "qlora" and able),
    )
    for word, frozen, is_less in steps:
        if is_less:
            changed = replace(work, lora_rank=rank, frozen=frozen)
            asked = request.model_copy(update={"finetune": word, "lora_rank": rank})
            setting = replace(problem.setting, work=changed)
            yield replace(problem, request=asked, setting=setting), f"--finetune {word}"


def _adapter_changes(problem: Problem) -> Iterator[tuple[Problem, str]]:
    """For a training from the start, which people at home may not mean: adapters of a model that is
    there already, in the usual software of one server's GPUs."""
    request, pool = problem.request, problem.setting.pool
    measured = request.calibration or request.profile  # of the software that was asked for
    if (
        request.finetune is not None
        or measured
        or not is_usual_case([pool.node.chip], pool.num_chips)
    ):
        return
    for word in ("lora", "qlora"):
        asked = request.model_copy(
            update={"finetune": word, "lora_rank": USUAL_RANK, "stack": FINETUNE_STACK}
        )
        words = f"adapters of trained weights: --finetune {word} --stack {FINETUNE_STACK}"
        try:
            yield problem_on(with_host(pool, asked), asked, Files()), words
        except ConfigError:  # that software does not train this model or in this format
            return


def _length_changes(problem: Problem) -> Iterator[tuple[Problem, str]]:
    """Shorter sequences, halved."""
    if problem.request.finetune is None:
        return
    work = problem.setting.work
    length = work.seq_len // 2
    while length >= LEAST_SEQUENCE:
        packed = None if work.sample_len is None else min(work.sample_len, length)
        request = problem.request.model_copy(update={"seq_len": length, "sample_len": packed})
        changed = replace(work, seq_len=length, sample_len=packed)
        setting = replace(problem.setting, work=changed)
        yield replace(problem, request=request, setting=setting), f"shorter: --seq {length}"
        length //= 2


def has_more_ways(problem: Problem) -> bool:
    """Whether the software has offloading or optimizers that a search does not try unasked."""
    rules = stack_rules(problem.setting.stack)
    more = set(rules.offloads) > set(rules.searched_offloads) or len(rules.optimizers) > 1
    return (
        problem.ways == "usual"
        and more
        and not {"offload", "optimizer"} <= set(problem.request.pins)
    )


def way_notes(problem: Problem, plans: Sequence[Plan]) -> tuple[str, ...]:
    """Say what the best plan keeps on its host, or in another format, and why."""
    if not plans:
        return ()
    best = plans[0].layout
    notes = []
    if problem.ways == "all":
        notes.append(
            "without offloading or another optimizer nothing fits; --set offload=none --set"
            " optimizer=adam leaves them out"
        )
    host = problem.setting.pool.node.host
    if best.offload != "none" and host is not None:
        [quote] = quotes([best], problem.setting)
        memory, drives = (size / GIB for size in quote.host_bytes)
        on_drives = f" and {drives:.0f} GiB of its drives" if drives else ""
        notes.append(
            f"#1 takes {memory:.0f} of {host.memory_bytes / GIB:.0f} GiB of a server's main"
            f" memory{on_drives}, by --host-memory-gib"
        )
    return tuple(notes)


def _first_fit(problem: Problem) -> Found | None:
    """The best layout that fits, if any."""
    rejections = Rejections()
    space = make_space(problem, axes_of(problem), rejections)
    if not len(space.grid):
        return None
    return search_space(problem, space, rejections).fitting


def _remedy(problem: Problem, found: Found, change: str) -> Remedy:
    [priced] = reprice(problem, [found.layouts.row(0)])
    return Remedy(
        change=change,
        num_chips=problem.num_chips,
        layout=priced.layout,
        step_s=priced.step_s,
        peak_bytes=priced.peak_bytes,
    )

"""Size and estimate of a training as text for people: every figure with the constants behind it."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.exports.defaults import complete_settings
from meshwright.exports.settings import TrainingSettings
from meshwright.models.params import model_params
from meshwright.models.spec import ModelSpec
from meshwright.search.result import Plan
from meshwright.sizing.closed_form import CLASSIC_FLOPS, TOKENS_PER_PARAM
from meshwright.sizing.duration import Duration
from meshwright.sizing.estimate import RunEstimate
from meshwright.sizing.size import Sized, SizeResult
from meshwright.units import (
    DAY_S,
    GIB,
    HOUR_S,
    TERA,
    counted,
    format_count,
    format_digits,
    format_seconds,
)

__all__ = ["estimate_lines", "layout_words", "shape_words", "size_lines"]


def estimate_lines(found: RunEstimate) -> list[str]:
    """Return the page of an estimate whose request has a plan."""
    assert found.plan is not None and found.run is not None
    facts, run = found.result.facts, found.run
    low, high = (end / DAY_S for end in run.interval_s)
    lines = [
        (
            f"{facts['model']} ({format_count(facts['params'])} parameters) on {facts['num_chips']}"
            f" x {facts['chip']}, {format_count(run.tokens)} tokens"
        ),
        "",
        (
            f"Days        {format_digits(run.wall_s / DAY_S)}  (80 % interval {format_digits(low)}"
            f" to {format_digits(high)})"
        ),
        (
            f"  steps     {format_digits(run.train_s / DAY_S)}  {counted(run.steps, 'step')} of"
            f" {format_seconds(run.step_s)}"
        ),
        f"  eval      {run.eval_s / DAY_S:.2g}  {_evaluations(found)}",
        (
            f"  lost      {run.overhead_s / DAY_S:.2g}  goodput {run.goodput.share:.1%}:"
            f" {_failures(found)}"
        ),
        *_cost_lines(run, found),
        "",
        f"Plan        {layout_words(found.plan)}",
        f"            {_plan_words(found.plan)}",
        _classic_line(found),
    ]
    if found.broken:
        lines += [
            "",
            *(f"Limit broken: it {words}." for words in found.broken),
            *_other_lines(found),
        ]
    return lines


def _evaluations(found: RunEstimate) -> str:
    training = found.training
    if training.eval_interval is None or not training.eval_steps:
        return "none"
    return (
        f"{training.eval_steps} batches every {training.eval_interval:,} steps, a third of a step"
        " each"
    )


def _failures(found: RunEstimate) -> str:
    assert found.run is not None
    kept, reliability = found.run.goodput, found.training.reliability
    bytes_per_param = kept.checkpoint_bytes / found.result.facts["params"]
    return (
        f"a failure every {format_digits(kept.mtbf_s / HOUR_S)} h"
        f" ({reliability.chip_mtbf_s / HOUR_S:,.0f} h a chip),"
        f" {format_digits(reliability.restart_s / 60)} min to restart,\n            a checkpoint"
        f" every {format_digits(kept.interval_s / 60)} min that takes"
        f" {format_seconds(kept.write_s)} ({bytes_per_param:.3g} bytes a parameter at"
        f" {reliability.write_bytes_per_s_per_node / 1e9:.3g} GB/s a node)"
    )


def _cost_lines(run: Duration, found: RunEstimate) -> Iterator[str]:
    if run.usd is None:
        yield (
            "Cost        unknown: no price of a chip; --usd-per-hour says one"
            f" ({run.chip_hours:,.0f} chip-hours)"
        )
    else:
        yield (
            f"Cost        {format_count(run.usd)} USD  {run.chip_hours:,.0f} chip-hours at"
            f" {run.usd_per_chip_hour:.3g} USD"
        )
    footprint = found.training.footprint
    if run.kwh is not None and run.kg_co2 is not None:
        yield (
            f"Energy      {format_digits(run.kwh / 1000)} MWh  {run.watts_per_chip:,.0f} W a chip:"
            f" its limit x {footprint.power_share:g} for the server x {footprint.pue:g} for the"
            " building"
        )
        yield (
            f"Carbon      {format_digits(run.kg_co2 / 1000)} t CO2  at {footprint.kg_co2_per_kwh:g}"
            " kg/kWh"
        )


def _classic_line(found: RunEstimate) -> str:
    assert found.classic_s is not None
    return (
        f"Closed form {format_digits(found.classic_s / DAY_S)} days: {CLASSIC_FLOPS:.0f} FLOP per"
        f" parameter and token at {format_digits(found.classic_tflops)} TFLOPS a chip (as NVIDIA's"
        " AutoConfigurator; --tflops)"
    )


def _other_lines(found: RunEstimate) -> Iterator[str]:
    for other in found.others:
        kept = "" if found.limits.broken_by(other) else "  keeps the limits"
        usd = "" if other.usd is None else f", {format_count(other.usd)} USD"
        yield f"  on {other.chips:,} chips: {format_digits(other.wall_s / DAY_S)} days{usd}{kept}"
    if found.nearest is None:
        yield "No number of these chips that was tried keeps the limits."


def layout_words(plan: Plan) -> str:
    """Return the axes of a plan that differ from one."""
    layout = plan.layout
    axes = ("tp", "cp", "pp", "vpp", "ep", "dp")
    cut = [f"{name}={getattr(layout, name)}" for name in axes if getattr(layout, name) > 1]
    return ",".join(
        [*cut, f"mbs={layout.mbs}", f"gbs={layout.gbs}", f"recompute={layout.recompute}"]
    )


def _plan_words(plan: Plan) -> str:
    return (
        f"step {format_seconds(plan.step_s)}, {plan.tokens_per_s_per_gpu:,.0f} tokens/s per chip,"
        f" MFU {plan.mfu:.1%}, {plan.flops_per_s_per_gpu / TERA:.0f} TFLOPS,"
        f" {plan.peak_bytes / GIB:.1f} GiB, fits: {plan.fits}"
    )


def size_lines(found: SizeResult) -> list[str]:
    """Return the page of a size."""
    budget = found.budget
    tokens = (
        f"{TOKENS_PER_PARAM:.0f} tokens a parameter"
        if budget.tokens is None
        else f"{format_count(budget.tokens)} tokens"
    )
    lines = [
        (
            f"{counted(budget.chips, 'chip')} for {budget.seconds / DAY_S:.4g} days, {tokens},"
            f" models like {found.series}"
        ),
        "",
        (
            f"Closed form  {format_count(found.classic)}  {CLASSIC_FLOPS:.0f} FLOP per parameter"
            f" and token at {budget.flops_per_s_per_chip / TERA:.4g} TFLOPS a chip\n            "
            " (NVIDIA's AutoConfigurator; memory and layouts not looked at)"
        ),
    ]
    if found.best is None:
        return [
            *lines,
            "Predicted    none: no size that was tried trains in time and fits",
            *_tried_lines(found),
        ]
    return [*lines, *_best_lines(found.best, found), *_advice_lines(found), *_tried_lines(found)]


def _best_lines(best: Sized, found: SizeResult) -> Iterator[str]:
    assert best.plan is not None and best.run is not None and best.days is not None
    made = best.shape.like if best.shape.published else f"like {best.shape.like}"
    low, high = (end / DAY_S for end in best.run.interval_s)
    days = (
        f"{format_digits(best.days)} days (80 % interval {format_digits(low)} to"
        f" {format_digits(high)})"
    )
    yield f"Predicted    {format_count(best.shape.params)}  {days}, {made}"
    yield f"             {layout_words(best.plan)}"
    yield f"             {_plan_words(best.plan)}"
    yield f"Shape        {shape_words(best.shape.model)}"
    yield f"Settings     {_settings_words(best)}"


def shape_words(model: ModelSpec) -> str:
    """Return the dims of a model, in words that `meshwright plan` reads where it is a plain
    decoder."""
    layers = (
        f"layers={model.num_layers}"
        if not model.encoder_layers
        else f"encoder_layers={model.encoder_layers},layers={model.num_layers}"
    )
    parts = [
        layers,
        f"hidden={model.hidden}",
        f"heads={model.num_heads}",
        f"kv_heads={model.num_kv_heads}",
        f"head_dim={model.head_dim}",
    ]
    parts += [f"ffn={model.ffn}", f"vocab={model.vocab}"]
    if model.moe is not None:
        parts += [
            f"experts={model.moe.num_experts}",
            f"topk={model.moe.top_k}",
            f"expert_ffn={model.moe.expert_ffn}",
        ]
    return ",".join(parts)


def _settings_words(best: Sized) -> str:
    assert best.plan is not None and best.run is not None
    work = best.problem.setting.work
    steps = best.run.steps
    full = complete_settings(TrainingSettings(train_steps=steps), model=best.shape.model, work=work)
    return (
        f"learning rate {full.learning_rate:g} to {full.min_learning_rate:g} ({full.decay_style}),"
        f" warm-up {full.warmup_steps:,} of {steps:,} steps,\n             init std"
        f" {full.init_std:g}, gbs {best.plan.layout.gbs} (rules: docs/export.md)"
    )


def _advice_lines(found: SizeResult) -> Iterator[str]:
    best, optimal = found.best, found.optimal
    assert best is not None and best.run is not None and optimal is not None
    ratio = best.run.tokens / model_params(best.shape.model).active
    yield (
        f"Chinchilla   for this compute the least loss is at {format_count(optimal.params)}"
        f" parameters on {format_count(optimal.tokens)} tokens;\n             yours has {ratio:.3g}"
        f" tokens a parameter, the rule says {TOKENS_PER_PARAM:.0f} (arXiv:2203.15556)"
    )
    if found.exponent is not None:
        growth = 1.1 ** (1 / found.exponent)
        yield (
            f"Sensitivity  10 % more days or chips: {growth - 1:+.0%} size; steps 10 % slower:"
            f" {1 / growth - 1:+.0%}"
        )


def _tried_lines(found: SizeResult) -> Iterator[str]:
    tried = [
        f"{format_count(s.shape.params)}:"
        f" {'does not fit' if s.days is None else f'{format_digits(s.days)} days'}"
        for s in found.tried
    ]
    yield f"Tried        {'; '.join(tried)}"

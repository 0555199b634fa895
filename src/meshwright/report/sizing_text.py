"""Size and estimate of a training as text for people: every figure with the constants behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.runs.measured.fit import RunMiss
from meshwright.search.result import Plan
from meshwright.sizing.checkpoints import CheckpointPlan, CheckpointSize
from meshwright.sizing.duration import Duration
from meshwright.sizing.estimate import RunEstimate
from meshwright.sizing.size import CLASSIC_FLOPS, TOKENS_PER_PARAM, Sized, SizeResult
from meshwright.software.defaults import complete_settings
from meshwright.software.settings import TrainingSettings
from meshwright.trust.calibration import Calibration, Misses
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import (
    DAY_S,
    GB,
    GIB,
    HOUR_S,
    MICROSECOND,
    MINUTE_S,
    TERA,
    counted,
    format_bytes,
    format_count,
    format_digits,
    format_seconds,
)

__all__ = [
    "calibration_lines",
    "checkpoint_lines",
    "estimate_lines",
    "layout_words",
    "shape_words",
    "size_lines",
]


def calibration_lines(calibration: Calibration, runs: Sequence[RunMiss]) -> list[str]:
    """Return what `calibrate` prints."""
    lines = [calibration.words(), "", f"{'factor':<12} {'value':>7}  measured  usually within"]
    for factor in calibration.factors:
        lines.append(
            f"{factor.name:<12} {factor.value:>7.3f} {factor.measured_frac:>9.0%}  x1 +-"
            f" {factor.prior_width:.0%}"
        )
    if not calibration.factors:
        lines.append("none: no run tells any")
    for rates in calibration.links:
        lines.append(
            f"link {rates.name}: {rates.bytes_per_s / GB:.1f} GB/s,"
            f" {rates.latency_s / MICROSECOND:.2f} us ({rates.source})"
        )
    for name, misses in (
        ("step time", calibration.step_time),
        ("peak memory", calibration.peak_memory),
    ):
        if misses is not None:
            lines += ["", _misses(name, misses)]
            lines += [f"  {_run(run)}" for run in runs if run.quantity == name]
    return lines


def _misses(name: str, misses: Misses) -> str:
    fitted = f"{name}, mean error: {misses.before_frac:.1%} before, {misses.after_frac:.1%} after"
    if misses.left_out_frac is None:
        return f"{fitted}; one run can't be left out, so nothing says how well it holds elsewhere"
    return (
        f"{fitted} on the {misses.runs} runs themselves, {misses.left_out_frac:.1%} with each left"
        " out of its fit"
    )


def _run(run: RunMiss) -> str:
    left_out = "" if run.left_out is None else f", left out {run.left_out - 1:+.1%}"
    return f"{run.before - 1:+.1%} before, {run.after - 1:+.1%} after{left_out}: {run.words}"


def checkpoint_lines(found: CheckpointPlan) -> list[str]:
    """Return the page."""
    size, machine, reliability = found.size, found.machine, found.machine.reliability
    interval = (
        f"{format_digits(found.best_interval_s / MINUTE_S)} min{_steps(found)} loses least (Daly"
        " 2006)"
    )
    return [
        (
            f"{found.model} ({format_count(size.params)} parameters) on {machine.chips} x"
            f" {machine.chip}, {_nodes(machine.nodes)}, stack {found.stack}"
        ),
        "",
        (
            f"Checkpoint  {format_bytes(size.total_bytes)}  {size.total_bytes / size.params:.4g}"
            f" bytes a parameter: {_parts(size)}"
        ),
        (
            f"Write       {format_seconds(found.write_s)}  {_nodes(machine.nodes)} at"
            f" {reliability.write_bytes_per_s_per_node / 1e9:.3g} GB/s each, while no step runs"
        ),
        (
            f"Interval    {interval}: {_share(found.best_share)}; a failure every\n           "
            f" {format_digits(found.mtbf_s / HOUR_S)} h ({reliability.chip_mtbf_s / HOUR_S:,.0f} h"
            f" a chip), {reliability.restart_s / MINUTE_S:.3g} min to restart"
        ),
        f"Saves       every {found.schedule.save_every:,} steps{_asked(found)}",
        f"Keeps       {_kept(found)}",
        f"Peak disk   {format_bytes(found.peak_bytes)}  {_peak(found)}",
        *_quota(found),
        *_simulated(found),
    ]


def _nodes(count: int) -> str:
    return counted(count, "node")


def _parts(size: CheckpointSize) -> str:
    parts = [
        ("weights", size.weight_bytes),
        ("master copy", size.master_bytes),
        ("optimizer states", size.state_bytes),
    ]
    return " + ".join(f"{count / size.params:.4g} {name}" for name, count in parts if count)


def _share(share: float | None) -> str:
    return (
        "hardly any run reaches its next checkpoint"
        if share is None
        else f"{share:.2%} of the time trains"
    )


def _steps(found: CheckpointPlan) -> str:
    steps = found.best_interval_steps
    return (
        ""
        if steps is None
        else f" ({steps:,} steps of {format_seconds(found.schedule.step_s or 0.0)})"
    )


def _asked(found: CheckpointPlan) -> str:
    step_s = found.schedule.step_s
    if step_s is None:
        return "; how long that is needs --step-s, or --seq and --gbs for the best plan's step"
    return (
        f" = {format_digits(found.schedule.save_every * step_s / MINUTE_S)} min:"
        f" {_share(found.asked_share)}"
    )


def _kept(found: CheckpointPlan) -> str:
    rule = found.rule
    parts = [f"the best {rule.best} by validation loss"] if rule.best else []
    parts.append("the newest" if rule.last == 1 else f"the newest {rule.last}")
    if rule.keep_every is not None:
        parts.append(f"each at a multiple of {rule.keep_every:,} steps")
    return ", ".join(parts) + ("; older ones without optimizer states" if rule.drop_states else "")


def _peak(found: CheckpointPlan) -> str:
    full = f"{found.peak_full} x {format_bytes(found.size.total_bytes)}"
    stripped = (
        f" + {found.peak_stripped} x {format_bytes(found.size.without_states_bytes)}"
        if found.peak_stripped
        else ""
    )
    return f"{full}{stripped}, one of them being written"


def _quota(found: CheckpointPlan) -> Iterator[str]:
    if found.quota_bytes is None:
        return
    if found.fits:
        yield (
            f"Quota       {format_bytes(found.quota_bytes)}:"
            f" {format_bytes(found.quota_bytes - found.peak_bytes)} are left"
        )
        return
    yield (
        f"Quota       {format_bytes(found.quota_bytes)}: too small by"
        f" {format_bytes(found.peak_bytes - found.quota_bytes)}"
    )
    if found.fitting_best is None:
        yield "            not even --best 0 would fit"
    else:
        yield f"            --best {found.fitting_best} would fit"
    if not found.rule.drop_states:
        yield "            --drop-states keeps optimizer states of the newest alone"


def _simulated(found: CheckpointPlan) -> Iterator[str]:
    if not found.moments:
        return
    yield ""
    yield f"{'step':>9}  {'loss':>8}  {'on disk':>7}  {'GiB':>9}  {'peak GiB':>9}  goes"
    for moment in found.moments:
        loss = "-" if moment.saved.loss is None else f"{moment.saved.loss:.4f}"
        goes = [
            *(f"{step:,}" for step in moment.choice.delete),
            *(f"states of {step:,}" for step in moment.choice.strip),
        ]
        disk = (
            f"{len(moment.kept):>7}  {moment.bytes / GIB:>9,.1f}  {moment.peak_bytes / GIB:>9,.1f}"
        )
        yield f"{moment.saved.step:>9,}  {loss:>8}  {disk}  {', '.join(goes) or '-'}"
    last = found.moments[-1]
    yield (
        "at the end "
        f" {', '.join(f'{one.step:,}' + ('' if one.has_states else ' (weights)') for one in last.kept)}"  # noqa: E501
    )


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
    """Return the dims of a model, for a plain decoder in words that `meshwright plan` reads."""
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

"""Length, data and checkpoints in Megatron-LM's flags: what the table of bound flags can't hold."""

from __future__ import annotations

from meshwright.errors import CannotExpress
from meshwright.exports.defaults import train_steps
from meshwright.exports.megatron_lm._layout import uses_fsdp
from meshwright.exports.megatron_lm._tables import NAME, Words
from meshwright.exports.plan import TrainingPlan

__all__ = ["write_training"]

_STABLE_SHARE = 10
"""The last tenth of a warm-up, stable, decay run decays (MiniCPM, arXiv:2404.06395)."""


def write_training(words: Words, plan: TrainingPlan) -> None:
    """Add what the bound flags do not say of the settings."""
    _write_schedule(words, plan)
    _write_data(words, plan)
    words.add(
        "checkpoints",
        "--ckpt-format",
        "fsdp_dtensor" if uses_fsdp(plan.layout) and words.version >= (0, 14) else "torch_dist",
    )
    words.add("checkpoints", "--log-throughput")
    words.add("checkpoints", "--distributed-timeout-minutes", 60)
    if plan.work.dropout and not plan.details.dropout:
        raise CannotExpress(
            NAME,
            "the workload keeps dropout masks, but details.dropout is 0",
            nearest="details.dropout=0.1",
        )


def _write_schedule(words: Words, plan: TrainingPlan) -> None:
    """Decay lasts the whole run; with samples, Megatron-LM counts warm-up and decay in samples
    too."""
    settings, gbs = plan.settings, plan.layout.gbs
    steps = train_steps(settings, plan.work)
    unit, per_step = ("iters", 1) if settings.train_samples is None else ("samples", gbs)
    whole = settings.train_samples or steps
    warmup = settings.warmup_steps
    assert warmup is not None
    words.add("training", f"--lr-warmup-{unit}", warmup * per_step)
    words.add("training", f"--lr-decay-{unit}", whole)
    if settings.decay_style == "warmup-stable-decay":
        words.add("training", "--lr-wsd-decay-style", "exponential")
        words.add("training", f"--lr-wsd-decay-{unit}", max(1, whole // _STABLE_SHARE))


def _write_data(words: Words, plan: TrainingPlan) -> None:
    settings = plan.settings
    if not settings.data:
        words.add("data", "--mock-data")
    elif len(settings.data) == 1 and settings.data[0].weight == 1:
        words.add("data", "--data-path", settings.data[0].path)
    else:
        words.add(
            "data",
            "--data-path",
            *(word for dataset in settings.data for word in (f"{dataset.weight:g}", dataset.path)),
        )

"""NeMo 1.x's progress bar and NeMo 2.0's progress printer.

Read from NeMo's nemo/collections/nlp/parts/nlp_overrides.py (`CustomProgressBar`) and
nemo/utils/exp_manager.py (`TimingCallback`) at v1.23.0, and
nemo/lightning/pytorch/callbacks/progress_printer.py of September 2025 (after 2.4). The bar is
tqdm's, drawn again and again behind a carriage return, with `train_step_timing in s=12.60` in its
postfix (newer loggers write `train_step_timing_in_s`), numbers in five characters as Lightning's
`Tqdm.format_num` has them; its count is of steps that are done. The printer's `iteration` counts
from 0, numbers have four significant digits. Neither says memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshwright.software.folders import LogForm
from meshwright.software.log import NUMBER, Collected, Report, count, fields_by_bar, number

__all__ = ["BAR_LOG", "LOG", "TIMINGS"]

_COUNT = re.compile(r"\| {0,20}(?P<step>\d{1,12})/(?P<total>\d{1,12}|\?) \[")
_POSTFIX = re.compile(
    rf"(?P<name>[A-Za-z_][\w ]{{0,60}}?)=\s{{0,4}}(?P<value>{NUMBER})(?=[,\]])", re.IGNORECASE
)
TIMINGS = ("train_step_timing in s", "train_step_timing_in_s")
"""Names of a step's time, in TensorBoard too; loggers without spaces write the second."""
_TRAINING = re.compile(
    r"Training epoch \d{1,12}, iteration (?P<step>\d{1,12})/(?P<last>-?\d{1,12}) \|(?P<fields>.*)",
    re.DOTALL,
)


def _read_bar_line(line: str, found: Collected) -> None:
    """Read the bar as it was drawn once."""
    counts = list(_COUNT.finditer(line))
    if not counts:
        return
    fields = {
        match["name"].strip(): match["value"] for match in _POSTFIX.finditer(line, counts[-1].end())
    }
    seconds = _timing(fields)
    if seconds is not None:
        loss = number(fields.get("reduced_train_loss", fields.get("loss")))
        step = int(counts[-1]["step"])
        if step:
            found.total_steps = count(counts[-1]["total"]) or None
            grad_norm = number(fields.get("grad_norm"))
            found.add(
                line,
                Report(
                    step=step,
                    step_s=seconds,
                    loss=loss,
                    grad_norm=grad_norm,
                    batch=number(fields.get("global_batch_size")),
                ),
            )


def _timing(fields: Mapping[str, str]) -> float | None:
    """Seconds of a step, under either name."""
    return next((number(fields[name]) for name in TIMINGS if name in fields), None)


def _read_printer_line(line: str, found: Collected) -> None:
    """Read the printer's line of a step."""
    match = _TRAINING.search(line)
    if match is None:
        return
    fields = fields_by_bar(match["fields"])
    seconds = _timing(fields)
    if seconds is not None:
        found.total_steps = int(match["last"]) + 1 if int(match["last"]) >= 0 else None
        found.add(
            line,
            Report(
                step=int(match["step"]) + 1,
                step_s=seconds,
                tokens_per_s_per_gpu=number(fields.get("tokens_per_sec_per_gpu")),
                tflops_per_gpu=number(fields.get("TFLOPS_per_GPU")),
                loss=number(fields.get("reduced_train_loss")),
                grad_norm=number(fields.get("grad_norm")),
                batch=number(fields.get("global_batch_size")),
            ),
        )


BAR_LOG = LogForm(
    framework="nemo-1",
    marks=tuple(f"{name}=" for name in TIMINGS),
    read=_read_bar_line,
    sample=(
        "Epoch 0: :   2%|#     | 2/100 [00:12<03:45, reduced_train_loss=9.500, "
        "global_step=2.000, train_step_timing in s=1.500]\n"
    ),
    redraws=True,
    counts_samples=True,
)
LOG = LogForm(
    framework="nemo-2",
    marks=tuple(f"{name}:" for name in TIMINGS),
    read=_read_printer_line,
    sample=(
        "Training epoch 0, iteration 1/99 | global_batch_size: 64 | "
        "global_step: 1 | reduced_train_loss: 9.5 | train_step_timing in s: 1.5\n"
    ),
    counts_samples=True,
)

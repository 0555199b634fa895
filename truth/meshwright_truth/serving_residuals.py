"""How far each prediction of a published serving run was off, with the kind of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.serving_answers import FIGURES, ServingAnswers
from meshwright_truth.residuals import Residual

__all__ = ["serving_residuals"]


def serving_residuals(tables: Sequence[TruthTable], answers: ServingAnswers) -> list[Residual]:
    """Return the residuals of every figure that was measured and predicted.

    A table is what one engine did in one collection: each of those is somebody else's work.
    """
    made = {(p.source, p.row_id): p for p in answers.predictions}
    found = []
    for table in tables:
        for row in table.rows:
            prediction = made.get((table.name, row["row_id"]))
            if prediction is None or row.get("oom", "").strip().lower() in ("1", "true"):
                continue
            for quantity, predicted in prediction.figures.items():
                measured = _number(row.get(FIGURES[quantity]))
                if predicted and measured > 0:
                    residual = Residual(
                        quantity=quantity,
                        table=f"{table.name} {row['engine']}",
                        model=row["model"],
                        run=row["row_id"],
                        kind=prediction.kind,
                        log_ratio=math.log(measured / predicted),
                    )
                    found.append(residual)
    return found


def _number(text: str | None) -> float:
    """A finite number, or 0 for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0

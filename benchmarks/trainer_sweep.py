"""The embedded trainer on one GPU: micro batch, recompute, compiler and size, predicted against
measured, out-of-memory runs included.

    python -m benchmarks.trainer_sweep -o sweep.csv [--minutes 9.5] [--only 0.3b] [--tiny]

Needs torch and a GPU; `--tiny` runs a few steps of the tiny models on the processor instead, to try
the benchmark itself. 56 runs, one process each, bf16, 4096 tokens; none begins that would not end
in time, and the same command goes on with those that are not in the file. A row is written when its
run has ended, in the columns of published measured runs. Prints each run beside its prediction
(`--stack embedded`, `embedded-compiled`), then the median errors of step time and of memory, and
how many out-of-memory runs were foreseen. Exits with 1 where time is off by more than 5 % or memory
by more than 3 % in the median.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from meshwright.search.problem import dims_of
from meshwright.values.layout import Layout
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import GIB

TIME_WITHIN, MEMORY_WITHIN = 0.05, 0.03
SIZES = {
    "0.3b": "layers=24,hidden=1024,heads=16,kv_heads=16,ffn=2816,vocab=32000",
    "0.8b": "layers=24,hidden=1536,heads=12,kv_heads=12,ffn=4096,vocab=32000",
    "1.3b": "layers=24,hidden=2048,heads=16,kv_heads=16,ffn=5504,vocab=32000",
    "3b": "layers=28,hidden=3072,heads=24,kv_heads=24,ffn=8192,vocab=32000",
}
MBS = (1, 2, 4, 8, 16)
RUN_S = {False: 40.0, True: 100.0}
"""What a run is given at first, op by op and compiled; later as long as the longest of its kind
took."""
LIMIT_S = 240.0
COLUMNS = (
    *(
        "row_id",
        "source",
        "measured_by",
        "task",
        "model",
        "arch",
        "params_b",
        "layers",
        "hidden",
        "ffn",
        "heads",
        "kv_heads",
        "vocab",
    ),
    *(
        "seq_len",
        "gpu",
        "gpu_mem_gb",
        "num_gpus",
        "gpus_per_node",
        "tp",
        "pp",
        "vpp",
        "cp",
        "ep",
        "dp",
        "zero",
        "sp",
        "mbs",
        "gbs",
        "ga",
    ),
    *(
        "recompute",
        "precision",
        "framework",
        "release",
        "oom",
        "error",
        "step_time_s",
        "tokens_per_s_per_gpu",
        "tflops_per_gpu",
        "tflops_def",
    ),
    *("mfu", "peak_mem_gib", "mem_def", "mem_other", "group", "notes"),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run."""

    size: str
    mbs: int
    recompute: str
    compiled: bool

    @property
    def row_id(self) -> str:
        """Its name in the table."""
        return (
            f"{self.size}-mbs{self.mbs}-{self.recompute}-{'compiled' if self.compiled else 'eager'}"
        )

    @property
    def layout(self) -> Layout:
        """Two micro batches a step."""
        return Layout(
            dp=1, mbs=self.mbs, gbs=2 * self.mbs, sharding="none", recompute=self.recompute
        )  # type: ignore[arg-type]


def cases(sizes: dict[str, str]) -> Iterator[Case]:
    """Op by op first, as the compiler takes most of a minute for each; of the compiled ones 1.3 B
    first."""
    for compiled, recompute in ((False, "none"), (False, "full"), (True, "none"), (True, "full")):
        for size in sorted(sizes, key=lambda name: compiled and name != "1.3b"):
            yield from (
                Case(size=size, mbs=mbs, recompute=recompute, compiled=compiled)
                for mbs in (MBS if recompute == "none" else MBS[1::2])
            )


def ran(case: Case, model: ModelSpec, folder: Path, *, given: argparse.Namespace) -> dict[str, Any]:
    """Run it in a process of its own; return the trainer's summary, or the error."""
    plan = {
        "request": {
            "model": dims_of(model),
            "seq_len": given.seq_len,
            "precision": given.precision,
        },
        "plans": [{"layout": asdict(case.layout)}],
    }
    file = folder / "plan.json"
    file.write_text(json.dumps(plan), encoding="utf-8")
    words = [
        f"steps={given.steps}",
        "profile_step=0",
        "check_memory=false",
        f"compile={json.dumps(case.compiled)}",
        f"device={given.device}",
    ]
    command = [sys.executable, "-m", "meshwright.trainer", str(file), *words]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {LIMIT_S:.0f} s"}
    if done.returncode:
        return {
            "error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][
                :300
            ]
        }
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def row_of(
    case: Case, model: ModelSpec, found: dict[str, Any], *, given: argparse.Namespace
) -> dict[str, Any]:
    """One row of the table; what was not measured is blank."""
    error = found.get("error")
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    row |= {
        "row_id": case.row_id,
        "source": "trainer_sweep",
        "measured_by": "meshwright",
        "task": "pretrain",
        "arch": "llama",
    }
    row |= {
        "model": case.size,
        "params_b": f"{model_params(model).total / 1e9:.4g}",
        "layers": model.num_layers,
        "hidden": model.hidden,
    }
    row |= {
        "ffn": model.ffn,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "vocab": model.vocab,
        "seq_len": given.seq_len,
    }
    row |= dict.fromkeys(("num_gpus", "gpus_per_node", "tp", "pp", "vpp", "cp", "ep", "dp"), 1)
    row |= {
        "gpu": given.gpu,
        "zero": 0,
        "sp": 0,
        "mbs": case.mbs,
        "gbs": 2 * case.mbs,
        "ga": 2,
        "recompute": case.recompute,
    }
    row |= {
        "precision": given.precision,
        "framework": "embedded-compiled" if case.compiled else "embedded",
        "group": case.size,
    }
    row |= {
        "oom": int(error is not None and "out of memory" in error),
        "error": error or "",
        "notes": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    if error is None:
        row |= {
            "release": f"torch {found['torch_version']}",
            "step_time_s": found["step_s"],
            "tflops_per_gpu": found["tflops_per_gpu"],
        }
        row |= {
            "tokens_per_s_per_gpu": found["tokens_per_s_per_gpu"],
            "mfu": found["mfu"] or "",
            "tflops_def": "model FLOPs, full attention",
        }
        row |= {"peak_mem_gib": found["peak_allocated_bytes"][0] / GIB, "mem_def": "allocated, GiB"}
        row |= {"mem_other": f"reserved {found['peak_reserved_bytes'][0] / GIB:.3f} GiB"}
    return row


def foretold(
    case: Case, model: ModelSpec, *, given: argparse.Namespace
) -> tuple[float, float, bool] | None:
    """Step, allocated GiB and whether it fits, by prediction; None on a processor, whose memory is
    that of whole processes."""
    from meshwright.search.quote import Setting, quotes
    from meshwright.values.hardware.catalogue import default_node, find_device
    from meshwright.values.hardware.cluster import Pool
    from meshwright.values.stack import find_stack
    from meshwright.values.workload import Workload

    device = find_device(given.gpu)
    if device is None:
        return None
    pool = Pool(node=default_node(device.name, gpus_per_node=1), num_chips=1)
    setting = Setting(
        model=model,
        pool=pool,
        work=Workload(seq_len=given.seq_len, gbs=case.layout.gbs, precision=given.precision),
        stack=find_stack("embedded-compiled" if case.compiled else "embedded"),
        limit_bytes=device.usable_bytes,
    )
    quote = quotes([case.layout], setting)[0]
    allocated = sum(
        held
        for term, held in quote.fullest.memory_bytes.items()
        if term not in ("slack", "context")
    )
    return quote.step_s, allocated / GIB, quote.over_bytes <= 0


def main() -> int:
    """Run what is missing, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--only", choices=SIZES)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    sizes = (
        {"tiny": "tiny-llama"}
        if given.tiny
        else {name: dims for name, dims in SIZES.items() if given.only in (None, name)}
    )
    given.seq_len, given.steps, given.precision, given.device = (
        (64, 4, "fp32", "cpu") if given.tiny else (4096, 8, "bf16", "cuda")
    )
    given.gpu = "cpu" if given.tiny else _gpu()
    end = perf_counter() + 60.0 * given.minutes
    _run_all(sizes, given=given, end=end)
    return _judge(sizes, given=given)


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here; --tiny tries the benchmark on the processor")
    return torch.cuda.get_device_name()


def _rows(path: Path) -> dict[str, dict[str, str]]:
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["row_id"]: row for row in csv.DictReader(file)}


def _run_all(sizes: dict[str, str], *, given: argparse.Namespace, end: float) -> None:
    known, took, left = _rows(given.output), dict(RUN_S), 0
    if not known:
        given.output.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    with (
        tempfile.TemporaryDirectory() as folder,
        given.output.open("a", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, COLUMNS)
        for case in cases(sizes):
            if case.row_id in known:
                continue
            if perf_counter() + took[case.compiled] > end:
                left += 1
                continue
            start, model = perf_counter(), named_model(sizes[case.size])
            writer.writerow(
                row_of(case, model, ran(case, model, Path(folder), given=given), given=given)
            )
            file.flush()
            took[case.compiled] = max(perf_counter() - start, 0.5 * took[case.compiled])
    if left:
        print(f"{left} runs are left; the same command goes on with them", file=sys.stderr)


def _judge(sizes: dict[str, str], *, given: argparse.Namespace) -> int:
    known, time_errors, memory_errors, foreseen, oom = _rows(given.output), [], [], 0, 0
    print(f"{'run':32}{'step ms':>9}{'told':>9}{'GiB':>8}{'told':>8}  mfu")
    for case in cases(sizes):
        row, told = (
            known.get(case.row_id),
            foretold(case, named_model(sizes[case.size]), given=given),
        )
        if row is None:
            continue
        if row["error"]:
            oom += row["oom"] == "1"
            foreseen += row["oom"] == "1" and told is not None and not told[2]
            print(f"{case.row_id:32}{'out of memory' if row['oom'] == '1' else row['error'][:60]}")
            continue
        step, memory = float(row["step_time_s"]), float(row["peak_mem_gib"])
        told_words = f"{'':9}" if told is None else f"{1e3 * told[0]:9.0f}"
        told_memory = f"{'':8}" if told is None else f"{told[1]:8.2f}"
        print(
            f"{case.row_id:32}{1e3 * step:9.0f}{told_words}{memory:8.2f}{told_memory} "
            f" {row['mfu'][:5]}"
        )
        if told is not None:
            time_errors.append(abs(told[0] / step - 1.0))
            memory_errors.append(abs(told[1] / memory - 1.0))
    if not time_errors:
        print("nothing to judge: predictions are of GPUs that the catalogue knows")
        return 0
    errors = median(time_errors), median(memory_errors)
    print(
        f"median error {errors[0]:.1%} of time, {errors[1]:.1%} of memory; {foreseen} of {oom}"
        " out-of-memory runs foreseen"
    )
    return int(errors[0] > TIME_WITHIN or errors[1] > MEMORY_WITHIN)


if __name__ == "__main__":
    sys.exit(main())

"""Step times that a run left in TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from meshwright.errors import MissingExtraError
from meshwright.logs import Report

__all__ = ["read_events", "read_scalars"]

_TIMING, _LOSS = "train_step_timing in s", "reduced_train_loss"
"""NeMo's names, in its progress bar and in TensorBoard alike."""
_MOST_BYTES = 2**26
"""Of one record; a longer one is no record."""


def read_events(files: Sequence[Path]) -> tuple[Report, ...]:
    """Return a report for each step whose time was written; MissingExtraError without tensorboardX,
    which knows the format."""
    found = read_scalars(files)
    times, losses = found.get(_TIMING, {}), found.get(_LOSS, {})
    return tuple(
        Report(step=step + 1, step_s=times[step], loss=losses.get(step)) for step in sorted(times)
    )


def read_scalars(files: Sequence[Path]) -> dict[str, dict[int, float]]:
    """Return values by name and step, of a step that was written twice the later; a file that
    breaks off says what came before."""
    if not files:
        return {}
    try:
        from tensorboardX.proto.event_pb2 import Event
    except ImportError:
        raise MissingExtraError("tensorboardX", "tensorboard") from None
    found: dict[str, dict[int, float]] = {}
    for file in files:
        for record in _records(file):
            event = Event()
            event.ParseFromString(record)
            for value in event.summary.value:
                found.setdefault(value.tag, {})[int(event.step)] = float(value.simple_value)
    return found


def _records(file: Path) -> Iterator[bytes]:
    """TFRecords: length, its checksum, the record, its checksum."""
    with file.open("rb") as handle:
        while len(head := handle.read(12)) == 12:
            length = int.from_bytes(head[:8], "little")
            record = handle.read(length) if length <= _MOST_BYTES else b""
            if len(record) < length or len(handle.read(4)) < 4:
                return
            yield record

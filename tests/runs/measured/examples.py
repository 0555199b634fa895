"""Rows to start from."""

from __future__ import annotations

from meshwright.runs.measured.rows import Case, Unanswerable, read_row

LLAMA = {
    "row_id": "a-1",
    "model": "llama3-8b",
    "arch": "llama",
    "gpu": "H100-80GB-SXM",
    "num_gpus": "64",
    "tp": "2",
    "pp": "2",
    "mbs": "1",
    "gbs": "128",
    "seq_len": "8192",
    "precision": "bf16",
    "framework": "Megatron-LM",
}
SMALL_GPT = {
    "row_id": "b-1",
    "model": "gpt:some_test",
    "arch": "gpt",
    "layers": "12",
    "hidden": "512",
    "heads": "8",
    "gpu": "A100-80GB-SXM",
    "num_gpus": "8",
    "tp": "1",
    "pp": "1",
    "mbs": "4",
    "gbs": "32",
    "seq_len": "1024",
    "framework": "Megatron-LM dev",
}


def case_of(base: dict[str, str], **cells: str) -> Case:
    """Return the case of `base` with some cells changed, which must be one."""
    case = read_row({**base, **cells}, source="t")
    assert isinstance(case, Case), case
    return case


def reason_of(base: dict[str, str], **cells: str) -> str:
    """Return why `base` with some cells changed is no case."""
    found = read_row({**base, **cells}, source="t")
    assert isinstance(found, Unanswerable), found
    return found.reason

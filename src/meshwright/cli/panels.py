"""Groups of options in the help of commands that have many, and the ones that matter first."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["FEW", "FIRST", "PANELS", "first_of", "panel_of"]

FEW = 14
"""A command with so many options shows them all, in one list."""

PANELS: dict[str, tuple[str, ...]] = {
    "Model and batch": (
        *("model", "hf", "model_path", "series", "vocab", "seq_len", "decoder_seq_len", "gbs"),
        *("max_gbs", "seq", "precision", "attention", "routing"),
        *("sample_len", "finetune", "lora_rank", "lora_targets", "of"),
    ),
    "Chips": (
        *("cluster", "num_gpus", "gpus", "gpus_per_node", "max_memory_gib", "headroom"),
        *("clusters", "chips", "count"),
        *("usd_per_hour", "usd_per_node_hour", "usd_per_chip_hour", "pay", "prices"),
        *("host_memory_gib", "nvme_gib"),
    ),
    "Goal": (
        *("tokens", "steps", "days", "deadline", "max_cost", "objective", "min_tokens_per_s"),
        *("fastest", "racks"),
        *("pareto", "ttft_s", "tpot_s", "e2e_s", "ttft", "tpot", "e2e", "latency", "target_rate"),
        *("ttft_p99", "tpot_p99", "e2e_p99", "goodput"),
        *(
            f"{name}_{share}_s"
            for name in ("ttft", "tpot", "e2e")
            for share in ("p50", "p95", "p99")
        ),
        *("top", "tflops", "fix:best"),
    ),
    "Layout: what is held, not searched": (
        *("layout", "pins", "tp", "cp", "pp", "vpp", "ep", "etp", "dp", "mbs", "recompute"),
        *("sharding", "same", "unlike_batch"),
    ),
    "Software": (
        *(
            "stack",
            "megatron_version",
            "switches",
            "fused_norm",
            "cuda_graphs",
            "from_file",
            "ran",
            "to",
            "software",
            "program",
            "settings",
            "leave_out",
            "cp_comm_type",
            "cuda_graphs",
        ),
        *("env", "engine", "engine_words", "modes", "weights", "cache", "cached_share"),
        *("speculation", "chunk"),
    ),
    "Measured before": ("calibration", "profile"),
    "Load": (
        *("input_len", "output_len", "spread", "rate", "concurrency", "serving:trace"),
        *("requests", "seed", "patience", "key_file", "router", "sample", "host_cache_bytes"),
    ),
    "Data": ("data", "tokenizer", "verify_data", "quota"),
    "Evaluations, checkpoints and failures": (
        *("eval_interval", "eval_steps", "chip_mtbf_s", "restart_s", "save_interval_s"),
        *("write_bytes_per_s_per_node", "write_gb_per_s", "save_dir", "save_every", "keep"),
        *("keep_every", "best", "last", "drop_states", "losses", "optimizer", "quota_gib"),
        *("step_s", "save_margin"),
    ),
    "Energy": ("power_share", "pue", "kg_co2_per_kwh"),
    "Study": (
        *("max_runs", "minutes_per_run", "queue_minutes", "ready_minutes", "parallel"),
        *("budget", "tolerance", "confidence", "run_all", "strategy"),
        *("replay", "group", "max_steps_per_run", "tensorboard"),
        *("wandb", "wandb_key_file", "wandb_offline", "mlflow"),
    ),
    "Job": (
        *("launcher", "job", "kind", "name", "start", "time", "most_jobs", "image"),
        *("mounts", "workdir", "account", "partition", "instance", "log_dir", "cpus", "memory"),
        *("shared_memory", "priority", "order", "preempt", "min_timeslice", "words", "allow"),
        *("port", "follow"),
    ),
    "Words and tokens": (
        *("tokenizer_type", "vocab_file", "merge_file", "vocab_size", "tiktoken_pattern"),
        *("tiktoken_num_special", "append_eod", "eod", "no_special_tokens", "engine"),
    ),
    "Text": (
        *("keys", "form", "text_unit", "split_sentences", "keep_newlines", "language"),
        *("on_error", "max_document_bytes", "input_words"),
    ),
    "Megatron's own": (
        *("dataset_impl", "chunk_size", "log_interval", "partitions", "keep_sequential_samples"),
    ),
    "Answer": (
        *("output", "output_prefix", "export_dir", "dry_run", "force", "overwrite"),
        *("workers", "request", "save_request", "csv_path", "trace", "picture", "term"),
        *("tables", "rivals", "sources", "quiet", "json_output", "write"),
    ),
}
"""Titles with their parameters, in the order of `--help-all`. `GROUP:NAME` holds in a group's
commands alone."""

FIRST: dict[str, tuple[str, ...]] = {
    "size": ("cluster", "days", "tokens", "series", "seq_len", "gbs", "stack"),
    "estimate": (
        *("cluster", "seq_len", "gbs", "tokens", "deadline", "max_cost", "usd_per_hour", "hf"),
        "pins",
    ),
    "compare": (
        *("clusters", "chips", "count", "tokens", "deadline", "budget", "pay", "prices", "picture"),
    ),
    "plan": (
        *("cluster", "seq_len", "gbs", "hf", "finetune", "from_file", "pins", "tp", "stack"),
        *("tokens", "deadline", "export_dir", "to"),
    ),
    "fix": ("cluster", "best", "write", "pins", "tp", "seq_len", "gbs"),
    "explain": (
        *("cluster", "seq_len", "gbs", "layout", "tp", "hf", "stack", "tables", "rivals", "term"),
        *("sources", "trace", "ran"),
    ),
    "why-oom": (
        *("cluster", "seq_len", "gbs", "layout", "tp", "hf", "stack", "max_memory_gib", "ran"),
    ),
    "diff": ("model", "cluster", "seq_len", "gbs", "stack", "hf"),
    "export": (
        *("to", "output", "dry_run", "cluster", "seq_len", "gbs", "layout", "settings"),
        *("launcher", "time", "image"),
    ),
    "tune": (
        *("cluster", "seq_len", "gbs", "pins", "to", "program", "launcher", "output"),
        *("max_runs", "dry_run"),
    ),
    "train": (
        *(
            "software",
            "launcher",
            "time",
            "tokens",
            "data",
            "tokenizer",
            "cluster",
            "seq_len",
            "gbs",
        ),
        *("output", "dry_run"),
    ),
    "ckpt plan": ("cluster", "seq_len", "gbs", "tokens", "save_every", "best", "last", "hf"),
    "serving plan": (
        *("cluster", "input_len", "output_len", "ttft_s", "tpot_s", "engine", "rate"),
        *("target_rate", "hf", "trace"),
    ),
    "serving tune": (
        *("cluster", "engine", "model_path", "input_len", "output_len", "concurrency", "rate"),
        *("ttft", "tpot", "launcher", "output"),
    ),
    "serving simulate": (
        *("cluster", "layout", "input_len", "output_len", "rate", "concurrency", "engine", "hf"),
    ),
    "serving measure": (
        *("concurrency", "rate", "trace", "input_len", "output_len", "ttft", "tpot", "model"),
    ),
    "data tokenize": (
        *("output_prefix", "model", "tokenizer_type", "append_eod", "keys", "split_sentences"),
        *("workers", "on_error"),
    ),
}
"""The options that most calls of a command need; `--json` goes with them everywhere."""


def panel_of(command: str, name: str) -> str | None:
    """Return the title that a command's parameter stands under, None where none has it."""
    group = command.split(maxsplit=1)[0]
    for wanted in (f"{group}:{name}", name):
        for title, names in PANELS.items():
            if wanted in names:
                return title
    return None


def first_of(command: str, names: Iterable[str]) -> list[str]:
    """Return the parameters that a command's short help shows; all where they are few."""
    known = list(names)
    if len(known) <= FEW:
        return known
    return [name for name in (*FIRST[command], "json_output") if name in known]

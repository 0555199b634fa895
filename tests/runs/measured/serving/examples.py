from __future__ import annotations

ROW = {
    "row_id": "r0",
    "measure_kind": "serving_closed_loop",
    "model": "meta-llama/Llama-3.1-70B",
    "gpu": "H100",
    "gpu_mem_gb": "80",
    "mode": "agg",
    "n_gpus": "4",
    "tp": "4",
    "ep": "1",
    "attention_dp": "1",
    "concurrency": "16",
    "input_len": "1024",
    "output_len": "1024",
    "precision": "fp8",
    "engine": "vLLM",
}
SERVED = ROW | {"n_experts": "", "ttft_ms": "121.4", "tpot_ms": "13.19", "oom": "False"}

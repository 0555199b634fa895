"""`python -m meshwright.pretrain`: Megatron-LM with the fastest strategy of parallelism;
docs/llmacc.md."""

from __future__ import annotations

from meshwright.compat.llmacc import main

__all__ = ["main"]

if __name__ == "__main__":
    main()

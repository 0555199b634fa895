"""Whatever runs on an accelerator here: the only room that imports torch."""

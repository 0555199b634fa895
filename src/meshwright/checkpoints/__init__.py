"""Checkpoints of a training: how large, how often, which ones stay, and how much disk they take."""

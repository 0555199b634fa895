"""Models: shapes, presets, readers."""

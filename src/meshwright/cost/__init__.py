"""Cost: time and memory of layouts, on columns."""

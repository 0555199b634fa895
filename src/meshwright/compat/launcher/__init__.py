"""NVIDIA's NeMo 1.x launcher by its own line: data preparation and training on any platform."""

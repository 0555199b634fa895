"""How well predictions agree with published measured runs."""

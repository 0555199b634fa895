"""Studies: short real runs that prove which layout is fastest."""

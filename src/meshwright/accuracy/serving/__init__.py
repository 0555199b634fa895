"""Tables of published serving runs: predictions of their rows, and how wrong they are."""

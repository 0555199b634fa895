"""Hardware: chips, links, nodes, clusters."""

"""Models and what trains them."""

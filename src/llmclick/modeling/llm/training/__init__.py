"""From completions to a gradient step."""

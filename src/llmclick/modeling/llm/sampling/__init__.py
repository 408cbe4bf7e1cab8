"""From prompts to completions."""

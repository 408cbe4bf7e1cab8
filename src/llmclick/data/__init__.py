"""Rows, where they come from, how they become prompts, and in which order they are used."""

"""What a run tells while it goes and leaves behind: terminal, metrics.jsonl, completions/, trackers."""

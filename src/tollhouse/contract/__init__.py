"""What a tool declares: its effect, dedup, attempts, times, approval, hooks and schema."""

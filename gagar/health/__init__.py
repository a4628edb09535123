"""Whether a process of a stage is alive and what it waits for: told by itself, judged from outside."""

"""Task sets: what an agent is asked to do, and how to tell whether it did."""

"""A stage run again over records of the past, and what it answers now beside what was recorded then."""

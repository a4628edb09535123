"""What the log holds of one thing: groups and all that they refer to, found by key and by reference."""

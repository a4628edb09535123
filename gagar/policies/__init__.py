"""Policy versions and model directories: reading, checking, following."""

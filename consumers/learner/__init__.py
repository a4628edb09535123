"""The learner stage."""

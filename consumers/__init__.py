"""Stages that use it: verifier, gatherer, grader, advantage publisher, learner."""

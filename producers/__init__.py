"""Stages that make work: the sampler and the rollout worker."""

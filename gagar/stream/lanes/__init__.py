"""Lanes: everything that a stage does with one partition number of its inputs."""

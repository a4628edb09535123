"""Reinforcement learning for code agents over Apache Kafka: the library under the stages."""

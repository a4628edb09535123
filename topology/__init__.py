"""The pipeline as data: topics, stages, the graph."""

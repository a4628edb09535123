"""The stage runtime and its two transports: Kafka and memory."""

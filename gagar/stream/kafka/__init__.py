"""The Kafka transport: client, administration, initial offsets."""

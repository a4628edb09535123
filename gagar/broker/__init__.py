"""A local Apache Kafka from jars and a Java runtime."""

"""Policy losses over sampled tokens: the port, its kinds, and the sums from which a step's metrics are made."""

"""Floor 0: numpy and the standard library. No clock, network, environment or global randomness."""

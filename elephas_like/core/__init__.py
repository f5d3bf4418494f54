"""NumPy and the standard library. No clock, network, environment or global randomness."""

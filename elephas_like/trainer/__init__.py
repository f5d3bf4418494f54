"""Floor 1: Keras lives here."""

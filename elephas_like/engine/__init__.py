"""Floor 1: pyspark lives here."""

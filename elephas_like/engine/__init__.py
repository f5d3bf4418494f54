"""Who holds the rounds of a fit: this process, Spark jobs, or long tasks and a server; and other work on shards."""

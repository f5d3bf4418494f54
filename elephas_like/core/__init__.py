"""Training and merging in NumPy: no clock, network or global randomness.

types is the vocabulary: states, orders, updates, records. errors, checks and layout serve all rooms.

- loop: a fit, epoch by epoch, one function per mode. workers: the engines' protocols.
- averaging: one synchronous exchange. center: the state that asynchronous workers share. merging: the rule by role for both.
- async_progress: epochs and schedule of an asynchronous fit. rounds, schedules: when rounds end. drift: whether updates agree.
- strategies/: how updates become a step, and how they are packed. messages: a worker's side of both.
- columns, structure, parts: rows on disk and as trees. scores, voting, objective, decisions: what is made of outputs and metrics.
- trials, pruning: the vocabulary of a search.
- pickle_digest, own_classes: of models and code that are sent by value.
- extras, quiet, garbage, archives: optional packages, imports on workers, no search for garbage meanwhile, and archives on the path that are read
  once. The first two look at the environment, and quiet redirects what imports print.
"""

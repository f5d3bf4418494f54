"""The lowest floor: NumPy and the standard library. No clock, network, environment or global randomness.

Vocabulary
    types       messages between processes; read it first
    trials      messages of a search
    layout      which variable lies where in a state
    errors      what is raised at run time
Training
    strategies/ averaging strategies and codecs
    averaging   one exchange: how each part of the state is combined
    loop        synchronous rounds and epochs
    center      the shared state of asynchronous workers
    rounds, schedules   when a round ends
    drift       how far workers move apart
    messages    a worker's side of a strategy
    scores      sums of metric states
Rows
    structure   rows as trees; columns: a shard's files; parts: one array split for several inputs
Models and searches
    decisions, model_types, objective   how outputs, losses and metrics are read
    voting      models combined into one
    pruning     which trials are stopped early
Checks
    checks      arguments; pickle_digest: equality of pickles
"""

"""The lowest floor: NumPy and the standard library. No clock, network, environment or global randomness.

Vocabulary: `types` has the messages between processes (read it first), `trials` those of searches, `errors` what is
raised at
run time. `layout` says which variable lies where in a state.
Algorithms: `averaging` combines the parts of a state, with the strategies and codecs of `strategies/`. `loop` runs
synchronous rounds, `center` holds the shared state of asynchronous workers. `rounds` and `schedules` say when a round
ends,
`drift` measures how far workers move apart, `messages` is a worker's side of a strategy.
Rows: `structure` flattens rows into columns, `columns` reads a shard's files, `parts` splits one array for several
inputs.
Models and searches: `decisions`, `model_types` and `objective` read a model's outputs, loss and metrics; `voting`
combines
models; `pruning` stops trials; `scores` sums metric states.
Checks: `checks` validates arguments; `pickle_digest` compares pickles.
"""

"""A deterministic cluster in memory that runs the real producer against faults drawn by a seed.

Real are the I/O thread's loop and everything that it drives: accumulator, sender, sequences,
metadata and network client, and with `--bytes` the protocol's frames. Simulated are the sockets,
the clock, the brokers with their transaction and group coordinators, and the caller. The caller
appends columns and flushes (`application`), also in transactions, which may include offsets of
groups and which it commits, aborts or leaves open (`transactions`).

The checker fails if the simulated caller's waits for memory, flushes and waits for offsets exceed
their limits; the limit for offsets is max.block.ms, as in `ProducerTransactions`. The calls of
`KafkaProducer` themselves (append, send, flush, close, those of transactions) are not driven here.
tests/unit/client/test_max_block.py tests their max.block.ms exactly. `simulation.threads` tests
rows and their futures, locks and the selector. tests/integration tests real sockets with real
brokers. Groups have no members here. Responses may be late, lost or repeated. Those of different
brokers may overtake each other; those of one connection cannot.
"""

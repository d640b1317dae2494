"""A deterministic cluster in memory that runs the real producer against seeded faults.

Real are the I/O thread's loop and all that it drives: accumulator, sender, sequences, metadata and
network client, and with `--bytes` the protocol's frames. Simulated are the sockets, the clock, the
brokers with their transaction coordinator, and the caller, who appends columns and flushes
(`application`), also in transactions that it commits, aborts or leaves open (`transactions`).

Not driven are the calls of `KafkaProducer` and their time limits (append, send, flush, close,
max.block.ms, those of transactions), rows and their futures, and real sockets: those are tested on
real brokers, in tests/integration. Answers are late, missing, or come twice, and never overtake
each other: on one connection they cannot.
"""

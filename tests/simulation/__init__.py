"""A deterministic cluster in memory that runs the real producer against seeded faults.

Real are the I/O thread's loop and all that it drives: accumulator, sender, sequences, metadata and
network client, and with `--bytes` the protocol's frames. Simulated are the sockets, the clock, the
brokers with their coordinators of transactions and of groups, and the caller, who appends columns
and flushes (`application`), also in transactions, which take offsets of groups along and which it
commits, aborts or leaves open (`transactions`).

The simulated caller's waits for memory, flushes and waits for offsets end in time, or the checker
says so; for offsets it waits max.block.ms, as `ProducerTransactions` does. Not driven are the calls
of `KafkaProducer` themselves (append, send, flush, close, those of transactions) and their
max.block.ms, which tests/unit/client/test_max_block.py holds to the moment, rows and their
futures, locks and the selector: those are in `simulation.threads`. Real sockets are tested on real
brokers, in tests/integration. Groups have no members here.
Answers are late, missing, or come twice; those of several brokers overtake each other, those of one
connection cannot.
"""

"""A deterministic driver of the layer of threads: all of `KafkaProducer` over fake sockets.

Real are the producer's public calls, its I/O thread, the threads of partitioners, `selector.py` and
the protocol's bytes. Handed in are the clock, locks, conditions, starts of threads, sockets and
chance (`handed_in`). Every thread of a run is a thread of the system's, but one of them runs at a
time: at each lock, wait, socket call and call into user code, the seed picks who goes on (`world`).

The peers are the brokers of the other simulation, without the faults of clusters, which it has
already. What goes wrong here: connections break, also right behind an answer; writes are partial,
reads too; bytes that wake the selector find its pipe full; user code raises, is slow, and calls the
producer (`user_code`); callers close, forget topics, wait and give up at any moment (`program`).
"""

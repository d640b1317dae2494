"""A deterministic driver of the thread layer: all of `KafkaProducer` over fake sockets.

Real are the producer's public calls, its I/O thread, the partitioner threads, `selector.py` and the
protocol's bytes. Replaced are the clock, locks, conditions, thread starts, sockets and random
source (`handed_in`). Every thread of a run is a system thread, but only one runs at a time: at each
lock, wait, socket call and call into user code, the seed selects the thread that continues
(`world`).

The peers are the brokers of the other simulation, without its cluster faults. The faults here are:
connections break, also right after a response; reads and writes are partial; wake-up bytes find a
full pipe; user code raises, is slow, and calls the producer (`user_code`); callers close, forget
topics, wait and time out at any moment (`program`).
"""

"""Jobs with exactly once in a simulated cluster: applications that crash, brokers that fail.

Real are the machines of `commit`, the commit client that asks brokers for them, and the producers
of tasks in joined transactions, down to the network client. Simulated are the sockets, the clock,
the brokers, and what Spark does: it plans, runs attempts of tasks on executors, takes one message
of each task, and commits or aborts in another process (`application`). Rows are the same in each
attempt of a task, in an order of its own, so that each row of a version can be counted.

An application is killed at any time, also between two questions of a machine. Its executors may
live on for a while. Two applications of one owner may run at the same time. At the end an
application without faults writes every version that is missing, and each version once more.

The checker (`checker`) reads all partitions as consumers of committed records do.
"""

"""Authentication: SASL exchanges, and the options and files that hold credentials.

No module of this package opens a socket or a file, reads a clock or draws a random number. Callers
pass nonces, times and the contents of files as arguments.
"""

"""Who the client is: the exchanges of SASL, and the texts that say what to log in with.

Nothing here opens a socket or a file, reads a clock or draws a random number: nonces, times and
what files hold come in as arguments.
"""

"""User code: loading it, and calling it so that its exceptions do no harm."""

"""Code of the user's: loading it, and calling it so that nothing it raises does harm."""

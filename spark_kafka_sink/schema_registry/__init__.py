"""A client for schema registries: registers and looks up schemas, on the driver only.

This module imports none of its submodules, because tasks load the settings, but not the client.
"""

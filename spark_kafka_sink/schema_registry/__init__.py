"""A client for schema registries: registers and looks up schemas, on the driver only.

It imports nothing here: tasks have the settings, and do not load the client.
"""

"""A client for schema registries: registers and looks up schemas, on the driver only.

This module imports none of its submodules. Tasks import submodules such as `settings`, and must not
load the client with them.
"""

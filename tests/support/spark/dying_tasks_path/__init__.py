"""A folder for the path of Python processes, whose module sitecustomize they import."""

"""Generated pages, and checks of the documents."""

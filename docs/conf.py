"""How Sphinx makes a site from the pages of docs/ (`make docs`).

The pages are Markdown as GitHub shows it. A link to a page or a heading that does not exist is a
warning, and `make docs` fails at each warning.
"""

from sphinx.application import Sphinx

project = "spark-kafka-sink"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
root_doc = "README"
exclude_patterns = ["requirements.txt"]
html_theme = "furo"
html_title = project
html_show_copyright = False
highlight_language = "text"
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

# The parts of the menu, and their folders. Each page of a folder is in it.
PARTS = {
    "Tutorials": [
        *("tutorials/batch", "tutorials/stream", "tutorials/exactly-once", "tutorials/avro"),
    ],
    "How-to": ["how-to/*"],
    "Reference": ["reference/*"],
    "Explanation": ["explanation/*"],
    "The project": [
        *("contributing/README", "contributing/*", "decisions", "releasing"),
        "benchmarks/**/results",
    ],
}


def add_menu(_app: Sphinx, name: str, text: list[str]) -> None:
    """Add the menu to the first page. On GitHub, this page lists the others itself."""
    if name != root_doc:
        return
    for part, pages in PARTS.items():
        options = f":hidden:\n:glob:\n:caption: {part}\n"
        text[0] += "\n```{{toctree}}\n{}\n{}\n```\n".format(options, "\n".join(pages))


def setup(app: Sphinx) -> None:
    """Connect the menu."""
    app.connect("source-read", add_menu)

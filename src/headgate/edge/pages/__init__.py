"""HTML documentation pages, rendered by scripts/write_html_pages.py, and the code that serves them."""

"""The console: a page on the admin listener that shows a gateway live. It is built from console/ (docs/guides/console.md)."""

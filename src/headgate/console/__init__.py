"""The console: a live page on the admin listener, built from console/ (docs/guides/console.md)."""

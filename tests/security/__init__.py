"""What does Headgate defend against, and does it? docs/operations/security.md names each defence and its test here."""

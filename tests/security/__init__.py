"""What does Headgate defend against, and does it? docs/security.md names each defence and its test here."""

"""What do tests share? Real processes and engines, and how to build what is tested."""

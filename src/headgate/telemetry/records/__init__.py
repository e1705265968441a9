"""Records of finished requests, in memory and in files."""

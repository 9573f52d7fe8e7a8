"""Recording what a bus carries, and playing it back: a journal is a directory of segment files."""

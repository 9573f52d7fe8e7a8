"""The files of a journal: how a segment's bytes are laid out, written, read and mended. No event loop, and no bus."""

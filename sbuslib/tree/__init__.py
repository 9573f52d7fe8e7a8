"""Hubs above and below: what a tree of hubs needs beside the hubs."""

"""Backends of frameworks, each with an extra of its name: Socket.IO and Django Channels."""

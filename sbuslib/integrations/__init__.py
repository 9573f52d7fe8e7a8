"""Backends of frameworks, each with an extra of its name: Socket.IO, Django Channels, and kombu for Celery."""

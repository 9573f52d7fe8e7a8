"""What the bytes on a connection mean. Pure: no input or output, no clock, no event loop."""

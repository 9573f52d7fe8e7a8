"""Wire formats: packets, batches, control messages, addresses. Pure: no input or output, no clock, no event loop."""

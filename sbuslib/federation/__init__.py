"""Where messages cross between a bus and other places: which may, under which names, and by whom. Pure."""

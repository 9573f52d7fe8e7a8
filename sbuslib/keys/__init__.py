"""Keys and patterns beyond matching: which pattern covers which, and policies about both. Pure."""

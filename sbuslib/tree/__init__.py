"""Links to the parent hub and the child hubs, and what a tree of hubs needs beside them."""

"""What is seen of a bus from outside: how fast its counts grow, its tree of hubs, and what is wrong with it."""

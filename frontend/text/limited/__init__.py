"""Work that may take too much, done in a child process that is held to limits and replaced when it ends."""

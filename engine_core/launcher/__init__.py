"""`splitserve serve` and the other subcommands: starting, watching, announcing and ending processes."""

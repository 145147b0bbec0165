"""Settings: how they are declared, parsed from flags, checked, and passed on to other processes."""

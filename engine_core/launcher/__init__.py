"""`splitserve serve` and its kin: processes started, watched, announced and ended."""

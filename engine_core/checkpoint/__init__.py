"""What a checkpoint directory says, read without torch: config, weight files, what its text side needs."""

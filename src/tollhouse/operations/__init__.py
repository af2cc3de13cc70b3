"""What is done to a whole ledger by those who operate it: moving, purging, restoring, watching. Called by the CLI."""

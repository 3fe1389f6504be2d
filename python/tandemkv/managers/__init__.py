"""The managers: batches, request ids and pools over one ledger."""
